"""The graders by name."""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from headlab.errors import HeadlabError
from headlab.grading.embeddings import cosines, require_minilm
from headlab.grading.mathematics import math_published, math_strict, math_verify
from headlab.grading.overlaps import bleu, chrf
from headlab.grading.published import published
from headlab.grading.quantities import has_number, numeric
from headlab.grading.rows import Row
from headlab.grading.scored import Scored, score_each
from headlab.grading.words import exact, rouge_1, rouge_l, token_f1

Progress = Callable[[int], None] | None


@dataclass(frozen=True)
class Options:
    """What the slower graders must be told."""

    time_limit: float = 5.0  # seconds for one pair; math-verify's own is 5 for each half
    workers: int | None = None
    checkpoint: str | None = None  # of COMET


@dataclass(frozen=True)
class Grader:
    """A score with its name, and how it is computed for many rows at once."""

    name: str
    says: str  # what it is, in one line
    kind: Literal["share", "mean"]  # 0 or 1 for each row, or anything between
    score: Callable[[Sequence[Row], Options, Progress], Scored]
    needs: tuple[str, ...] = ("answer", "gold")  # fields of a row; without one it is not scored
    applies: Callable[[Row], bool] = lambda row: True  # where it says no, neither
    packages: tuple[str, ...] = ()  # beyond the core
    span: tuple[float, float] = (0.0, 1.0)  # a score lies in it, and so does an interval
    embeds: bool = False  # with MiniLM, which its label names

    def label(self, options: Options) -> str:
        """The name of its column: a model behind a score is part of the name."""
        if self.name == "comet":
            return f"comet[{_short(_checkpoint(options))}]"
        if self.name == "quality":
            told = f"comet {_short(_checkpoint(options))}" if _has_comet(options) else "chrF"
            return f"quality[{told}]"
        return f"{self.name}[MiniLM]" if self.embeds else self.name

    def range(self, options: Options) -> tuple[float, float]:
        """What a score can be: of quality, that of what stands behind it."""
        return (0.0, 1.0) if self.name == "quality" and not _has_comet(options) else self.span

    def scores(self, row: Row) -> bool:
        """Whether the row has all it takes."""
        return all(getattr(row, each) is not None for each in self.needs) and self.applies(row)

    def require(self, options: Options) -> None:
        """Say what is missing before any work is done."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise HeadlabError(f"{self.name} needs {package}: pip install 'headlab[grading]'")
        if self.embeds:
            require_minilm()
        if self.name == "comet" or (self.name == "quality" and _has_comet(options)):
            _require_comet(options)


def find_graders(names: str | Sequence[str]) -> list[Grader]:
    """By name, in the order given; a string is split at its commas."""
    given = names.split(",") if isinstance(names, str) else list(names)
    wanted = list(dict.fromkeys(name.strip().lower() for name in given if name.strip()))
    for name in wanted:
        if name not in GRADERS:
            close = difflib.get_close_matches(name, GRADERS, n=1, cutoff=0.5)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise HeadlabError(f"no grader {name!r}{meant} (there are {', '.join(GRADERS)})")
    if not wanted:
        raise HeadlabError(f"name at least one grader: {', '.join(GRADERS)}")
    return [GRADERS[name] for name in wanted]


def _short(checkpoint: str) -> str:
    """Unbabel/wmt22-comet-da and .../wmt22-comet-da/checkpoints/model.ckpt: wmt22-comet-da."""
    parts = PurePath(checkpoint).parts
    if parts[-1].endswith(".ckpt"):
        parts = parts[:-2] if len(parts) > 2 and parts[-2] == "checkpoints" else parts[-1:]
    return parts[-1]


def _of_answers(
    compare: Callable[[str, str], float | None],
) -> Callable[[Sequence[Row], Options, Progress], Scored]:
    def score(rows: Sequence[Row], options: Options, progress: Progress) -> Scored:
        return score_each(rows, lambda row: compare(row.answer or "", row.gold or ""), progress)

    return score


def _of_rows(
    compare: Callable[[Row], float | None],
) -> Callable[[Sequence[Row], Options, Progress], Scored]:
    return lambda rows, options, progress: score_each(rows, compare, progress)


def _cosine(rows: Sequence[Row], options: Options, progress: Progress) -> Scored:
    return Scored(cosines([(row.answer or "", row.gold or "") for row in rows], progress))


def _math(rows: Sequence[Row], options: Options, progress: Progress) -> Scored:
    return math_verify(rows, options.time_limit, options.workers, progress)


def _comet(rows: Sequence[Row], options: Options, progress: Progress) -> Scored:
    from headlab import comet

    answers = [(row.gold or "", row.answer or "", row.unmasked_answer or "") for row in rows]
    scores = comet.score(answers, checkpoint=_checkpoint(options))
    if progress:
        progress(len(rows))
    return Scored(scores)


def _require_comet(options: Options) -> None:
    from headlab import comet

    comet.local_checkpoint(_checkpoint(options))  # a path that holds none is said now
    comet.require_environment()


def _has_comet(options: Options) -> bool:
    """Whether quality is COMET's: a checkpoint is named, or one is here with its environment."""
    from headlab import comet

    if options.checkpoint:
        return True
    if comet.default_checkpoint() is None:
        return False
    return comet.environment_state(comet.environment_folder()) == "whole"


