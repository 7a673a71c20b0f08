"""A probe that tells from the heads' outputs what an answer asks of a model, and which heads it
reads that from.

Every head's pooled z, beside the mean of its layer, goes through one shared projection; what all
heads give together says which class an answer is of. A head's importance for a class is the mean,
over the answers of that class, of (d logit / d projection) · projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headlab.errors import HeadlabError
from headlab.heads import Head
from headlab.scores import HeadScores
from headlab.tasks.cogqa import SubQuestion, as_example

if TYPE_CHECKING:
    from headlab.model import Model

_CHUNK = 256  # answers at a time where nothing is learned


@dataclass(frozen=True)
class Training:
    """The paper's settings, but for the batch: it takes one answer at a time."""

    epochs: int = 100
    batch: int = 32
    rate: float = 1e-4
    projected: int = 64
    hidden: int = 512
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise HeadlabError(
                "a probe is trained for at least one epoch, in batches of at least 1"
            )
        if not 0 < self.rate < 1:
            raise HeadlabError(f"the learning rate lies between 0 and 1, not at {self.rate:g}")


@dataclass(frozen=True)
class Probed:
    """What a probe says, and how well it is to be believed."""

    classes: list[str]
    importance: Tensor  # [class, layer, head], mean over probes
    each: dict[str, Tensor]  # by class, [layer, head, answer]: mean over probes
    accuracy: float  # on answers it has not seen, mean over probes
    shuffled: float  # the same of probes trained on shuffled labels
    majority: float  # always the class that is most frequent in training
    recalls: dict[str, float]  # by class, of the accuracy
    n_train: int
    n_test: int
    losses: list[float]  # mean over an epoch, of the first probe

    def order(self, name: str) -> Tensor:
        """Heads of a class, the most important first, whichever way it points: [rank]."""
        size = self.importance[self.classes.index(name)].abs().flatten()
        return size.argsort(descending=True, stable=True)

    def top(self, name: str, k: int) -> list[Head]:
        heads = self.importance.shape[2]
        return [Head(*divmod(number, heads)) for number in self.order(name)[:k].tolist()]

    def elbow(self, name: str) -> int:
        return elbow(self.importance[self.classes.index(name)].abs())

    def scores(
        self, model: Model, name: str, items: Sequence[SubQuestion], settings: dict[str, Any]
    ) -> HeadScores:
        """A class as scores of heads, on each of its training answers. Which way a head points
        does not count: every head's scores have the sign that makes its mean positive."""
        each = self.each[name]
        own = [as_example(item) for item in items if item.function == name]
        return HeadScores(
            model=model.name,
            task=f"cogqa-{name}",
            method="probe",
            measure="log-prob",  # what a curve by these scores measures
            reference="zero",
            examples=[example.id for example in own],
            fingerprints=[example.fingerprint for example in own],
            values=each * each.mean(-1, keepdim=True).sign(),
            clean=torch.full((len(own),), torch.nan),
            settings={
                **settings,
                **self.summary(),
                "elbow": self.elbow(name),
                "score": "gradient x activation",
            },
        )

    def summary(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "majority": self.majority,
            "shuffled": self.shuffled,
            "recalls": self.recalls,
            "n_train": self.n_train,
            "n_test": self.n_test,
        }


class Probe(nn.Module):
    """z [answer, layer, head, width] -> a logit for each class."""

    def __init__(self, shape: tuple[int, int, int], classes: int, training: Training):
        super().__init__()
        layers, heads, width = shape
        self.project = nn.Linear(2 * width, training.projected)
        self.read = nn.Sequential(
            nn.Linear(layers * heads * training.projected, training.hidden),
            nn.ReLU(),
            nn.Dropout(training.dropout),
            nn.Linear(training.hidden, classes),
        )

    def projected(self, z: Tensor) -> Tensor:
        """[answer, head of all layers, projected]"""
        beside = z.mean(2, keepdim=True).expand_as(z)  # the layer's mean over heads
        found: Tensor = self.project(torch.cat([z, beside], -1)).flatten(1, 2)
        return found

    def logits(self, projected: Tensor) -> Tensor:
        found: Tensor = self.read(projected.flatten(1))
        return found

    def forward(self, z: Tensor) -> Tensor:
        return self.logits(self.projected(z))


