"""Rows that go forward together, a token a pass, each until it ends.

They are padded on the left, and a row's positions count its own tokens, or go on from those that
its prompt came with; what is hidden in a prompt stays hidden from all that is written. Gates that
act on generated tokens alone leave the prompt as it is: then all masks share one pass over it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab.activations.arm import armed
from headlab.errors import HeadlabError
from headlab.gates import AXES, Gates
from headlab.generation.ending import Written
from headlab.generation.keys import has_room, make_cache
from headlab.generation.replay import WORTH, FixedSteps

if TYPE_CHECKING:
    from headlab.generation.writing import Writer

# The share of a batch that must have ended before it is made smaller: that copies all keys and
# values that stay. Until then ended rows run on, unread. On a CPU a quarter and none at all took
# the same time within 2 %; copies weigh more where steps are short.
_GONE = 0.25


class Batch:
    """Rows that go forward together; row = prompt · masks + mask until some have left."""

    def __init__(self, writer: Writer, prompts: list[int], masks: list[int]):
        self.writer, self.model = writer, writer.model
        self.masks, self.prompts = masks, prompts
        model = self.model
        self.rows = [(mask, prompt) for prompt in prompts for mask in masks]
        self.live = list(range(len(self.rows)))  # places of the rows that have not ended
        self.ids: dict[tuple[int, int], list[int]] = {row: [] for row in self.rows}
        self.written: dict[tuple[int, int], Written] = {}
        own = [writer.prompts[prompt] for prompt in prompts]
        self.tokens = model.tokens(
            own,
            padding="left",
            position_ids=_of(writer.position_ids, prompts),
            hidden=_of(writer.hidden, prompts),
        )
        self.length = self.tokens.ids.shape[1]
        limit = model.max_length or max(writer.reach[number] for number in prompts) + writer.new
        # The tokens for which the model has positions after each prompt, and those to be written.
        self.places = {number: limit - writer.reach[number] for number in prompts}
        self.most = {number: min(writer.new, left) for number, left in self.places.items()}
        longest = max(self.most.values())
        self.room = self.length + longest
        numbers = writer.choice.numbers(own, longest)  # [prompt, step]
        device = model.device
        rows = torch.arange(len(prompts), device=device).repeat_interleave(len(masks))
        self.owners = rows  # [row], the prompt's place in the batch
        self.numbers = numbers.to(device)[rows]
        # [row], what ARM's luck comes from
        self.keys = None if writer.arm is None else writer.arm.keys(own).to(device)[rows]
        self.reach = self.tokens.positions[rows, -1] + 1  # [row], the first new token's position
        self.mask = torch.ones(len(rows), self.room, dtype=torch.bool, device=device)
        self.mask[:, : self.length] = self.tokens.keys[rows]
        self.needs_mask = self._needs_mask()
        picked = torch.tensor(masks)
        self.gates = _by_row(writer.masks[picked].to(device).repeat(len(prompts), 1, 1))
        self.boosts = None
        if writer.boosts is not None:
            chosen = writer.boosts if len(writer.boosts) == 1 else writer.boosts[picked]
            self.boosts = chosen.expand(len(masks), -1, -1, -1).repeat(len(prompts), 1, 1, 1)
            self.boosts = self.boosts.to(device)
        self.cache = make_cache(model, self.room)
        self.done = 0  # tokens written by every live row
        self.counted = 0  # tokens that progress was told of
        self.is_finite = torch.tensor(True)  # [row], all highest logits so far
        self.following = torch.empty(0)  # [row], the newest token
        self.fresh: list[Tensor] = []  # tokens of each row that nobody has looked at
        self._fixed: FixedSteps | None = None  # steps that are replayed

    # --- passes ---

    def read_prompts(self) -> None:
        """The pass over the prompts and the first token: once for all masks where they do not
        act there."""
        tokens, shared = self.tokens, self.writer.positions == "generated"
        if not shared:
            tokens = tokens.picked(self.owners)
        every = len(self.masks) if shared else 1  # a prompt's rows stand beside each other
        with nullcontext() if shared else self.gating(), self._armed(tokens.positions, every):
            logits = self._pass(tokens.ids, tokens.keys, tokens.positions)
        if shared and len(self.masks) > 1:
            self.cache.batch_repeat_interleave(len(self.masks))
            logits = logits[self.owners]
        self._choose(logits)

    def step_on(self, steps: int) -> None:
        """Until there are so many fresh tokens for every live row; then a look at which ended."""
        # No further than the first row may go, an ended one included: past its positions a model
        # has none.
        most = min(self.most[self.rows[place][1]] for place in self.live)
        steps = min(steps, most - self.done, self._places_left())
        for written in range(self.done + len(self.fresh), self.done + steps):
            stop = self.length + written
            where = (self.reach + written - 1)[:, None]
            fixed = self._fixed_steps(stop, most - written)
            if fixed is not None:
                logits = fixed.step(self.following, where, stop)
                self.writer.replays = fixed.works
            else:
                logits = self.ordinary(self.following[:, None], where, stop)
            self._choose(logits)
        self._look()

    def _fixed_steps(self, stop: int, left: int) -> FixedSteps | None:
        """Steps that can be replayed, if they are worth making."""
        fixed = self._fixed
        if fixed is not None and (stop > fixed.width or not self.writer.replays):
            self.release(stop - 1)
            fixed = None
        if fixed is None and self.writer.replays and left >= WORTH and has_room(self.cache):
            fixed = self._fixed = FixedSteps(self, stop)
        return fixed

    def release(self, filled: int = 0) -> None:
        """Let go of recorded steps, with so many places of the cache filled."""
        if self._fixed is not None:
            self._fixed.leave(filled)
            self._fixed = None

    def ordinary(self, ids: Tensor, where: Tensor, stop: int) -> Tensor:
        """Logits after one more token for every row, at place `stop` - 1."""
        with self.gating(), self._armed(where):
            return self._pass(ids, self.mask[:, :stop], where)

    def _pass(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        return self.forward(ids, mask.long() if self.needs_mask else None, positions)

    def forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Logits after the last token of each row, [row, vocabulary]."""
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self.model.takes_positions:
            inputs["position_ids"] = positions
        if self.writer.cuts_logits:
            inputs["logits_to_keep"] = 1
        logits: Tensor = self.model.hf(**inputs).logits[:, -1]
        return logits

    def gating(self) -> AbstractContextManager[Any]:
        """The gates of all rows as they are now."""
        if self.writer.is_plain:
            return nullcontext()
        boost = None if self.boosts is None else self.boosts[None]
        return self.model.gated(self.gates, self.writer.reference, boost=boost)

    def _armed(self, positions: Tensor, every: int = 1) -> AbstractContextManager[Any]:
        """ARM at these positions [row, position], for all rows or each so many."""
        writer = self.writer
        if writer.arm is None or writer.activation is None or self.keys is None:
            return nullcontext()
        return armed(writer.activation, writer.arm, self.keys[::every], positions)

    def _choose(self, logits: Tensor) -> None:
        """The next token of each row, looked at later: until then nobody waits for a GPU. Where a
        row has NaN, infinity or nothing but -infinity, so has its highest logit."""
        choice = self.writer.choice
        self.following = choice.choose(logits, self.numbers[:, self.done + len(self.fresh)])
        self.fresh.append(self.following)
        greedy = choice.temperature is None
        best = logits.gather(1, self.following[:, None])[:, 0] if greedy else logits.amax(-1)
        self.is_finite = best.isfinite() & self.is_finite

    # --- rows that end ---

    def _look(self) -> None:
        """Take up the fresh tokens, and leave rows behind that have ended."""
        block = torch.stack(self.fresh, 1).tolist()
        finite = self.is_finite.tolist()
        if not all(finite[place] for place in self.live):
            raise HeadlabError(
                f"{self.model.name} gives NaN or infinity under these gates; take gates nearer to "
                "1, or a wider dtype"
            )
        new = len(self.fresh)
        self.fresh = []
        self.done += new
        staying = [place for place in self.live if not self._take(place, block[place])]
        if self.writer.progress is not None:
            moved = self._advance(new, staying)
            self.counted += moved
            self.writer.progress(moved)
        self.live = staying
        gone = len(self.rows) - len(self.live)
        if self.live and gone and (gone >= _GONE * len(self.rows) or self._places_left() < 1):
            self._keep()

    def _take(self, place: int, new: list[int]) -> bool:
        """Add a row's new tokens up to its end; say whether it has one."""
        row = self.rows[place]
        written = self.writer.ends.take(self.ids[row], new, self.most[row[1]])
        if written is not None:
            self.written[row] = written
        return written is not None

    def _places_left(self) -> int:
        """How many tokens every row could still take, ended ones among them."""
        return min(self.places[prompt] for _, prompt in self.rows) - self.done

    def _advance(self, steps: int, staying: list[int]) -> int:
        """Tokens that need not be waited for any more."""
        ended = len(self.live) - len(staying)
        return ended * (self.writer.new - (self.done - steps)) + steps * len(staying)

    def _keep(self) -> None:
        """Only the rows that have not ended."""
        self.release(self.length + self.done - 1)
        rows = torch.tensor(self.live, device=self.model.device)
        self.cache.batch_select_indices(rows)
        for name in ("numbers", "reach", "mask", "is_finite"):
            setattr(self, name, getattr(self, name)[rows])
        self.gates = _by_row(self.gates.values[0, rows, :, :, 0])
        if self.boosts is not None:
            self.boosts = self.boosts[rows]
        if self.keys is not None:
            self.keys = self.keys[rows]
        self.following = self.following[rows]
        self.rows = [self.rows[place] for place in self.live]
        self.live = list(range(len(self.rows)))
        self.needs_mask = self._needs_mask()

    def _needs_mask(self) -> bool:
        """Whether there are pads, or tokens that were given places of their own."""
        if self.tokens.given is not None or self.tokens.hidden is not None:
            return True
        return {len(self.writer.prompts[prompt]) for _, prompt in self.rows} != {self.length}


def _by_row(values: Tensor) -> Gates:
    """Each row's own gates, [row, layer, head]."""
    return Gates(values[None, :, :, :, None], " ".join(AXES))


def _of(rows: list[Tensor] | None, numbers: list[int]) -> list[Tensor] | None:
    return None if rows is None else [rows[number] for number in numbers]
