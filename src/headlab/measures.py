"""What is measured: from the log-probs of an example's answers to one number."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.examples import Example

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Answers:
    """What the model says under each mask about examples whose answers have the same sizes."""

    log_probs: Tensor  # [mask, example, answer], each answer's tokens summed
    hit: Tensor | None  # [mask, example], True where every token of the target is the likeliest
    kl: Tensor | None  # [mask, example], mean over the target's positions of KL(clean || gated)
    n_tokens: tuple[int, ...]  # of each answer
    n_right: int  # the first n_right answers are right, the others wrong

    @property
    def target(self) -> Tensor:
        return self.log_probs[..., 0]

    @property
    def right(self) -> Tensor:
        return self.log_probs[..., : self.n_right]

    @property
    def wrong(self) -> Tensor:
        return self.log_probs[..., self.n_right :]


@dataclass(frozen=True)
class Measure:
    """A named function of examples' answers: [mask, example]."""

    name: str
    says: str  # what it is, for figures and reports
    value: Callable[[Answers], Tensor]
    needs_wrong: bool = False
    needs_hits: bool = False
    needs_kl: bool = False
    differentiable: bool = True
    is_distance: bool = False  # never below 0, and 0 where nothing changed: more is worse

    def require(self, example: Example) -> None:
        """Refuse an example it cannot be computed on."""
        if self.needs_wrong and not example.wrong:
            raise HeadlabError(f"{self.name} needs wrong answers, and {example.name} has none")


MEASURES = {
    each.name: each
    for each in (
        Measure(
            "log-prob",
            "log-prob of the target, summed over its tokens",
            lambda answers: answers.target,
        ),
        Measure(
            "log-prob-per-token",
            "log-prob of the target, mean over its tokens",
            lambda answers: answers.target / answers.n_tokens[0],
        ),
        # At one position the difference of two logits is that of the log-probs: the normaliser
        # cancels. For answers of several tokens only the latter is defined.
        Measure(
            "logit-diff",
            "logit of the target minus the largest of the wrong answers'",
            lambda answers: answers.target - answers.wrong.amax(-1),
            needs_wrong=True,
        ),
        Measure(
            "logit-diff-mean",
            "mean logit of the right answers minus that of the wrong ones",
            lambda answers: answers.right.mean(-1) - answers.wrong.mean(-1),
            needs_wrong=True,
        ),
        Measure(
            "prob-diff",
            "probability of the right answers minus that of the wrong ones",
            lambda answers: answers.right.exp().sum(-1) - answers.wrong.exp().sum(-1),
            needs_wrong=True,
        ),
        Measure(
            "choice-accuracy",
            "the target is likelier than every wrong answer",
            lambda answers: (answers.target > answers.wrong.amax(-1)).float(),
            needs_wrong=True,
            differentiable=False,
        ),
        Measure(
            "top1-accuracy",
            "every token of the target is the likeliest",
            lambda answers: _present(answers.hit).float(),
            needs_hits=True,
            differentiable=False,
        ),
        Measure(
            "kl",
            "KL(clean || gated) of the next token, mean over the target's positions",
            lambda answers: _present(answers.kl),
            needs_kl=True,
            is_distance=True,
        ),
    )
}


def find_measure(measure: str | Measure) -> Measure:
    """A measure by name."""
    if isinstance(measure, Measure):
        return measure
    if measure not in MEASURES:
        close = difflib.get_close_matches(measure, MEASURES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise HeadlabError(f"no measure {measure!r}{hint} (there are {', '.join(MEASURES)})")
    return MEASURES[measure]


def _present(asked_for: Tensor | None) -> Tensor:
    assert asked_for is not None  # Measure.needs_hits, Measure.needs_kl
    return asked_for


# --- answers as tokens ---


@dataclass(frozen=True)
class Sequence:
    """Tokens to run, and what to read off them."""

    ids: Tensor  # [position], the prompt and all of a continuation but its last token
    corrupt: Tensor | None  # [position], the same after the counterfactual prompt
    start: int  # the first position read: the prompt's last

    @property
    def n_read(self) -> int:
        return len(self.ids) - self.start

    @property
    def parting(self) -> int:
        """The first position where it and its counterfactual differ; its length if none does."""
        assert self.corrupt is not None
        apart = (self.ids != self.corrupt).nonzero()
        return int(apart[0]) if len(apart) else len(self.ids)


@dataclass(frozen=True)
class Read:
    """The log-prob of one token of one answer."""

    sequence: int
    position: int  # counted from the sequence's start
    token: int


@dataclass(frozen=True)
class Encoded:
    """An example ready to run."""

    example: Example
    sequences: list[Sequence]  # the first carries the target
    reads: list[list[Read]]  # of each answer

    @property
    def length(self) -> int:
        """Of its longest run, in tokens."""
        return max(len(sequence.ids) for sequence in self.sequences)


def encode(model: Model, example: Example, counterfactual: bool = False) -> Encoded:
    """Its tokens: answers of one token share the target's run, longer ones have their own.

    Answers are joined to the prompt exactly (`Model.join`). With `counterfactual`, every run has
    its counterfactual twin, which reads the same answer.
    """
    try:
        continuations = []
        for answer in example.answers:
            joined, start = model.join(example.prompt, answer)
            continuations.append(joined[start:])
        prompt = joined[:start]
        _require_distinct(example, [each.tolist() for each in continuations])
        corrupt = _corrupt_prompt(model, example, prompt) if counterfactual else None
    except HeadlabError as error:
        raise HeadlabError(f"{example.name}: {error}") from None
    sequences: list[Sequence] = []
    reads: list[list[Read]] = []
    for continuation in continuations:
        if not sequences or len(continuation) > 1:
            tail = continuation[:-1]
            twin = None if corrupt is None else torch.cat([corrupt, tail])
            sequences.append(Sequence(torch.cat([prompt, tail]), twin, len(prompt) - 1))
            home = len(sequences) - 1
        else:
            home = 0  # one token: it is read where the prompt ends, in any run
        reads.append(
            [Read(home, position, int(token)) for position, token in enumerate(continuation)]
        )
    return Encoded(example, sequences, reads)


def _require_distinct(example: Example, continuations: list[list[int]]) -> None:
    for number, tokens in enumerate(continuations):
        if tokens in continuations[:number]:
            answer, other = example.answers[number], example.answers[continuations.index(tokens)]
            raise HeadlabError(f"the answers {other!r} and {answer!r} are the same tokens")


def _corrupt_prompt(model: Model, example: Example, prompt: Tensor) -> Tensor:
    if example.counterfactual is None:
        raise HeadlabError("it has no counterfactual")
    corrupt = model.ids(example.counterfactual)
    if len(corrupt) != len(prompt):
        raise HeadlabError(
            f"the prompt has {len(prompt)} tokens and its counterfactual {len(corrupt)}; "
            "they must have the same length, token by token"
        )
    return corrupt
