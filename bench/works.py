"""The works that are raced: what Headlab does whole, and others whole or on a sample.

Each work draws its own prompts, knows what every way is asked for, how the answers compare, and how
fast it could be at best: arithmetic at the measured matrix rate, bytes at the measured bandwidth.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from common import block_weights, text
from peers import Cannot
from plain_fit import PlainFit
from torch import Tensor

import headlab
from headlab import Example, Gates, HeadlabError, Model
from headlab.gatefits import Schedule
from headlab.gatefits.fitting import FitWork, begin
from headlab.gatefits.rows import Rows
from headlab.gates import ZERO
from headlab.generation.keys import bytes_per_token
from headlab.gradients import gate_gradients


class Work:
    """One problem."""

    kind = ""
    is_text = False  # answers are tokens

    def __init__(self, model: Model, prompts: int, length: int):
        self.model, self.prompts, self.length = model, prompts, length
        random = torch.Generator().manual_seed(1)
        shape = prompts, length
        self.ids, self.others = (
            torch.randint(1, model.vocabulary, shape, generator=random) for _ in range(2)
        )
        self.others[:, -1] = self.ids[:, -1]
        self.targets = torch.randint(1, model.vocabulary, (prompts,), generator=random)
        self.n_heads = model.n_layers * model.n_heads

    @cached_property
    def examples(self) -> list[Example]:
        return [
            Example(text(own), f" w{target}", counterfactual=text(other), id=str(number))
            for number, (own, other, target) in enumerate(
                zip(self.ids.tolist(), self.others.tolist(), self.targets.tolist(), strict=True)
            )
        ]

    @property
    def size(self) -> str:
        return f"{self.prompts} x {self.length}"

    def ours(self, little: bool = False) -> Tensor:
        """Headlab's answer; for a warm-up `little` may do less, whose answer is not looked at."""
        raise NotImplementedError

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        """A peer's answer; `little` of it for a warm-up, which is also compared with float32."""
        raise NotImplementedError

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        """The part of our answer that peers give, or that they give for a `little`."""
        return ours

    def ways(self, peer: Any) -> dict[str, Any]:
        """The ways in which a peer does this work, by the name of its method."""
        return {"": peer}

    def scale(self, way: str) -> float:
        """What its seconds are multiplied by, where it does a sample."""
        return 1.0

    def floor(self, rate: float, wide: float) -> float:
        raise NotImplementedError

    @property
    def _dense(self) -> float:
        """Operations of one pass over all prompts."""
        return 2 * block_weights(self.model) * self.prompts * self.length

    def _there(self, *tensors: Tensor) -> list[Tensor]:
        return [each.to(self.model.device) for each in tensors]


