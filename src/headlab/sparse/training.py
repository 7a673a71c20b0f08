"""Sparse post-training: close edges while a constraint holds, and its dense twin.

A step draws gates, compares the model with the dense one it came from, and follows

    objective + β · mean of sigmoid(s + b) over edges

where the objective is the distance to the dense model, with the text's own loss where that is the
constraint. β grows while the constraint has room and shrinks when it has none. The twin learns the
same contexts in the same order, by the text's loss alone, with all edges open.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError
from headlab.model import Model
from headlab.sparse.adapting import with_adapters
from headlab.sparse.gating import gate_attention
from headlab.sparse.objective import Losses, distilled

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headlab.sparse.corpus import Corpus
    from headlab.sparse.settings import Settings

RUNAWAY = 3.0  # nats above the dense model's loss, over
_RECENT = 20  # steps


@dataclass
class State:
    """Where training stands, beside weights and moments."""

    step: int = 0
    beta: float = 0.0
    value: float | None = None  # the constraint's running mean
    rows: int = 0  # contexts in a pass
    log: list[dict[str, float]] = field(default_factory=list)  # a row a step
    measured: list[dict[str, Any]] = field(default_factory=list)  # what it was worth at some steps


class Unsound(HeadlabError):  # noqa: N818, a sentence as all others
    """The loss is not a number, or runs away."""


class Trainer:
    """Steps of one training: of the sparse model, or of its dense twin."""

    def __init__(
        self,
        load: Callable[[], Model],
        corpus: Corpus,
        settings: Settings,
        twin: bool = False,
        dtype: torch.dtype = torch.float32,
    ):
        self.corpus, self.settings, self.dtype = corpus, settings, dtype
        loaded = load()
        hf = loaded.hf
        if settings.lora is not None:
            hf = with_adapters(hf, settings.lora)
            self.dense: PreTrainedModel | None = None  # the same one without its adapters
        else:
            hf.requires_grad_(True)
            self.dense = load().hf
        self.model = Model(hf, loaded.tokenizer, name=loaded.name, bos=loaded.bos_policy)
        self.gating = None
        if not twin:
            start = torch.full((self.model.n_layers, self.model.n_heads), settings.start)
            self.gating = gate_attention(hf, self.model.seam, loaded.name, start)
        self.weights = {name: each for name, each in hf.named_parameters() if each.requires_grad}
        self.gates = [] if self.gating is None else self.gating.parameters()
        for each in self.gates:
            each.requires_grad_(True)
        groups = [
            {"params": list(self.weights.values()), "rate": settings.rate},
            {"params": self.gates, "rate": settings.gate_rate},
        ]
        fused = self.model.device.type == "cuda"
        self.optimiser = torch.optim.Adam([g for g in groups if g["params"]], lr=0.0, fused=fused)
        self._make_moments(fused)
        self.state = State(beta=settings.beta, rows=settings.batch)

    def _make_moments(self, fused: bool) -> None:
        """Adam's, as it makes them itself at its first step: memory that is short is so at once."""
        for each in (*self.weights.values(), *self.gates):
            self.optimiser.state[each] = {
                "step": torch.zeros((), device=each.device if fused else "cpu"),
                "exp_avg": torch.zeros_like(each, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(each, memory_format=torch.preserve_format),
            }

    # --- a step ---

    def step(self) -> dict[str, float]:
        """One update; gives its row of the log. Raises where the loss is not a number or runs
        away, before anything is kept of it."""
        state, settings = self.state, self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * settings.scale(state.step)
        row = self._slopes_in_memory()
        every = [*self.weights.values(), *self.gates]
        norm = float(nn.utils.clip_grad_norm_(every, settings.clip))
        self._require_sound(row, norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        row |= {
            "step": state.step + 1,
            "norm": norm,
            "rate": settings.rate * settings.scale(state.step),
        }
        if self.gating is not None:
            row |= self._follow(row)
        state.log.append(row)
        state.step += 1
        return row

    def _follow(self, row: dict[str, float]) -> dict[str, float]:
        """β after this step, and the running means behind it."""
        state, settings = self.state, self.settings
        found = row["kl"] if settings.constraint == "kl" else row["loss"] - row["dense_loss"]
        before = {"beta": state.beta}
        mean = found if state.value is None else state.value
        state.value = settings.smooth * mean + (1 - settings.smooth) * found
        state.beta = settings.next_beta(state.beta, state.value)
        return {**before, "constraint": state.value}

    def _require_sound(self, row: dict[str, float], norm: float) -> None:
        step = self.state.step + 1
        if not all(math.isfinite(value) for value in (*row.values(), norm)):
            raise Unsound(f"the loss is not a number at step {step}")
        recent = [*self.state.log[1 - _RECENT :], row]
        first = self.state.log[0]["loss"] if self.state.log else row["loss"]  # a twin's: dense yet
        above = [each["loss"] - each.get("dense_loss", first) for each in recent]
        if len(above) == _RECENT and float(np.mean(above)) > RUNAWAY:
            raise Unsound(
                f"the loss runs away: over {_RECENT} steps before step {step} it was "
                f"{np.mean(above):.1f} nats above the dense model's"
            )

    def _slopes_in_memory(self) -> dict[str, float]:
        """Slopes of a batch; where memory runs out, in passes of half as many contexts from now
        on."""
        while True:
            try:
                return self._slopes()
            except torch.OutOfMemoryError:
                if self.state.rows == 1:
                    raise HeadlabError(
                        f"{self.model.name} does not fit into memory with one context of "
                        f"{self.settings.context} tokens; take a shorter --context or --lora"
                    ) from None
            self.state.rows = -(-self.state.rows // 2)
            self.optimiser.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()

    def _slopes(self) -> dict[str, float]:
        settings, state = self.settings, self.state
        batch = self.corpus.batch(state.step, settings.batch, settings.seed)
        ids = torch.from_numpy(batch).long().to(self.model.device)
        sums = torch.zeros(5, dtype=torch.float64)  # kl, loss, dense loss, penalty, edges
        places = ids[:, 1:].numel()
        for number, first in enumerate(range(0, len(ids), state.rows)):
            part = ids[first : first + state.rows]
            weight = len(part) / len(ids)
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                if self.gating is not None:
                    seed = (settings.seed * 1_000_003 + state.step) * 1_009 + number
                    stack.enter_context(self.gating.drawing(seed))
                losses = self._losses(part)
                total = losses.objective / places
                penalty = edges = total.new_zeros(())
                if self.gating is not None:
                    penalty, shares = self.gating.collected()
                    edges = shares.mean()
                    total = total + state.beta * weight * penalty
                total.backward()  # type: ignore[no-untyped-call]
            told = [losses.kl / places, losses.loss / places, losses.dense / places]
            told += [weight * penalty.detach(), weight * edges]
            sums += torch.stack([each.double().cpu() for each in told])
        names = ("kl", "loss", "dense_loss", "penalty", "edges")
        found = dict(zip(names, sums.tolist(), strict=True))
        if self.gating is None:  # a twin is asked for nothing but the text
            return {"loss": found["loss"]}
        return found

    def _losses(self, ids: Tensor) -> Losses:
        targets = ids[:, 1:].flatten()
        with self._narrow():
            logits = self.model.hf(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
            if self.gating is None:
                return distilled(logits, None, targets, 0.0, 1.0)
            with torch.no_grad():
                dense = self.dense_logits(ids)[:, :-1].flatten(0, 1)
        return distilled(logits, dense, targets, self.settings.distill, self.settings.own_loss)

    def dense_logits(self, ids: Tensor) -> Tensor:
        """Of the model that training began with."""
        if self.dense is not None:
            logits: Tensor = self.dense(input_ids=ids, use_cache=False).logits
            return logits
        with ExitStack() as stack:
            if self.gating is not None:
                stack.enter_context(self.gating.dense())
            stack.enter_context(self.model.hf.disable_adapter())
            logits = self.model.hf(input_ids=ids, use_cache=False).logits
        return logits

    def _narrow(self) -> AbstractContextManager[Any]:
        """Weights stay as they are; on a GPU products may be in a narrower dtype."""
        if self.dtype == torch.float32 or self.model.device.type != "cuda":
            return nullcontext()
        return torch.autocast("cuda", self.dtype)

    # --- keeping it ---

    def tensors(self) -> dict[str, Tensor]:
        """Weights, gates and Adam's moments by name: with `state` all it takes to go on."""
        found = {f"weight {name}": each for name, each in self.weights.items()}
        found |= {f"gate {number}": each for number, each in enumerate(self.gates)}
        for name, each in list(found.items()):
            for moment, value in self.optimiser.state.get(each, {}).items():
                found[f"{moment} {name}"] = value
        return {name: each.detach() for name, each in found.items()}

    def restore(self, tensors: dict[str, Tensor], state: State) -> None:
        """Go on from what was kept."""
        own = {f"weight {name}": each for name, each in self.weights.items()}
        own |= {f"gate {number}": each for number, each in enumerate(self.gates)}
        kept = {name.partition(" ")[0] for name in tensors} - {"weight", "gate"}
        for name, each in own.items():
            each.data.copy_(tensors[name])
            moments = {moment: tensors[f"{moment} {name}"] for moment in kept}
            # Adam counts its steps beside the weights, or on the CPU: there they are the same.
            self.optimiser.state[each] = {m: v.to(each.device) for m, v in moments.items()}
        self.state = state
        if self.gating is None:  # states of older versions have more of a twin
            for row in state.log:
                row.pop("kl", None), row.pop("dense_loss", None)
