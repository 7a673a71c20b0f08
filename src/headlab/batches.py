"""A batch of examples: their runs padded to one length, their answers read off the log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from headlab import fused
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import Reference
from headlab.measures import Answers, Encoded, Measure, encode

if TYPE_CHECKING:
    from headlab.model import Model


def encode_all(
    model: Model, examples: Sequence[Example], measure: Measure, counterfactual: bool
) -> list[Encoded]:
    """Every example's tokens, or the first that cannot be measured as an error."""
    if isinstance(examples, (str, Example)):
        raise HeadlabError("examples come as a list, e.g. [Example(prompt, target)]")
    if not len(examples):
        raise HeadlabError("no examples were given")
    for example in examples:
        if not isinstance(example, Example):
            raise HeadlabError(f"{example!r} is not an Example(prompt, target)")
    for example in examples:
        measure.require(example)
    return [encode(model, example, counterfactual) for example in examples]


@dataclass(frozen=True)
class Readings:
    """What a pass says where answers are read. A place is a row and position with logits, a read
    one token of one answer at its place."""

    log_probs: Tensor  # [mask, read]
    hits: Tensor | None  # [mask, read], True where that token is the likeliest
    kl: Tensor | None  # [mask, place], of clean and gated

    def to(self, device: str, non_blocking: bool = False) -> Readings:
        def move(part: Tensor) -> Tensor:
            return part.to(device, non_blocking=non_blocking)

        return Readings(
            move(self.log_probs),
            None if self.hits is None else move(self.hits),
            None if self.kl is None else move(self.kl),
        )


Load = TypeVar("Load", Tensor, Readings)


class Flight(Generic[Load]):
    """What a pass gives, on its way to the CPU: on a GPU nobody has waited for it yet."""

    def __init__(self, load: Load, device: torch.device):
        self._device = device
        self._load: Load = load.to("cpu", non_blocking=True)
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._copied.record()

    def land(self) -> Load:
        if self._device.type == "cuda":
            self._copied.synchronize()
        return self._load


@dataclass(frozen=True)
class _Kin:
    """Examples of a batch whose answers have the same sizes: they are measured together."""

    n_tokens: tuple[int, ...]  # of each answer
    n_right: int
    examples: list[int]  # their numbers in the batch
    reads: Tensor  # [example, read]
    places: Tensor  # [example, token of the target]


class Batch:
    """The runs of some examples, padded to one length, and where their answers are read."""

    def __init__(self, model: Model, encoded: list[Encoded]):
        self._model, self._encoded = model, encoded
        self.sequences = [sequence for each in encoded for sequence in each.sequences]
        self.owners = [number for number, each in enumerate(encoded) for _ in each.sequences]
        self.tokens = model.tokens([sequence.ids for sequence in self.sequences])
        rows = [row for row, each in enumerate(self.sequences) for _ in range(each.n_read)]
        positions = [each.start + step for each in self.sequences for step in range(each.n_read)]
        self.rows = torch.tensor(rows, device=model.device)  # [place]
        self.positions = torch.tensor(positions, device=model.device)
        self._list_reads()

    def _list_reads(self) -> None:
        """Number all reads, and gather the examples whose reads have one shape."""
        first_places = [0]  # of each sequence
        for sequence in self.sequences:
            first_places.append(first_places[-1] + sequence.n_read)
        places: list[int] = []
        tokens: list[int] = []
        kin: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = {}
        row = 0
        for number, each in enumerate(self._encoded):
            shape = tuple(len(answer) for answer in each.reads), 1 + len(each.example.also_right)
            kin.setdefault(shape, []).append((number, len(places)))
            for read in (read for answer in each.reads for read in answer):
                places.append(first_places[row + read.sequence] + read.position)
                tokens.append(read.token)
            row += len(each.sequences)
        device = self._model.device
        self._places = torch.tensor(places, device=device)  # [read]
        self._tokens = torch.tensor(tokens, device=device)  # [read]
        self._kin = [
            _Kin(
                sizes,
                n_right,
                [number for number, _ in members],
                torch.tensor(
                    [[start + step for step in range(sum(sizes))] for _, start in members]
                ),
                torch.tensor([places[start : start + sizes[0]] for _, start in members]),
            )
            for (sizes, n_right), members in kin.items()
        ]

    def reference(self) -> Reference:
        """Each run's own counterfactual."""
        corrupt = [sequence.corrupt for sequence in self.sequences]
        values = self._model.head_outputs(self._model.tokens(corrupt))  # type: ignore[arg-type]
        return Reference("counterfactual", values)

    def read(self, logits: Tensor, clean: Tensor | None, measure: Measure) -> Readings:
        """Logits [mask, place, vocabulary] to what the measure needs of them, on their device.

        `clean` is [place, vocabulary], the log-probs without gates, for measures that compare.
        """
        wide = torch.promote_types(logits.dtype, torch.float32)
        places, tokens = self._places.to(logits.device), self._tokens.to(logits.device)
        if clean is None and fused.can_log_sum(logits):  # all of them need not be written down
            tops, sums = (each[:, places] for each in fused.log_sum(logits))
            chosen = logits[:, places, tokens].to(wide)
            return Readings(
                chosen - tops - sums, chosen >= tops if measure.needs_hits else None, None
            )
        log_probs = logits.log_softmax(-1, dtype=wide)
        read = log_probs[:, places, tokens]
        hits = read >= log_probs.amax(-1)[:, places] if measure.needs_hits else None
        kl = None if clean is None else _kl(clean, log_probs)
        return Readings(read, hits, kl)

    def values(self, readings: Readings, measure: Measure) -> Tensor:
        """The measure, [mask, example]; stops at NaN and names the example."""
        if readings.log_probs.isnan().any():
            self._refuse_nan(readings.log_probs)
        columns: list[Tensor] = []
        for kin in self._kin:
            tokens = readings.log_probs[:, kin.reads]  # [mask, example, read]
            answers = [part.sum(-1) for part in torch.split(tokens, list(kin.n_tokens), -1)]
            hits, kl = readings.hits, readings.kl
            columns.append(
                measure.value(
                    Answers(
                        torch.stack(answers, -1),
                        None if hits is None else hits[:, kin.reads[:, : kin.n_tokens[0]]].all(-1),
                        None if kl is None else kl[:, kin.places].mean(-1),
                        kin.n_tokens,
                        kin.n_right,
                    )
                )
            )
        order = torch.tensor([number for kin in self._kin for number in kin.examples])
        values = torch.cat(columns, 1)[:, order.argsort()]
        undefined = values.isnan().any(0)
        if undefined.any():
            name = self._encoded[int(undefined.nonzero()[0])].example.name
            raise HeadlabError(f"{measure.name} of {name} is not a number under some mask")
        return values

    def _refuse_nan(self, log_probs: Tensor) -> None:
        for kin in self._kin:
            for number, reads in zip(kin.examples, kin.reads, strict=True):
                if log_probs[:, reads].isnan().any():
                    name = self._encoded[number].example.name
                    raise HeadlabError(f"{name} has NaN logits where its answer is read")


def _kl(clean: Tensor, gated: Tensor) -> Tensor:
    """KL(clean || gated): [place, vocabulary], [mask, place, vocabulary] -> [mask, place]."""
    prob = clean.exp()
    return (prob * (clean - gated)).masked_fill(prob == 0, 0).sum(-1)
