"""Fit gates: gradient descent on one gate a head, weights frozen, many seeds in one batch.

With G = sigmoid(logit), a seed's loss is

    mean over its batch of the mean over target tokens of −log p  −  λ · mean of clamp(logit, ±4)

λ = 0 first; from there λ > 0 opens every gate that does no harm (G+), λ < 0 closes every gate that
does no good (G−). Seeds share passes and nothing else: each has its own start, data order, gradient
norm and moments, so that many together give what each alone would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headlab.batches import Flight
from headlab.budgets import make_room
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gatefits.rows import Rows, order_of
from headlab.gatefits.slopes import graph_budget, summed_slopes
from headlab.gates import ZERO, Reference
from headlab.gradients import BY_PASSES, warn_of_hard_gates
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.engine import Progress
    from headlab.model import Model

CLAMP = 4.0  # beyond, a gate is as good as 0 or 1 and is pushed no further
PHASES = ("free", "plus", "minus", "contrast")
_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's own
MIN_UPDATES = 200  # with fewer, gates are still on their way
PATH_EVERY = 10  # updates between two points of a trajectory


@dataclass(frozen=True)
class Schedule:
    """The paper's hyper-parameters."""

    updates: int = 500  # of each of the three fits
    batch: int = 64
    strength: float = 0.1  # λ of G+; G−'s is its negative
    clip: float = 1.0  # largest gradient norm of a seed
    free_rates: tuple[float, float] = (0.1, 0.01)  # linear from, to
    rates: tuple[float, float] = (0.5, 0.1)

    def __post_init__(self) -> None:
        numbers = (self.strength, self.clip, *self.free_rates, *self.rates)
        if not all(math.isfinite(number) for number in numbers):
            raise HeadlabError("λ, clip and learning rates are finite numbers")
        if self.updates < 1 or self.batch < 1:
            raise HeadlabError("a fit takes at least one update of at least one example")
        if self.strength <= 0:
            raise HeadlabError(f"the strength is above 0, not {self.strength:g}")
        if self.clip <= 0 or min(*self.free_rates, *self.rates) <= 0:
            raise HeadlabError("clip and learning rates are above 0")

    def rate(self, phase: str, step: int) -> float:
        first, last = self.free_rates if phase in ("free", "contrast") else self.rates
        return first + (last - first) * step / max(1, self.updates - 1)

    def pull(self, phase: str) -> float:
        """λ"""
        return {"free": 0.0, "minus": -self.strength}.get(phase, self.strength)


def few_updates(updates: int) -> list[str]:
    """What to say of a fit that ends early; nothing of one that does not.

    >>> few_updates(10)
    ['Fits of 10 updates are a quick look; the paper has 500.']
    """
    if updates >= MIN_UPDATES:
        return []
    paper = Schedule().updates
    return [f"Fits of {count(updates, 'update')} are a quick look; the paper has {paper}."]


@dataclass
class State:
    """Where a fit stands: all it takes to go on as if it had never stopped."""

    step: int  # updates done of the current stage
    stage: int  # 0: free; 1: plus and minus together
    tokens: int  # in a pass: the same wherever it goes on, for the same digits
    logits: Tensor  # [fit, layer, head]; a fit is a seed, then a seed and phase
    first: Tensor  # Adam's moments, as logits
    second: Tensor
    losses: Tensor  # [fit, update], NaN where not yet done; free, then plus, then minus
    paths: Tensor  # [fit, point, layer, head], logits every so many updates
    free: Tensor | None = None  # [seed, layer, head], the first stage's result


@dataclass(frozen=True)
class GateFit:
    """Gates that were learned: G+, G− and how they came about, a row a seed."""

    model: str
    task: str
    seeds: list[int]
    free: Tensor  # logits [seed, layer, head] with λ = 0
    plus: Tensor  # with λ > 0
    minus: Tensor  # with λ < 0
    losses: Tensor  # [3 · seed, update]: free, plus, minus
    paths: Tensor  # [3 · seed, point, layer, head]
    examples: list[str] = field(default_factory=list)  # fingerprints
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def g_plus(self) -> Tensor:
        return self.plus.sigmoid()

    @property
    def g_minus(self) -> Tensor:
        return self.minus.sigmoid()