def fit_probe(
    train: tuple[Tensor, Sequence[str]],
    test: tuple[Tensor, Sequence[str]],
    classes: Sequence[str],
    training: Training | None = None,
    *,
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Probed:
    """Train on pooled z [answer, layer, head, width] and the answers' classes; score heads on the
    same answers, and the probe itself on `test`. A second probe for each seed learns labels that
    are shuffled: what it gets right is luck. `progress` counts epochs, of which there are
    2 · seeds · epochs.

    >>> probed = fit_probe((z, labels), (others, their_labels), classes)      # doctest: +SKIP
    >>> probed.accuracy, probed.majority, probed.shuffled                     # doctest: +SKIP
    (0.61, 0.28, 0.17)
    """
    training = training or Training()
    classes = list(classes)
    numbers = [_numbers(labels, classes) for _, labels in (train, test)]
    (z, _), (other, _) = train, test
    z, other = _scaled(z, other)
    importance: Tensor | None = None
    shares: dict[str, list[float]] = {"true": [], "shuffled": []}
    hits = torch.zeros(len(other), dtype=torch.float64)
    losses: list[float] = []
    for seed in seeds:
        drawn = torch.Generator().manual_seed(seed)
        mixed = numbers[0][torch.randperm(len(z), generator=drawn)]
        for kind, labels in (("true", numbers[0]), ("shuffled", mixed)):
            probe, told = _train(z, labels, len(classes), training, seed, device, progress)
            right = (_predict(probe, other, device) == numbers[1]).double()
            shares[kind].append(float(right.mean()))
            if kind == "true":
                hits += right / len(seeds)
                found = _importance(probe, z, numbers[0], device)
                importance = found if importance is None else importance + found
                losses = losses or told
    assert importance is not None
    importance = (importance / len(seeds)).view(len(z), *z.shape[1:3])  # [answer, layer, head]
    each = {
        name: importance[numbers[0] == number].permute(1, 2, 0)
        for number, name in enumerate(classes)
    }
    most = int(torch.bincount(numbers[0], minlength=len(classes)).argmax())
    return Probed(
        classes,
        torch.stack([own.mean(-1) for own in each.values()]),
        each,
        accuracy=_mean(shares["true"]),
        shuffled=_mean(shares["shuffled"]),
        majority=float((numbers[1] == most).double().mean()),
        recalls={
            name: float(hits[own].mean())
            for number, name in enumerate(classes)
            if bool((own := numbers[1] == number).any())
        },
        n_train=len(z),
        n_test=len(other),
        losses=losses,
    )


def _numbers(labels: Sequence[str], classes: list[str]) -> Tensor:
    return torch.tensor([classes.index(label) for label in labels])


def _scaled(z: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Each layer's z on one scale, that of the training answers: layers differ by magnitudes, and
    a probe that starts small would not hear the quiet ones."""
    wide = z.float()
    scale = wide.square().mean((0, 2, 3), keepdim=True).sqrt().clamp(min=1e-12)
    return wide / scale, other.float() / scale


def _train(
    z: Tensor,
    labels: Tensor,
    classes: int,
    training: Training,
    seed: int,
    device: torch.device | str,
    progress: Callable[[int], None] | None,
) -> tuple[Probe, list[float]]:
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        probe = Probe(tuple(z.shape[1:]), classes, training).to(device)  # type: ignore[arg-type]
        adam = torch.optim.AdamW(probe.parameters(), lr=training.rate)
        there, wanted = z.to(device), labels.to(device)
        losses = []
        probe.train()
        with torch.enable_grad():
            for _ in range(training.epochs):
                total = torch.zeros((), device=device)
                for own in torch.split(torch.randperm(len(z)).to(device), training.batch):
                    loss = cross_entropy(probe(there[own]), wanted[own])
                    adam.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    adam.step()
                    total += loss.detach() * len(own)
                losses.append(float(total) / len(z))
                if progress is not None:
                    progress(1)
    probe.eval()
    return probe, losses


def _predict(probe: Probe, z: Tensor, device: torch.device | str) -> Tensor:
    with torch.no_grad():
        return torch.cat(
            [probe(part.to(device)).argmax(-1).cpu() for part in torch.split(z, _CHUNK)]
        )


def _importance(probe: Probe, z: Tensor, labels: Tensor, device: torch.device | str) -> Tensor:
    """Of each answer's own class, gradient times projection, mean over the projection: [answer,
    head of all layers]."""
    found = []
    for part, own in zip(*(torch.split(each, _CHUNK) for each in (z, labels)), strict=True):
        with torch.enable_grad():
            projected = probe.projected(part.to(device)).detach().requires_grad_()
            logits = probe.logits(projected).gather(1, own.to(device)[:, None])
            (slope,) = torch.autograd.grad(logits.sum(), projected)
        found.append((slope * projected.detach()).mean(-1).double().cpu())
    return torch.cat(found)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def elbow(sizes: Tensor) -> int:
    """How many heads lie up to the bend of the sorted curve: where it is furthest from the line
    between its ends.

    >>> elbow(torch.tensor([5.0, 4.8, 4.5, 0.3, 0.2, 0.1, 0.0]))
    4
    """
    curve = sizes.double().flatten().sort(descending=True).values
    if len(curve) < 3 or curve[0] == curve[-1]:
        return len(curve)
    x = torch.linspace(0, 1, len(curve), dtype=torch.float64)
    y = (curve - curve[-1]) / (curve[0] - curve[-1])
    return int((1 - x - y).argmax()) + 1