class Ablate(Work):
    """Every head off once. A head leaves all below it as it was: half the arithmetic is left. It
    does the same to what all prompts begin with."""

    kind = "ablate"

    def __init__(self, model: Model, prompts: int, length: int, sample: int = 0, shared: int = 0):
        """`shared`: how many tokens all prompts begin with."""
        super().__init__(model, prompts, length)
        if shared > length:
            raise HeadlabError(f"prompts of {length} tokens share at most {length}")
        self.ids[:, :shared] = self.ids[0, :shared]
        self.own = 1 - shared / length * (1 - 1 / prompts)
        step = max(1, self.n_heads // sample) if sample else 1
        self.heads = list(range(0, self.n_heads, step))
        self.gates = Gates.each_head(model)

    def scale(self, way: str) -> float:
        return self.n_heads / len(self.heads)

    def ours(self, little: bool = False) -> Tensor:
        return headlab.measure(self.model, self.examples, self._gates(little)).values

    def _gates(self, little: bool) -> Gates:
        return Gates(self.gates.values[self._heads(True), 0, :, :, 0]) if little else self.gates

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        ids, targets = self._there(self.ids, self.targets)
        return peer.ablate(ids, targets, self._heads(little))

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        return ours[self._heads(little)]

    def _heads(self, little: bool) -> list[int]:
        return self.heads[:: max(1, len(self.heads) // 8)] if little else self.heads

    def ways(self, peer: Any) -> dict[str, Any]:
        more = getattr(peer, "together", None)
        if more is None or self.model.device.type not in more.devices:
            return {"": peer}
        return {"": peer, more.how: more}

    def floor(self, rate: float, wide: float) -> float:
        return self.n_heads * self._dense / 2 * self.own / rate


class Patch(Ablate):
    """Every head from the counterfactual once. Where they begin alike nothing changes, either."""

    kind = "patch"

    def __init__(self, model: Model, prompts: int, length: int, sample: int = 0, alike: int = 0):
        """`alike`: how many tokens a prompt and its counterfactual have in common at first."""
        super().__init__(model, prompts, length, sample)
        if alike > length - 2:  # the last token is the same in any case
            raise HeadlabError(f"prompts of {length} tokens have at most {length - 2} alike")
        self.others[:, :alike] = self.ids[:, :alike]
        self.changed = 1 - alike / length

    def floor(self, rate: float, wide: float) -> float:
        return super().floor(rate, wide) * self.changed

    def scale(self, way: str) -> float:
        return (self.n_heads + 1) / (len(self.heads) + 1)  # one pass over the counterfactuals

    def ours(self, little: bool = False) -> Tensor:
        return headlab.measure(
            self.model, self.examples, self._gates(little), reference="counterfactual"
        ).values

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        there = self._there(self.ids, self.others, self.targets)
        return peer.patch(*there, self._heads(little))


class Attribute(Work):
    """Integrated gradients of all gates: there and back for every step, weights frozen. (A ranking
    by `headlab.rank` also measures its noise floor, which takes longer; no peer has one.)"""

    kind = "attribute"

    def __init__(self, model: Model, prompts: int, length: int, steps: int = 5):
        super().__init__(model, prompts, length)
        self.steps = steps
        at = (torch.arange(steps) + 0.5) / steps
        self.gates = Gates(at[:, None, None].repeat(1, model.n_layers, model.n_heads))

    def ours(self, little: bool = False) -> Tensor:
        found = gate_gradients(self.model, self.examples, self.gates, reference="counterfactual")
        return found.gradient.mean(0)  # [prompt, layer, head]

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        return ours[self._some(little)].mean(0)

    def _some(self, little: bool) -> slice:
        return slice(4 if little else None)

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        some = self._some(little)
        there = self._there(self.ids[some], self.others[some], self.targets[some])
        return peer.attribute(*there, self.steps)

    def ways(self, peer: Any) -> dict[str, Any]:
        if not hasattr(peer, "attribute_alone"):
            return {"": peer}
        return {"": peer, ", one pair at a time": _Alone(peer)}

    def floor(self, rate: float, wide: float) -> float:
        return (2 * self.steps + 1) * self._dense / rate


class _Alone:
    """A peer that takes one pair at a time."""

    def __init__(self, peer: Any):
        self.attribute = peer.attribute_alone


class Keep(Work):
    """The first k heads of each order kept, all others from the counterfactual."""

    kind = "keep"

    def __init__(self, model: Model, prompts: int, length: int, ks: int = 20, orders: int = 6):
        super().__init__(model, prompts, length)
        random = torch.Generator().manual_seed(2)
        self.orders = torch.stack(
            [torch.randperm(self.n_heads, generator=random) for _ in range(orders)]
        )
        self.ks = [round(n * self.n_heads / (ks + 1)) for n in range(1, ks + 1)]
        live = torch.zeros(orders, len(self.ks), self.n_heads)
        for order, row in zip(self.orders, live, strict=True):
            for k, mask in zip(self.ks, row, strict=True):
                mask[order[:k]] = 1
        shape = -1, model.n_layers, model.n_heads
        self.gates = Gates(live.view(shape))

    def ours(self, little: bool = False) -> Tensor:
        found = headlab.measure(
            self.model, self.examples, self.gates, reference="counterfactual"
        ).values
        return found.view(len(self.orders), len(self.ks), -1)

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        there = self._there(self.ids, self.others, self.targets)
        few = slice(1 if little else None)
        return peer.keep(*there, self.orders[few], self.ks[:: 5 if little else 1])

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        return ours[:1, ::5] if little else ours

    def floor(self, rate: float, wide: float) -> float:
        return (len(self.ks) * len(self.orders) + 1) * self._dense / rate


class Fit(Work):
    """Updates of a gate fit, ten seeds together against one seed ten times."""

    kind = "fit"

    def __init__(
        self,
        model: Model,
        prompts: int,
        length: int,
        target: int = 4,
        seeds: int = 10,
        updates: int = 5,
    ):
        super().__init__(model, 4 * prompts, length)
        if target >= length:
            raise HeadlabError(f"of {length} tokens at most {length - 1} are the target")
        self.batch, self.target, self.updates = prompts, target, updates
        self.seeds = list(range(seeds))
        split = length - target
        self.examples = [
            Example(text(row[:split]), " " + text(row[split:]), id=str(number))
            for number, row in enumerate(self.ids.tolist())
        ]
        self.schedule = Schedule(batch=prompts)
        self.fit = FitWork(model, Rows(model, self.examples, prompts), self.schedule, ZERO)
        self.tokens = self.fit.budget()

    @property
    def size(self) -> str:
        return f"{self.batch} x {self.length}"

    def scale(self, way: str) -> float:
        return float(len(self.seeds))

    def ours(self, little: bool = False) -> Tensor:
        state = begin(self.model, self.seeds, self.schedule, 3 * len(self.seeds), self.tokens)
        for _ in range(self.updates):
            self.fit.update(state, [("free", seed) for seed in self.seeds])
        self.fit.settle()
        return state.losses[: len(self.seeds), : self.updates]

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        if peer.name != "hooks":
            raise Cannot("its passes are those of attribute; the training loop would be the hooks'")
        (ids,) = self._there(self.ids)
        losses = []
        for seed in self.seeds if little else self.seeds[:1]:
            own = PlainFit(peer, ids, self.target, self.schedule, seed)
            losses.append([own.update() for _ in range(2 if little else self.updates)])
        return torch.tensor(losses)

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        return ours[:, :2] if little else ours[:1]  # losses are few, and noise: all seeds have some

    def floor(self, rate: float, wide: float) -> float:
        one = 2 * block_weights(self.model) * self.batch * self.length
        return 2 * one * len(self.seeds) * self.updates / rate


class Generate(Work):
    """Text under masks, which act on generated tokens. Each step reads all weights, and every row's
    keys and values, or is bound by its arithmetic."""

    kind = "generate"
    is_text = True

    def __init__(
        self,
        model: Model,
        prompts: int,
        length: int,
        masks: int = 9,
        new: int = 128,
        hooks: int = 0,
        sample: int = 0,
    ):
        """`hooks`, and for the other libraries `sample`: under how many of the masks they write."""
        super().__init__(model, prompts, length)
        self.hooks, self.sample = (min(each or masks, masks) for each in (hooks, sample))
        random = torch.Generator().manual_seed(3)
        shape = masks, model.n_layers, model.n_heads
        self.masks = (torch.rand(shape, generator=random) > 0.1).float()
        self.masks[-1] = 1
        self.new = new

    def ours(self, little: bool = False) -> Tensor:
        found = headlab.generate(
            self.model, list(self.ids), Gates(self.masks), max_new_tokens=self.new
        )
        return torch.tensor([[written.ids for written in row] for row in found.rows])

    def scale(self, way: str) -> float:
        return len(self.masks) / self._masks(way)

    def _masks(self, way: str) -> int:
        return self.hooks if way == "hooks" else self.sample

    def theirs(self, peer: Any, little: bool = False) -> Tensor:
        (ids,) = self._there(self.ids)
        masks = 1 if little else self._masks(peer.name)
        return peer.generate(ids, self.masks[:masks], 8 if little else self.new)

    def same(self, ours: Tensor, little: bool = False) -> Tensor:
        return ours[:1, :, :8] if little else ours

    def floor(self, rate: float, wide: float) -> float:
        rows = len(self.masks) * self.prompts
        weights = block_weights(self.model) + self.model.hf.get_output_embeddings().weight.numel()
        seconds = 2 * weights * self.prompts * self.length / rate
        for step in range(1, self.new):
            tokens = rows * (self.length + step)
            moved = weights * self.model.dtype.itemsize + tokens * bytes_per_token(self.model)
            seconds += max(moved / wide, 2 * weights * rows / rate)
        return seconds


WORKS = {each.kind: each for each in (Ablate, Patch, Attribute, Keep, Fit, Generate)}