def fit_gates(
    model: Model,
    examples: Sequence[Example],
    seeds: Sequence[int] = range(10),
    schedule: Schedule | None = None,
    *,
    reference: Reference = ZERO,
    task: str = "",
    budget: int | None = None,
    state: State | None = None,
    on_state: Callable[[State], None] | None = None,
    state_every: int = 50,
    progress: Progress | None = None,
) -> GateFit:
    """Three fits for each seed. `on_state` is given the state every so many updates, `state` goes
    on from one; `budget` is the tokens in a pass, which changes no number but by rounding.

    >>> fit = fit_gates(model, examples, seeds=range(10))                     # doctest: +SKIP
    >>> fit.g_plus.shape                                                      # doctest: +SKIP
    torch.Size([10, 30, 9])
    """
    schedule = schedule or Schedule()
    seeds = list(seeds)
    require_fit(len(examples), seeds, schedule)
    warn_of_hard_gates(model, f"{BY_PASSES}, not by gates")
    work = FitWork(model, Rows(model, examples, schedule.batch), schedule, reference)
    state = state or begin(model, seeds, schedule, 3 * len(seeds), budget or work.budget())
    while state.stage < 2:
        phases = ["free"] if state.stage == 0 else ["plus", "minus"]
        fits = [(phase, seed) for phase in phases for seed in seeds]
        work.run(state, fits, on_state, state_every, progress)
        _next_stage(state)
        if on_state is not None:
            on_state(state)
    assert state.free is not None
    plus, minus = state.logits.chunk(2)
    return GateFit(
        model=model.name,
        task=task,
        seeds=seeds,
        free=state.free.cpu(),
        plus=plus.cpu(),
        minus=minus.cpu(),
        losses=state.losses,
        paths=state.paths,
        examples=work.rows.fingerprints,
        settings={
            **vars(schedule),
            "reference": reference.kind,
            "dtype": str(model.dtype).removeprefix("torch."),
            "bos": model.bos,
        },
    )


