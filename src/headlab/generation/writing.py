"""Write on from prompts under gates: `generate`, masks x prompts in batches."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from headlab.activations import Arm, find_activation
from headlab.budgets import make_room
from headlab.errors import HeadlabError
from headlab.gates import ZERO, Gates, Reference
from headlab.generation.batch import Batch
from headlab.generation.choosing import Choice
from headlab.generation.ending import Ends, Written
from headlab.generation.planning import Plan
from headlab.generation.products import is_worth_joining, joined_products
from headlab.generation.replay import can_replay, is_on_one_gpu
from headlab.sdpa import grouped_queries, short_rows
from headlab.standins import gpu_kernels
from headlab.texts import PerPrompt, Prompt

if TYPE_CHECKING:
    from headlab.engine import Progress
    from headlab.model import Model

Positions = Literal["generated", "all"]
_LOOK = 8  # tokens a GPU writes before anybody looks whether a row has ended


@dataclass(frozen=True)
class Generated:
    """Texts by mask and prompt."""

    rows: list[list[Written]]  # [mask][prompt]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> list[list[str]]:
        """[mask][prompt]"""
        return [[written.text for written in row] for row in self.rows]


def generate(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    gates: Gates | Tensor | None = None,
    *,
    positions: Positions = "generated",
    max_new_tokens: int = 128,
    stop: str | Sequence[str] = (),
    temperature: float | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    reference: Reference = ZERO,
    boost: Tensor | None = None,
    arm: Arm | None = None,
    position_ids: PerPrompt = None,
    hidden: PerPrompt = None,
    rows_at_a_time: int | None = None,
    replay: bool = True,
    progress: Progress | None = None,
) -> Generated:
    """Every mask writes on from every prompt, greedily or sampled.

    `positions` says where the gates act: on generated tokens alone, so that the first one is
    always the untouched model's, or on the prompt as well. `boost` is added to the heads' output
    there: directions [layer, head, width], or [mask, layer, head, width]. `arm` changes the first
    MLP's activations, at every token of the prompt and after it, for every mask. A row ends after
    an EOS, after one of the `stop` strings or special tokens, or at `max_new_tokens`. `progress`
    counts tokens.

    `position_ids` are the positions of each prompt's tokens, from 0 and growing (None: 0, 1, 2
    ...); what is written goes on after the last. `hidden` marks tokens of each prompt that keep
    their positions and that no token looks at. A gap of 55 positions is 55 hidden tokens.

    A GPU records a step and replays it, where the model allows it and the replay gives the step's
    logits; `replay=False` switches that off.

    >>> found = headlab.generate(model, "The capital of France is", max_new_tokens=3)
    ...                                                                       # doctest: +SKIP
    >>> found.texts                                                           # doctest: +SKIP
    [[' Paris.']]
    """
    if positions not in get_args(Positions):
        raise HeadlabError(f"gates act on generated or on all positions, not {positions!r}")
    if max_new_tokens < 1:
        raise HeadlabError(f"at least one token is written, not {max_new_tokens}")
    if rows_at_a_time is not None and rows_at_a_time < 1:
        raise HeadlabError(f"at least one row at a time, not {rows_at_a_time}")
    if arm is not None and not isinstance(arm, Arm):
        raise HeadlabError(f"arm is an Arm, e.g. Arm(c=0.13, p1=99.5), not {arm!r}")
    stops = [stop] if isinstance(stop, str) else list(stop)
    ends = Ends(model, stops)
    if isinstance(prompts, str) or (isinstance(prompts, Tensor) and prompts.ndim == 1):
        prompts = [prompts]
    ids = [model.ids(prompt) for prompt in prompts]
    if not ids:
        raise HeadlabError("no prompts were given")
    model.require_clean()
    writer = Writer(
        model,
        ids,
        _by_mask(model, gates, boost),
        _boosts(model, boost),
        positions,
        max_new_tokens,
        ends,
        Choice(temperature, top_p, seed),
        reference,
        progress,
        arm,
        *model.placed(ids, position_ids, hidden),
        replay=replay,
    )
    with torch.no_grad(), gpu_kernels(model), short_rows(), grouped_queries():
        writer.run(rows_at_a_time)
    settings = {
        "positions": positions,
        "max_new_tokens": max_new_tokens,
        "stop": stops,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "reference": reference.kind,
        **({} if arm is None else {"arm": arm.as_dict()}),
        **writer.told_places(),
    }
    return Generated(writer.rows(), settings)


def _by_mask(model: Model, gates: Gates | Tensor | None, boost: Tensor | None) -> Tensor:
    """[mask, layer, head]"""
    if gates is None:
        n = 1 if boost is None or boost.ndim == 3 else len(boost)
        return torch.ones(n, model.n_layers, model.n_heads)
    gates = gates if isinstance(gates, Gates) else Gates(gates)
    model.require_shape(gates)
    if gates.values.shape[1] > 1 or gates.values.shape[-1] > 1:
        raise HeadlabError(
            "text is written under one gate for each mask, layer and head; gates that differ "
            "between examples or positions are not"
        )
    return gates.values[:, 0, :, :, 0]


def _boosts(model: Model, boost: Tensor | None) -> Tensor | None:
    """[mask|1, layer, head, width]"""
    if boost is None:
        return None
    boost = boost if boost.ndim == 4 else boost[None]
    shape = (model.n_layers, model.n_heads, model.head_width)
    if boost.ndim != 4 or tuple(boost.shape[1:]) != shape:
        raise HeadlabError(
            f"a boost has the shape {list(shape)} or [mask, ...] of it, not {list(boost.shape)}"
        )
    if not torch.isfinite(boost).all():
        raise HeadlabError("a boost must be of finite numbers; NaN or infinity was given")
    return boost


class Writer:
    """All rows of a call, batch after batch."""

    def __init__(
        self,
        model: Model,
        prompts: list[Tensor],
        masks: Tensor,
        boosts: Tensor | None,
        positions: Positions,
        max_new_tokens: int,
        ends: Ends,
        choice: Choice,
        reference: Reference,
        progress: Progress | None,
        arm: Arm | None = None,
        position_ids: list[Tensor] | None = None,
        hidden: list[Tensor] | None = None,
        replay: bool = False,
    ):
        if reference.values is not None and reference.values.shape[1:3] != (1, 1):
            raise HeadlabError(
                "text is written against zero or a mean over positions; a reference of single "
                "prompts or positions has none for new tokens"
            )
        if boosts is not None and len(boosts) not in (1, len(masks)):
            raise HeadlabError(f"{len(boosts)} boosts do not fit {len(masks)} masks")
        self.model, self.prompts, self.masks, self.boosts = model, prompts, masks, boosts
        self.positions, self.new, self.ends = positions, max_new_tokens, ends
        self.choice, self.reference, self.progress = choice, reference, progress
        self.arm = arm
        self.activation = None if arm is None else find_activation(model)
        self.is_plain = bool((masks == 1).all()) and boosts is None
        self.written: dict[tuple[int, int], Written] = {}  # by mask and prompt
        self.replays = (
            replay and arm is None and can_replay(model)
        )  # until a step turns out otherwise
        self.replayed = False  # a replay has been seen to give what steps give
        self.joins = is_on_one_gpu(model) and is_worth_joining(model)
        self._look = _LOOK if model.device.type == "cuda" else 1
        inner = model.hf.get_base_model() if hasattr(model.hf, "get_base_model") else model.hf
        self.cuts_logits = "logits_to_keep" in inspect.signature(inner.forward).parameters
        self.position_ids, self.hidden = position_ids, hidden
        if position_ids is None:
            self.reach = [len(prompt) for prompt in prompts]  # positions up to its end
        else:
            self.reach = [int(own[-1]) + 1 for own in position_ids]
        limit, longest = model.max_length, max(self.reach)
        if limit is not None and longest >= limit:
            what = "tokens" if position_ids is None else "positions"
            raise HeadlabError(
                f"a prompt has {longest} {what}, which leaves {model.name} no room to write "
                f"({limit} at most)"
            )
        for number, own in enumerate(hidden or [], 1):
            if own[-1]:
                raise HeadlabError(
                    f"the last token of prompt {number} is hidden, and nothing can be written "
                    "after it; hide only tokens before it"
                )

    def told_places(self) -> dict[str, int]:
        """How many positions the prompts leave out, and how many tokens are hidden, at most."""
        told = {}
        if self.position_ids is not None:
            told["gap"] = max(int(own[-1]) + 1 - len(own) for own in self.position_ids)
        if self.hidden is not None:
            told["hidden"] = max(int(own.sum()) for own in self.hidden)
        return told

    def rows(self) -> list[list[Written]]:
        return [
            [self.written[mask, prompt] for prompt in range(len(self.prompts))]
            for mask in range(len(self.masks))
        ]

    def _joined(self) -> AbstractContextManager[None]:
        """Fewer and wider products, where they are worth it."""
        return joined_products(self.model.hf) if self.joins else nullcontext()

    def run(self, rows_at_a_time: int | None) -> None:
        plan = Plan(
            self.model,
            self.new,
            self.choice,
            shares_prompts=self.positions == "generated",
            cuts_logits=self.cuts_logits,
            rows_at_a_time=rows_at_a_time,
        )
        lengths = [len(prompt) for prompt in self.prompts]
        with self._joined():
            for prompts, masks in plan.batches(lengths, len(self.masks)):
                self._run_batch(plan, prompts, masks)

    def _run_batch(self, plan: Plan, prompts: list[int], masks: list[int]) -> None:
        """All of these masks on all of these prompts; in halves where memory runs out, or did."""
        rows = len(prompts) * len(masks)
        if plan.allows(rows):
            try:
                self._write(prompts, masks)
                return
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise HeadlabError(
                        f"a prompt of {len(self.prompts[prompts[0]])} tokens and {self.new} new "
                        "ones do not fit into memory, even alone"
                    ) from None
            plan.shrink(rows)
            make_room(self.model)
        if len(prompts) > 1:
            half = len(prompts) // 2
            parts = [(prompts[:half], masks), (prompts[half:], masks)]
        else:
            half = len(masks) // 2
            parts = [(prompts, masks[:half]), (prompts, masks[half:])]
        for part in parts:
            self._run_batch(plan, *part)

    def _write(self, prompts: list[int], masks: list[int]) -> None:
        batch = Batch(self, prompts, masks)
        try:
            batch.read_prompts()
            while batch.live:
                batch.step_on(self._look)
        except torch.OutOfMemoryError:
            if self.progress is not None:
                self.progress(-batch.counted)  # it will be written again
            raise
        finally:
            batch.release()
        self.written.update(batch.written)