def _quality(rows: Sequence[Row], options: Options, progress: Progress) -> Scored:
    """How much is left of the unmasked answer."""
    if _has_comet(options):
        return _comet(rows, options, progress)
    return score_each(rows, lambda row: chrf(row.answer or "", row.unmasked_answer or ""), progress)


def _checkpoint(options: Options) -> str:
    from headlab import comet

    if found := options.checkpoint or comet.default_checkpoint():
        return found
    raise HeadlabError(
        "comet needs a checkpoint, a hub id or a local path (--checkpoint); "
        "without one, chrf and cosine are substitutes with names of their own"
    )


_WITH_UNMASKED = ("answer", "gold", "unmasked")
_SACREBLEU = ("sacrebleu",)
GRADERS = {
    grader.name: grader
    for grader in (
        Grader("exact", "the same text, but for case and a stop", "share", _of_answers(exact)),
        Grader(
            "numeric",
            "the last numbers are equal, where the gold has one",
            "share",
            _of_answers(numeric),
            applies=lambda row: has_number(row.gold or ""),
        ),
        Grader("f1", "words in common, F1", "mean", _of_answers(token_f1)),
        Grader("rouge", "ROUGE-1, F", "mean", _of_answers(rouge_1)),
        Grader("rouge-l", "ROUGE-L, F", "mean", _of_answers(rouge_l)),
        Grader("chrf", "chrF2", "mean", _of_answers(chrf), packages=_SACREBLEU),
        Grader("bleu", "sentence BLEU", "mean", _of_answers(bleu), packages=_SACREBLEU),
        Grader(
            "cosine",
            "cosine of sentence embeddings",
            "mean",
            _cosine,
            span=(-1.0, 1.0),
            embeds=True,
        ),
        Grader("math", "equal by math-verify", "share", _math, packages=("math_verify",)),
        Grader("math-strict", "the box holds the gold", "share", _of_rows(math_strict)),
        Grader(
            "math-published",
            "the box occurs in the gold: flawed, for comparison only",
            "share",
            _of_rows(math_published),
        ),
        Grader(
            "comet",
            "COMET by its own program",
            "mean",
            _comet,
            needs=_WITH_UNMASKED,
            span=(-math.inf, math.inf),
        ),
        Grader(
            "quality",
            "COMET where there is a checkpoint, else chrF with the unmasked answer",
            "mean",
            _quality,
            needs=_WITH_UNMASKED,
            packages=_SACREBLEU,
            span=(-math.inf, math.inf),
        ),
        Grader(
            "published",
            "BLEU > 0.8 with the unmasked text, or ROUGE-1 or cosine > 0.6 with the gold",
            "share",
            lambda rows, options, progress: published(rows, progress),
            needs=_WITH_UNMASKED,
            packages=_SACREBLEU,
            embeds=True,
        ),
    )
}
