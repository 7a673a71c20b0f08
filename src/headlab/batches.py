"""A batch of examples: their runs padded to one length, their answers read off the log-probs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from headlab import fused
from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import Reference
from headlab.measures import Answers, Encoded, Measure, encode
from headlab.tokens import Beginning, Tokens

if TYPE_CHECKING:
    from headlab.model import Model

# Of a run's length: beginning earlier than that saves less than it costs. Behind a beginning there
# is a mask, for which torch's attention of long rows is slower.
_LATE, _LATE_IF_LONG = 1 / 8, 1 / 4
_APART = 4  # running examples apart costs as much as one in so many parts of a pass
_KEYS = 4  # a token of the beginning takes one in so many parts of the room of one that runs


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


def first_changes(encoded: Sequence[Encoded], gates: Tensor, counterfactual: bool) -> list[int]:
    """Of each example the position before which no mask changes anything, at most the first read.

    There all gates are 1, or an example and its counterfactual are still the same: then so are a
    head and its reference. `gates` are [mask, example|1, layer, head, position|1].
    """
    gated = 0
    if gates.shape[-1] > 1:
        moved = (gates != 1).flatten(0, 3).any(0)
        gated = int(moved.int().argmax()) if moved.any() else len(moved)
    begins = []
    for each in encoded:
        changes = [max(gated, run.parting if counterfactual else 0) for run in each.sequences]
        starts = [run.start for run in each.sequences]
        begins.append(min(*changes, *starts))
    return begins


@dataclass(frozen=True)
class Chunk:
    """Examples that run together."""

    examples: list[int]  # their numbers
    begin: int = 0  # the position before which no mask changes anything

    def halves(self) -> tuple[Chunk, Chunk]:
        half = len(self.examples) // 2
        return Chunk(self.examples[:half], self.begin), Chunk(self.examples[half:], self.begin)


def chunks(
    encoded: list[Encoded], tokens: int, masks: int = 1, begins: Sequence[int] | None = None
) -> Iterator[Chunk]:
    """Examples of similar length, each chunk of at most so many tokens when padded.

    `begins` are the positions before which none of so many masks changes anything: examples that
    begin late run apart from those that begin early, where that saves more than it costs.
    """
    n_rows = [len(each.sequences) for each in encoded]
    lengths = [each.length for each in encoded]
    begins = [0] * len(encoded) if begins is None else begins
    for begin, members in _by_beginning(begins, lengths, n_rows, masks, tokens // _APART):
        own = [lengths[number] for number in members]
        for part in by_length(own, tokens, [n_rows[number] for number in members]):
            longest = max(own[number] for number in part)
            share = _LATE if longest <= fused.SHORT else _LATE_IF_LONG
            late = begin if begin >= share * longest else 0
            yield Chunk([members[number] for number in part], late)


def _by_beginning(
    begins: Sequence[int], lengths: Sequence[int], n_rows: Sequence[int], masks: int, overhead: int
) -> list[tuple[int, list[int]]]:
    """Where each group begins, and its members: the grouping with the fewest tokens to run, a group
    by itself costing as much as `overhead` tokens.

    >>> _by_beginning([2, 9, 8], [10, 10, 10], [1, 1, 1], masks=50, overhead=100)
    [(2, [0]), (8, [2, 1])]
    """
    members: dict[int, list[int]] = {step: [] for step in sorted(set(begins))}
    for number, begin in enumerate(begins):
        members[begin].append(number)
    steps = list(members)
    # Rows and tokens of the first so many steps.
    rows = [0, *accumulate(sum(n_rows[n] for n in members[step]) for step in steps)]
    whole = [0, *accumulate(sum(n_rows[n] * lengths[n] for n in members[step]) for step in steps)]
    # The cheapest way to cut the first so many steps into groups: its cost, where its last begins.
    best = [(0, 0)]
    for stop in range(1, len(steps) + 1):
        ways = []
        for start in range(stop):
            left = whole[stop] - whole[start] - steps[start] * (rows[stop] - rows[start])
            ways.append((best[start][0] + masks * left + overhead, start))
        best.append(min(ways))
    groups: list[tuple[int, list[int]]] = []
    stop = len(steps)
    while stop:
        start = best[stop][1]
        groups.append((steps[start], [n for step in steps[start:stop] for n in members[step]]))
        stop = start
    return groups[::-1]


def by_length(
    lengths: Sequence[int], tokens: int, rows: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Numbers of similar lengths, each chunk of at most so many tokens when padded; each number
    stands for one row, or for so many.

    >>> list(by_length([9, 2, 8, 3], tokens=18))
    [[1, 3], [2, 0]]
    """
    chunk: list[int] = []
    wide = 0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        own = 1 if rows is None else rows[number]
        if chunk and (wide + own) * lengths[number] > tokens:
            yield chunk
            chunk, wide = [], 0
        chunk.append(number)
        wide += own
    if chunk:
        yield chunk


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

    def repeated(
        self, copies: int, beginning: Beginning | None = None
    ) -> tuple[Tokens, Tensor, Tensor]:
        """All rows once for every mask, or what follows their beginning, and where to read them."""
        tokens, positions = self.tokens, self.positions
        if beginning is not None:
            tokens, positions = tokens.behind(beginning), positions - beginning.length
        shift = torch.arange(copies, device=self.rows.device) * len(self.sequences)
        rows = (shift[:, None] + self.rows).flatten()
        return tokens.repeated(copies), rows, positions.repeat(copies)

    def room(self, begin: int = 0) -> int:
        """How many tokens a mask takes in a pass."""
        rows, length = self.tokens.ids.shape
        return rows * max(length - begin, length // _KEYS)

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
