"""A batch of examples: their runs padded to one length, their answers read off the log-probs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.gates import Reference
from headlab.measures import Answers, Encoded, Measure, encode
from headlab.model import Tokens

if TYPE_CHECKING:
    from headlab.model import Model


def encode_all(
    model: Model, examples: Sequence[Example], measure: Measure, counterfactual: bool
) -> list[Encoded]:
    """Every example's tokens, or the first that cannot be measured as an error."""
    if not examples:
        raise HeadlabError("no examples were given")
    for example in examples:
        measure.require(example)
    return [encode(model, example, counterfactual) for example in examples]


def chunks(encoded: list[Encoded], tokens: int) -> Iterator[list[int]]:
    """Numbers of examples of similar length, each chunk of at most so many tokens when padded."""
    order = sorted(range(len(encoded)), key=lambda number: encoded[number].length)
    chunk: list[int] = []
    rows = 0
    for number in order:
        each = encoded[number]
        if chunk and (rows + len(each.sequences)) * each.length > tokens:
            yield chunk
            chunk, rows = [], 0
        chunk.append(number)
        rows += len(each.sequences)
    if chunk:
        yield chunk


class Batch:
    """The runs of some examples, padded to one length, and where their answers are read."""

    def __init__(self, model: Model, encoded: list[Encoded]):
        self._model, self._encoded = model, encoded
        self.sequences = [sequence for each in encoded for sequence in each.sequences]
        self.owners = [number for number, each in enumerate(encoded) for _ in each.sequences]
        self.tokens = model.tokens([sequence.ids for sequence in self.sequences])
        self.rows = torch.tensor(
            [row for row, each in enumerate(self.sequences) for _ in range(each.n_read)]
        )
        self.positions = torch.tensor(
            [each.start + step for each in self.sequences for step in range(each.n_read)]
        )
        self.vocabulary = model.vocabulary
        # Where each sequence's reads begin among all read positions.
        self._offsets = [0]
        for sequence in self.sequences:
            self._offsets.append(self._offsets[-1] + sequence.n_read)

    def repeated(self, copies: int) -> tuple[Tokens, Tensor, Tensor]:
        """All rows once for every mask, and where to read them."""
        tokens = Tokens(self.tokens.ids.repeat(copies, 1), self.tokens.mask.repeat(copies, 1))
        shift = torch.arange(copies).repeat_interleave(len(self.rows)) * len(self.sequences)
        return tokens, self.rows.repeat(copies) + shift, self.positions.repeat(copies)

    def reference(self) -> Reference:
        """Each run's own counterfactual."""
        corrupt = [sequence.corrupt for sequence in self.sequences]
        values = self._model.head_outputs(self._model.tokens(corrupt))  # type: ignore[arg-type]
        return Reference("counterfactual", values)

    def measure(self, log_probs: Tensor, clean: Tensor, measure: Measure) -> Tensor:
        """log_probs [mask, read position, vocabulary] -> [mask, example]; stops at NaN."""
        columns = []
        first = 0
        reads, tokens = [], []
        for each in self._encoded:
            for answer in each.reads:
                for read in answer:
                    reads.append(self._offsets[first + read.sequence] + read.position)
                    tokens.append(read.token)
            first += len(each.sequences)
        places = torch.tensor(reads, device=log_probs.device)
        values = log_probs[:, places, torch.tensor(tokens, device=log_probs.device)]
        hits = values >= log_probs.amax(-1)[:, places] if measure.needs_hits else None
        spread = _kl(clean, log_probs) if measure.needs_kl else None  # [mask, read position]
        values = values.cpu()
        hits = None if hits is None else hits.cpu()
        start = sequence = 0
        for each in self._encoded:
            sizes = [len(answer) for answer in each.reads]
            mine = values[:, start : start + sum(sizes)]
            if mine.isnan().any():
                raise HeadlabError(f"{each.example.name} has NaN logits where its answer is read")
            right = None if hits is None else hits[:, start : start + sizes[0]].all(1)
            span = slice(self._offsets[sequence], self._offsets[sequence + 1])
            columns.append(
                measure.value(
                    Answers(
                        torch.stack([part.sum(1) for part in torch.split(mine, sizes, 1)], 1),
                        right,
                        None if spread is None else spread[:, span].mean(1).cpu(),
                        sizes,
                        1 + len(each.example.also_right),
                    )
                )
            )
            start += sum(sizes)
            sequence += len(each.sequences)
        return torch.stack(columns, 1)


def _kl(clean: Tensor, gated: Tensor) -> Tensor:
    """KL(clean || gated): [read position, vocabulary], [mask, read position, vocabulary]."""
    return (clean.exp() * (clean - gated)).sum(-1)
