"""Make a curve: keep the k best heads, or ablate them, beside random orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headlab.curves.orders import ranks_of, shuffled, shuffled_in_layers
from headlab.curves.record import THRESHOLDS, Curve, Mode, share_ks
from headlab.engine import Progress, ReferenceLike, measure
from headlab.errors import HeadlabError
from headlab.examples import Example, name_examples
from headlab.gates import Gates, Reference
from headlab.measures import Measure, find_measure
from headlab.ranking import default_measure, swap
from headlab.scores import HeadScores
from headlab.stats import mean_interval
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.model import Model

MIN_ORDERS = 20  # random orders behind a baseline


def curve(
    model: Model,
    examples: Sequence[Example],
    scores: HeadScores,
    mode: Mode = "keep",
    *,
    ks: Sequence[int] | Literal["auto", "all"] = "auto",
    reference: ReferenceLike = "counterfactual",
    orders: int = MIN_ORDERS,
    threshold: float = 0.9,
    measure_by: str | Measure | None = None,
    task: str = "",
    same_prompts: bool = False,
    per_prompt: bool = False,
    seed: int = 0,
    quick: bool = False,
    progress: Progress | None = None,
) -> Curve:
    """Keep the k best heads (or ablate them), all others standing in by the reference.

    Examples that the ranking used are refused unless `same_prompts`, which marks the curve as
    in-sample. `per_prompt` orders the heads for each example by its own scores: in-sample always.
    With `quick` fewer random orders than a baseline needs are drawn; the figure says how many.
    With ks "auto" the curve is filled in where it crosses the thresholds.

    >>> curve(model, examples, scores).crossing(0.9)                          # doctest: +SKIP
    46
    """
    n_heads = model.n_layers * model.n_heads
    chosen = find_measure(measure_by or scores.measure or default_measure(examples))
    named = name_examples(examples)
    again = same_prompts or per_prompt
    fewest = 1 if quick else MIN_ORDERS
    _require(model, named, scores, mode, orders, fewest, threshold, again, per_prompt)
    if reference == "counterfactual":
        _require_pairs(model, named)
    used = set(scores.fingerprints) & {example.fingerprint for example in named}
    work = _Work(model, named, chosen, reference, mode, progress)
    clean, none = work.ends()
    if per_prompt:
        columns = [scores.fingerprints.index(example.fingerprint) for example in named]
        ranks = torch.stack([ranks_of(scores.values[:, :, column]) for column in columns])
    else:
        ranks = ranks_of(scores.score)[None]  # [example|1, layer, head]
    wanted = _wanted_ks(ks, n_heads)
    values = dict(zip(wanted, work.run([ranks], wanted)[0], strict=True))
    if ks == "auto":
        levels = {*THRESHOLDS, threshold}
        _fill_in(values, clean, none, mode, levels, lambda more: work.run([ranks], more)[0])
    random = torch.Generator().manual_seed(seed)
    others = [shuffled(ranks, random) for _ in range(orders)]
    others += [shuffled_in_layers(ranks, random) for _ in range(orders)]
    at = _first_crossing(values, clean, none, mode, threshold)  # beside it a reader looks
    random_ks = sorted({0, *share_ks(n_heads), n_heads, *([at] if at is not None else [])})
    inner = [
        k for k in random_ks if 0 < k < n_heads
    ]  # no head and all heads: the same in any order
    found = (
        work.run(others, inner) if inner else torch.empty(len(others), 0, len(named))
    )  # [order, k, example]
    ends = [values[k].expand(len(found), 1, -1) for k in (0, n_heads)]
    lines = torch.cat([ends[0], found, ends[1]], 1)
    all_ks = sorted(values)
    return Curve(
        model=model.name,
        task=task or scores.task,
        mode=mode,
        method=scores.method,
        measure=chosen.name,
        reference=reference.kind if isinstance(reference, Reference) else reference,
        examples=[example.id for example in named],
        n_heads=n_heads,
        ks=all_ks,
        values=torch.stack([values[k] for k in all_ks]),
        random_ks=random_ks,
        random=lines[:orders],
        matched=lines[orders:],
        clean=clean,
        none=none,
        in_sample=True if per_prompt or used else (False if scores.fingerprints else None),
        per_prompt=per_prompt,
        threshold=threshold,
        settings={
            "seed": seed,
            "orders": orders,
            "ranked_on": scores.task,
            "ranking": scores.settings,
        },
    )


def expected_masks(n_heads: int, ks: Sequence[int] | str, orders: int = MIN_ORDERS) -> int:
    """About how many masks a curve runs: what its progress counts up to, times the examples."""
    inner = 1 + len({k for k in share_ks(n_heads) if 0 < k < n_heads})
    filled_in = 24 if ks == "auto" else 0
    return len(_wanted_ks(ks, n_heads)) + filled_in + 2 * orders * inner


class NoEffect(HeadlabError):  # noqa: N818, it is a finding
    """The model does not do the task, or too few prompts show that it does: there is nothing to
    explain."""

    def __init__(self, sentence: str, clean: Tensor, none: Tensor):
        super().__init__(sentence)
        self.clean, self.none = clean, none  # [example], with all heads and with none


class _Work:
    """Runs masks on one model, set of examples and measure."""

    def __init__(
        self,
        model: Model,
        examples: list[Example],
        chosen: Measure,
        reference: ReferenceLike,
        mode: Mode,
        progress: Progress | None,
    ):
        self._model, self._examples, self._chosen = model, examples, chosen
        self._reference, self._mode, self._progress = reference, mode, progress

    def ends(self) -> tuple[Tensor, Tensor]:
        """The measure with all heads and with none, [example] each; refused where alike."""
        all_on, all_off = Gates.ones(self._model), Gates.keep(self._model, [])
        table = measure(
            self._model,
            self._examples,
            Gates.stack([all_on, all_off]),
            self._chosen,
            self._reference,
        )
        clean, none = table.clean, table.values[1]
        if self._reference == "counterfactual" and not self._chosen.is_distance:
            # By the counterfactual prompts themselves. (A distance from the clean run is 0 there.)
            swapped = [swap(example) for example in self._examples]
            none = measure(self._model, swapped, all_on, self._chosen).clean
        effect = (clean - none).double()
        low, high = mean_interval(effect)
        if high < 0 if self._chosen.is_distance else low > 0:
            return clean, none
        numbers = (
            f"{self._chosen.name} is {float(clean.mean()):.3g} with all heads and "
            f"{float(none.mean()):.3g} with none, and the interval of the difference, "
            f"{float(low):.3g} to {float(high):.3g}, "
        )
        crosses = bool(low <= 0 <= high)
        if crosses and float(-low if self._chosen.is_distance else high) > float(effect.std()):
            # An effect as large as the spread between prompts is not ruled out.
            raise NoEffect(
                f"{count(len(effect), 'prompt')} cannot tell whether {self._model.name} does this "
                f"task: {numbers}includes 0 and much else; take more examples",
                clean,
                none,
            )
        side = "includes 0" if crosses else "is below 0" if high < 0 else "is above 0"
        raise NoEffect(
            f"{self._model.name} does not do this task: {numbers}{side}; "
            "there is nothing to explain",
            clean,
            none,
        )

    def run(self, orders: Sequence[Tensor], ks: Sequence[int]) -> Tensor:
        """Each order (ranks [example|1, layer, head]) at each k: [order, k, example]."""
        top = torch.stack([ranks < k for ranks in orders for k in ks])  # [mask, example|1, ...]
        gates = Gates((top if self._mode == "keep" else ~top).float(), "mask example layer head")
        table = measure(
            self._model,
            self._examples,
            gates,
            self._chosen,
            self._reference,
            progress=self._progress,
        )
        return table.values.view(len(orders), len(ks), -1)


def _require(
    model: Model,
    examples: list[Example],
    scores: HeadScores,
    mode: str,
    orders: int,
    fewest: int,
    threshold: float,
    same_prompts: bool,
    per_prompt: bool,
) -> None:
    if mode not in ("keep", "ablate"):
        raise HeadlabError(f"a curve keeps heads or ablates them, not {mode!r}")
    if scores.model and not _same_model(scores.model, model.name):
        raise HeadlabError(f"the scores are of {scores.model}, not of {model.name}")
    if scores.shape != (model.n_layers, model.n_heads):
        layers, heads = scores.shape
        raise HeadlabError(
            f"the scores are of {layers} layers x {heads} heads; {model.name} has "
            f"{model.n_layers} x {model.n_heads}"
        )
    if orders < fewest:
        raise HeadlabError(f"at least {fewest} random orders stand behind a baseline")
    if not 0 < threshold <= 1:
        raise HeadlabError(f"a threshold lies between 0 and 1, not at {threshold:g}")
    if len(examples) < 2:
        raise HeadlabError("a curve needs at least two examples")
    known = set(scores.fingerprints)
    used = [example for example in examples if example.fingerprint in known]
    if used and not same_prompts:
        raise HeadlabError(
            f"the ranking has used {len(used)} of these examples ({used[0].name} ...); take "
            "others, or say that the curve is in-sample (same prompts)"
        )
    if per_prompt:
        if scores.estimated:
            raise HeadlabError(
                f"{len(scores.estimated)} of the scores are estimates, of heads that matter little "
                "on average; an order for each prompt needs all heads run (without exact)"
            )
        if scores.values.shape[-1] != len(scores.fingerprints):
            raise HeadlabError(
                "an order for each prompt needs the scores of each; these hold means alone"
            )
        if len(used) < len(examples):
            new = next(example for example in examples if example.fingerprint not in known)
            raise HeadlabError(f"{new.name} has no scores of its own; it was not ranked")


def _same_model(one: str, other: str) -> bool:
    return one == other or Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def _require_pairs(model: Model, examples: list[Example]) -> None:
    """Only where both prompts end in one token does keeping no head give the counterfactual run."""
    for example in examples:
        if example.counterfactual is None:
            raise HeadlabError(f"{example.name} has no counterfactual; give another reference")
        if model.ids(example.prompt)[-1] != model.ids(example.counterfactual)[-1]:
            raise HeadlabError(
                f"{example.name} and its counterfactual end differently, in "
                f"{model.token_texts(model.ids(example.prompt)[-1:])[0]!r} and "
                f"{model.token_texts(model.ids(example.counterfactual)[-1:])[0]!r}"
            )


def _wanted_ks(ks: Sequence[int] | str, n_heads: int) -> list[int]:
    if ks == "all":
        return list(range(n_heads + 1))
    if ks == "auto":
        grid = {round(n_heads ** (step / 16)) for step in range(17)}
        return sorted({*range(min(8, n_heads) + 1), *grid, *share_ks(n_heads), n_heads})
    numbers = [int(k) for k in ks]
    wrong = [k for k in numbers if not 0 <= k <= n_heads]
    if wrong:
        raise HeadlabError(f"k runs from 0 to {n_heads}, the number of heads; {wrong[0]} was given")
    return sorted({*numbers, *share_ks(n_heads), 0, n_heads})


def _fill_in(
    values: dict[int, Tensor],
    clean: Tensor,
    none: Tensor,
    mode: Mode,
    levels: set[float],
    run: Callable[[list[int]], Tensor],
) -> None:
    """Points between the last k below and the first above each level, until they are neighbours."""
    zero, one = none.double().mean(), clean.double().mean()
    for level in sorted(levels):
        for last in (False, True):  # the first crossing, and the one from which on it stays
            while gap := _gap(values, zero, one, mode, level, last):
                below, above = gap
                more = list(range(below + 1, above, max(1, (above - below) // 8)))
                values.update(zip(more, run(more), strict=True))


def _first_crossing(
    values: dict[int, Tensor], clean: Tensor, none: Tensor, mode: Mode, level: float
) -> int | None:
    zero, one = none.double().mean(), clean.double().mean()
    for k in sorted(values):
        explained = float((values[k].double().mean() - zero) / (one - zero))
        if explained >= level - 1e-9 if mode == "keep" else explained <= 1 - level + 1e-9:
            return k
    return None


def _gap(
    values: dict[int, Tensor], zero: Tensor, one: Tensor, mode: Mode, level: float, last: bool
) -> tuple[int, int] | None:
    """The measured ks on both sides of a crossing, if others lie between them."""
    ks = sorted(values)
    explained = [float((values[k].double().mean() - zero) / (one - zero)) for k in ks]
    done = [e >= level if mode == "keep" else e <= 1 - level for e in explained]
    if last:
        misses = [number for number, is_ in enumerate(done) if not is_]
        above = misses[-1] + 1 if misses else 0
    else:
        above = done.index(True) if True in done else 0
    if not 0 < above < len(ks) or ks[above] - ks[above - 1] <= 1:
        return None
    return ks[above - 1], ks[above]
