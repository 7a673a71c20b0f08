"""Write on from prompts under gates: masks x prompts in batches, each row until it ends.

Rows of a batch are padded on the left and go forward together; a row's positions count its own
tokens. Gates that act on generated tokens alone leave the prompt as it is: then all masks share one
pass over it. A row that has ended leaves the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from headlab.engine import find_budget
from headlab.errors import HeadlabError
from headlab.gates import AXES, ZERO, Gates, Reference
from headlab.generation.choosing import Choice
from headlab.generation.keys import bytes_per_token, make_cache
from headlab.kernels import gpu_kernels
from headlab.texts import Prompt

if TYPE_CHECKING:
    from headlab.engine import Progress
    from headlab.model import Model

Positions = Literal["generated", "all"]
End = Literal["eos", "stop", "length"]
_LOOK = 8  # tokens a GPU writes before anybody looks whether a row has ended
_MARGIN = 8  # tokens, beyond its bytes, that a stop string may be spread over
_CPU_KEYS = 2 * 2**30  # bytes of keys and values at a time
_GPU_KEYS = 0.5  # of the free memory


@dataclass(frozen=True)
class Written:
    """What one mask wrote after one prompt."""

    text: str  # up to and with the stop string
    ids: list[int]  # the tokens that were generated, an EOS among them
    end: End


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
    rows_at_a_time: int | None = None,
    progress: Progress | None = None,
) -> Generated:
    """Every mask writes on from every prompt, greedily or sampled.

    `positions` says where the gates act: on generated tokens alone, so that the first one is
    always the untouched model's, or on the prompt as well. `boost` is added to the heads' output
    there: directions [layer, head, width], or [mask, layer, head, width]. A row ends after an EOS,
    after one of the `stop` strings, or at `max_new_tokens`. `progress` counts tokens.

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
    stops = [stop] if isinstance(stop, str) else list(stop)
    if "" in stops:
        raise HeadlabError("a stop string is empty; leave it out, or name some text")
    if stops and model.tokenizer is None:
        raise HeadlabError(f"{model.name} has no tokenizer; stop strings need one")
    if isinstance(prompts, str) or (isinstance(prompts, Tensor) and prompts.ndim == 1):
        prompts = [prompts]
    ids = [model.ids(prompt) for prompt in prompts]
    if not ids:
        raise HeadlabError("no prompts were given")
    writer = _Writer(
        model,
        ids,
        _by_mask(model, gates, boost),
        _boosts(model, boost),
        positions,
        max_new_tokens,
        stops,
        Choice(temperature, top_p, seed),
        reference,
        progress,
    )
    model.require_clean()
    with torch.no_grad(), gpu_kernels(model):
        writer.run(rows_at_a_time)
    assert writer.masks is not None
    settings = {
        "positions": positions,
        "max_new_tokens": max_new_tokens,
        "stop": stops,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "reference": reference.kind,
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


class _Writer:
    """All rows of a call, batch after batch."""

    def __init__(
        self,
        model: Model,
        prompts: list[Tensor],
        masks: Tensor,
        boosts: Tensor | None,
        positions: Positions,
        max_new_tokens: int,
        stops: list[str],
        choice: Choice,
        reference: Reference,
        progress: Progress | None,
    ):
        if reference.values is not None and reference.values.shape[1:3] != (1, 1):
            raise HeadlabError(
                "text is written against zero or a mean over positions; a reference of single "
                "prompts or positions has none for new tokens"
            )
        if boosts is not None and len(boosts) not in (1, len(masks)):
            raise HeadlabError(f"{len(boosts)} boosts do not fit {len(masks)} masks")
        self.model, self.prompts, self.masks, self.boosts = model, prompts, masks, boosts
        self.positions, self.new, self.stops = positions, max_new_tokens, stops
        self.choice, self.reference, self.progress = choice, reference, progress
        self.is_plain = bool((masks == 1).all()) and boosts is None
        self.written: dict[tuple[int, int], Written] = {}  # by mask and prompt
        self.eos = _eos_ids(model)
        self._look = _LOOK if model.device.type == "cuda" else 1
        inner = model.hf.get_base_model() if hasattr(model.hf, "get_base_model") else model.hf
        self._cuts = "logits_to_keep" in inspect.signature(inner.forward).parameters
        limit = model.max_length
        longest = max(len(prompt) for prompt in prompts)
        if limit is not None and longest >= limit:
            raise HeadlabError(
                f"a prompt has {longest} tokens, which leaves {model.name} no room to write "
                f"({limit} at most)"
            )

    def rows(self) -> list[list[Written]]:
        return [
            [self.written[mask, prompt] for prompt in range(len(self.prompts))]
            for mask in range(len(self.masks))
        ]

    def run(self, rows_at_a_time: int | None) -> None:
        for prompts, masks in self._batches(rows_at_a_time):
            self._run_batch(prompts, masks)

    def _run_batch(self, prompts: list[int], masks: list[int]) -> None:
        """All of these masks on all of these prompts; in halves where memory runs out."""
        try:
            self._write(prompts, masks)
            return
        except torch.OutOfMemoryError:
            if len(prompts) == len(masks) == 1:
                raise HeadlabError(
                    f"a prompt of {len(self.prompts[prompts[0]])} tokens and {self.new} new ones "
                    "do not fit into memory, even alone"
                ) from None
        self.model.back_offs += 1
        torch.cuda.empty_cache()
        if len(prompts) > 1:
            half = len(prompts) // 2
            parts = [(prompts[:half], masks), (prompts[half:], masks)]
        else:
            half = len(masks) // 2
            parts = [(prompts, masks[:half]), (prompts, masks[half:])]
        for part in parts:
            self._run_batch(*part)

    def _batches(self, rows_at_a_time: int | None) -> Iterator[tuple[list[int], list[int]]]:
        """Prompts of like length together, as many as memory and a pass over them allow."""
        order = sorted(range(len(self.prompts)), key=lambda n: -len(self.prompts[n]))
        masks = list(range(len(self.masks)))
        budget, room = find_budget(self.model), self._room_for_keys()
        start = 0
        while start < len(order):
            length = len(self.prompts[order[start]])
            fit = max(1, room // ((length + self.new) * bytes_per_token(self.model)))
            rows = min(fit, rows_at_a_time or fit)
            width = min(len(masks), rows)  # masks beside each other
            if self.positions == "all":  # each reads the prompt for itself
                width = max(1, min(width, budget // length))
            passes = 1 if self.positions == "generated" else width
            count = max(1, min(rows // width, budget // (length * passes)))
            own = order[start : start + count]
            for first in range(0, len(masks), width):
                yield own, masks[first : first + width]
            start += count

    def _room_for_keys(self) -> int:
        if self.model.device.type != "cuda":
            return _CPU_KEYS
        free, _ = torch.cuda.mem_get_info(self.model.device)
        return int(free * _GPU_KEYS)

    def _write(self, prompts: list[int], masks: list[int]) -> None:
        batch = _Batch(self, prompts, masks)
        try:
            batch.read_prompts()
            while batch.live:
                batch.step_on(self._look)
        except torch.OutOfMemoryError:
            if self.progress is not None:
                self.progress(-batch.counted)  # it will be written again
            raise
        self.written.update(batch.written)


class _Batch:
    """Rows that go forward together; row = prompt · masks + mask until some have left."""

    def __init__(self, writer: _Writer, prompts: list[int], masks: list[int]):
        self.writer, self.model = writer, writer.model
        self.masks, self.prompts = masks, prompts
        model = self.model
        self.live = [(mask, prompt) for prompt in prompts for mask in masks]
        self.ids: dict[tuple[int, int], list[int]] = {row: [] for row in self.live}
        self.written: dict[tuple[int, int], Written] = {}
        own = [writer.prompts[prompt] for prompt in prompts]
        self.tokens = model.tokens(own, padding="left")
        self.length = self.tokens.ids.shape[1]
        limit = model.max_length or self.length + writer.new
        self.most = {  # new tokens after each prompt
            number: min(writer.new, limit - len(writer.prompts[number])) for number in prompts
        }
        longest = max(self.most.values())
        self.room = self.length + longest
        numbers = writer.choice.numbers(own, longest)  # [prompt, step]
        device = model.device
        rows = torch.arange(len(prompts), device=device).repeat_interleave(len(masks))
        self.owners = rows  # [row], the prompt's place in the batch
        self.numbers = numbers.to(device)[rows]
        self.lengths = self.tokens.mask.sum(1)[rows]  # [row], tokens of the prompt
        self.mask = torch.ones(len(rows), self.room, dtype=torch.bool, device=device)
        self.mask[:, : self.length] = self.tokens.mask[rows]
        self.is_padded = len({len(prompt) for prompt in own}) > 1
        picked = torch.tensor(masks)
        self.gates = writer.masks[picked].to(device).repeat(len(prompts), 1, 1)  # [row, ...]
        self.boosts = None
        if writer.boosts is not None:
            chosen = writer.boosts if len(writer.boosts) == 1 else writer.boosts[picked]
            self.boosts = chosen.expand(len(masks), -1, -1, -1).repeat(len(prompts), 1, 1, 1)
            self.boosts = self.boosts.to(device)
        self.cache = make_cache(model, self.room)
        self.done = 0  # tokens written by every live row
        self.counted = 0  # tokens that progress was told of
        self.is_finite = torch.tensor(True)  # all logits so far
        self.following: Tensor | None = None  # [row], the newest token

    # --- passes ---

    def read_prompts(self) -> None:
        """The pass over the prompts and the first token: once for all masks where they do not
        act there."""
        tokens, shared = self.tokens, self.writer.positions == "generated"
        if not shared:
            tokens = tokens._replace(ids=tokens.ids[self.owners], mask=tokens.mask[self.owners])
        with nullcontext() if shared else self._gated():
            logits = self._pass(tokens.ids, tokens.mask, tokens.positions)
        if shared and len(self.masks) > 1:
            self.cache.batch_select_indices(self.owners)
            logits = logits[self.owners]
        self.is_finite = logits.isfinite().all()  # looked at with the tokens
        self.following = self._choose(logits)
        self._look([self.following])

    def step_on(self, steps: int) -> None:
        """So many more tokens for every live row, then a look at which have ended."""
        # No further than the first row may go: past its positions a model has none.
        steps = min(steps, min(self.most[prompt] for _, prompt in self.live) - self.done)
        fresh: list[Tensor] = []
        with self._gated():
            for _ in range(steps):
                assert self.following is not None
                stop = self.length + self.done + len(fresh)
                where = (self.lengths + self.done + len(fresh) - 1)[:, None]
                logits = self._pass(self.following[:, None], self.mask[:, :stop], where)
                self.is_finite = logits.isfinite().all() & self.is_finite
                self.following = self._choose(logits, len(fresh))
                fresh.append(self.following)
        self._look(fresh)

    def _pass(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """Logits after the last token of each row, [row, vocabulary]."""
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask.long() if self.is_padded else None,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self.model.takes_positions:
            inputs["position_ids"] = positions
        if self.writer._cuts:
            inputs["logits_to_keep"] = 1
        logits: Tensor = self.model.hf(**inputs).logits[:, -1]
        return logits

    def _gated(self) -> AbstractContextManager[Any]:
        if self.writer.is_plain:
            return nullcontext()
        gates = Gates(self.gates[None, :, :, :, None], " ".join(AXES))
        boost = None if self.boosts is None else self.boosts[None]
        return self.model.gated(gates, self.writer.reference, boost=boost)

    def _choose(self, logits: Tensor, ahead: int = 0) -> Tensor:
        return self.writer.choice.choose(logits, self.numbers[:, self.done + ahead])

    # --- rows that end ---

    def _look(self, fresh: list[Tensor]) -> None:
        """Take up new tokens, and leave rows behind that have ended."""
        block = torch.stack(fresh, 1).tolist()
        if not bool(self.is_finite):
            raise HeadlabError(
                f"{self.model.name} gives NaN or infinity under these gates; take gates nearer to "
                "1, or a wider dtype"
            )
        self.done += len(fresh)
        staying = []
        for number, (row, new) in enumerate(zip(self.live, block, strict=True)):
            ended = self._take(row, new)
            if not ended:
                staying.append(number)
        if self.writer.progress is not None:
            moved = self._advance(len(fresh), staying)
            self.counted += moved
            self.writer.progress(moved)
        self.live = [self.live[number] for number in staying]
        if self.live and len(staying) < len(block):
            self._keep(torch.tensor(staying, device=self.model.device))

    def _take(self, row: tuple[int, int], new: list[int]) -> bool:
        """Add a row's new tokens up to its end; say whether it has one."""
        ids, most = self.ids[row], self.most[row[1]]
        before = len(ids)
        end: End | None = None
        for token in new:
            ids.append(token)
            if token in self.writer.eos:
                end = "eos"
            elif len(ids) == most:
                end = "length"
            if end is not None:
                break
        if (text := self._stopped(ids, before)) is not None:
            end = "stop"
        if end is None:
            return False
        self.written[row] = Written(
            self.model.continuation(ids) if text is None else text, ids, end
        )
        return True

    def _stopped(self, ids: list[int], before: int) -> str | None:
        """The text up to a stop string that the tokens after the first `before` complete; `ids`
        is cut after it. None where there is none."""
        stops = self.writer.stops
        if not stops:
            return None
        tail = len(ids) - before + max(len(stop.encode()) for stop in stops) + _MARGIN
        if _stop_at(self.model.continuation(ids[-tail:]), stops) is None:
            return None
        for count in range(before + 1, len(ids) + 1):
            text = self.model.continuation(ids[:count])
            if (cut := _stop_at(text, stops)) is not None:
                del ids[count:]
                return text[:cut]
        return None

    def _advance(self, steps: int, staying: list[int]) -> int:
        """Tokens that need not be waited for any more."""
        ended = len(self.live) - len(staying)
        return ended * (self.writer.new - (self.done - steps)) + steps * len(staying)

    def _keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        for name in ("numbers", "lengths", "mask", "gates", "owners"):
            setattr(self, name, getattr(self, name)[rows])
        if self.boosts is not None:
            self.boosts = self.boosts[rows]
        assert self.following is not None
        self.following = self.following[rows]


def _eos_ids(model: Model) -> set[int]:
    """The tokens after which the model's own `generate` would stop."""
    own = getattr(model.hf.generation_config, "eos_token_id", None)
    if own is None:
        own = model.hf.config.get_text_config().eos_token_id
    if own is None and model.tokenizer is not None:
        own = model.tokenizer.eos_token_id
    return set() if own is None else {own} if isinstance(own, int) else set(own)


def _stop_at(text: str, stops: list[str]) -> int | None:
    """Where the first stop string ends; None where there is none."""
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return min(ends) if ends else None