def require_fit(n: int, seeds: list[int], schedule: Schedule) -> None:
    """Refuse a fit that cannot be."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise HeadlabError("a fit needs seeds, each once")
    if n < schedule.batch:
        raise HeadlabError(
            f"a batch has {count(schedule.batch, 'example')}, and there are {n}; take a smaller "
            "batch or more examples"
        )


def begin(model: Model, seeds: list[int], schedule: Schedule, fits: int, tokens: int) -> State:
    """Every gate drawn evenly between 0 and 1, but where it is pulled: a head that does nothing
    would else keep, and be named by, a start beyond the clamp."""
    shape = model.n_layers, model.n_heads
    drawn = torch.stack(
        [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )
    logits = drawn.logit().clamp(-CLAMP, CLAMP).to(model.device)
    points = -(-schedule.updates // PATH_EVERY)
    return State(
        step=0,
        stage=0,
        tokens=tokens,
        logits=logits,
        first=torch.zeros_like(logits),
        second=torch.zeros_like(logits),
        losses=torch.full((fits, schedule.updates), math.nan),
        paths=torch.full((fits, points, *shape), math.nan),
    )


def _next_stage(state: State) -> None:
    """From the free fit, G+ and G− each go on, with fresh moments."""
    state.stage, state.step = state.stage + 1, 0 if state.stage == 0 else state.step
    if state.stage == 1:
        state.free = state.logits.clone()
        state.logits = state.free.repeat(2, 1, 1)
        state.first, state.second = torch.zeros_like(state.logits), torch.zeros_like(state.logits)


class FitWork:
    """Updates of a fit on one model and set of examples."""

    def __init__(
        self,
        model: Model,
        rows: Rows,
        schedule: Schedule,
        reference: Reference,
    ):
        self.model, self.rows, self.schedule = model, rows, schedule
        self._reference = reference
        self._launched: tuple[Any, ...] = ()  # the update before, read once the next is on its way

    def budget(self) -> int:
        """Tokens in a pass that memory has room for."""
        return graph_budget(self.model, self.rows)

    def run(
        self,
        state: State,
        fits: list[tuple[str, int]],
        on_state: Callable[[State], None] | None = None,
        state_every: int = 50,
        progress: Progress | None = None,
    ) -> None:
        """All updates of a stage that are still to be done."""
        try:
            while state.step < self.schedule.updates:
                self.update(state, fits)
                if progress is not None:
                    progress(len(fits))
                if on_state is not None and state.step % state_every == 0:
                    self.settle()
                    self._require_numbers(state.logits)
                    on_state(state)
        finally:  # interrupted, too, a state is whole
            self.settle()
        self._require_numbers(state.logits)

    def update(self, state: State, fits: list[tuple[str, int]]) -> None:
        """One Adam step of every fit. Its losses are written down by the next, or by `settle`: a
        GPU is not waited for."""
        schedule, step = self.schedule, state.step
        numbers = np.concatenate(
            [
                order_of(
                    *(len(self.rows), schedule.batch, range(step, step + 1)),
                    key=(seed, PHASES.index(phase)),
                )[0]
                for phase, seed in fits
            ]
        )
        losses, slope = self._slopes_in_memory(state, numbers)
        pulls = torch.tensor([schedule.pull(phase) for phase, _ in fits])
        pulls = pulls.to(slope.device, non_blocking=True)
        inside = state.logits.abs() <= CLAMP
        slope = slope - pulls[:, None, None] * inside / slope[0].numel()
        norm = slope.flatten(1).norm(dim=1)
        slope = slope * (schedule.clip / (norm + 1e-6)).clamp(max=1)[:, None, None]
        rates = schedule.rate(fits[0][0], step)
        state.first.lerp_(slope, 1 - _BETAS[0])
        state.second.lerp_(slope.square(), 1 - _BETAS[1])
        scale = (state.second / (1 - _BETAS[1] ** (step + 1))).sqrt() + _EPS
        state.logits = state.logits - rates / (1 - _BETAS[0] ** (step + 1)) * state.first / scale
        path = [state.logits] if step % PATH_EVERY == 0 else []
        flights = [Flight(each, each.device) for each in (losses.detach(), *path)]
        state.step += 1
        self.settle()
        n = len(fits)
        places = slice(len(state.losses) - n, None) if state.stage else slice(0, n)
        self._launched = state, places, step, flights

    def settle(self) -> None:
        """Write down what the last update gave."""
        if not self._launched:
            return
        state, places, step, flights = self._launched
        self._launched = ()
        losses, *path = (flight.land() for flight in flights)
        state.losses[places, step] = losses
        if path:
            state.paths[places, step // PATH_EVERY] = path[0]
        self._require_numbers(losses)

    def _require_numbers(self, found: Tensor) -> None:
        if not bool(found.isfinite().all()):
            raise HeadlabError(f"{self.model.name} gives NaN under gates; take a wider dtype")

    def _slopes_in_memory(self, state: State, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """The slopes; where memory runs out, in passes of half as many tokens from now on."""
        while True:
            try:
                return self.slopes(state.logits, numbers, state.tokens)
            except torch.OutOfMemoryError:
                if state.tokens <= int(self.rows.lengths.max()):
                    raise HeadlabError(
                        f"{self.model.name} does not fit into memory with one example and its "
                        "gradient; take shorter examples or a narrower dtype"
                    ) from None
            state.tokens //= 2
            make_room(self.model)

    def slopes(self, logits: Tensor, numbers: np.ndarray, tokens: int) -> tuple[Tensor, Tensor]:
        """Each fit's loss and its gradient with respect to the logits."""
        return self.summed(logits, self.rows, numbers, tokens, lambda log_probs, _: -log_probs)

    def summed(
        self,
        logits: Tensor,
        rows: Rows,
        numbers: np.ndarray,
        tokens: int,
        value: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The mean over each fit's batch of a value of log p, and its gradient, pass by pass.

        `value` is given the mean log-prob of the target's tokens and the number of each row.
        """
        reference = self._reference
        return summed_slopes(self.model, rows, reference, logits, numbers, tokens, value)
