"""Steps of a batch whose shapes never change, so that a GPU can replay them.

A step is hundreds of kernels, and starting them takes the CPU longer than a GPU needs to run those
of a small model, or of a few rows. Recorded once and replayed, a step is started as one. For that
nothing about it may change but the numbers in its inputs: the new token's keys and values go to a
place that a tensor names, and attention looks at a fixed number of places, of which those that are
not written yet are hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.generation.keys import RoomyLayer
from headlab.proofs import TOLERANCE

if TYPE_CHECKING:
    from headlab.generation.batch import Batch
    from headlab.model import Model

_PLACES = 128  # by which attention's width grows
WORTH = 12  # steps that a recording must serve: making one takes as long as several


def can_replay(model: Model) -> bool:
    """Whether steps of this model may be recorded: on one GPU, with torch's own attention, under
    the masks it is given."""
    inner = model.hf.get_base_model() if hasattr(model.hf, "get_base_model") else model.hf
    return (
        _on_one_gpu(model)
        and model.takes_positions
        and inner.config._attn_implementation == "sdpa"
        and getattr(inner, "_supports_attention_backend", False)
    )


def _on_one_gpu(model: Model) -> bool:
    devices = set(getattr(model.hf, "hf_device_map", {}).values())
    return model.device.type == "cuda" and len(devices) < 2


class FixedSteps:
    """Steps of one batch, as it is now, up to a number of places. The first runs as ever; then it
    is recorded, and a recording that gives other logits, or that cannot be made, is not used."""

    def __init__(self, batch: Batch, stop: int):
        self._batch = batch
        self.width = min(batch.room, -(-stop // _PLACES) * _PLACES)
        rows, device = len(batch.rows), batch.model.device
        self._ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._where = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        self._mask = batch.mask[:, None, None, : self.width].clone()
        self._mask[..., stop - 1 :] = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        self.works = True

    def step(self, ids: Tensor, where: Tensor, stop: int) -> Tensor:
        """Logits [row, vocabulary] after each row's token; it is the one at place `stop` - 1."""
        self._ids.copy_(ids[:, None])
        self._where.copy_(where)
        self._slot.fill_(stop - 1)
        self._mask[..., stop - 1] = True
        if self._graph is not None and self._logits is not None:
            self._graph.replay()
            return self._logits
        logits = self._run()
        if self._ids.is_cuda:
            self._record(logits)
        return logits

    def leave(self, filled: int) -> None:
        """Hand the cache back with so many places filled."""
        for layer in self._layers:
            layer.show(filled)
        self._graph = self._logits = None

    @property
    def _layers(self) -> list[RoomyLayer]:
        return self._batch.cache.layers

    def _run(self) -> Tensor:
        for layer in self._layers:
            layer.fix(self._slot, self.width)
        try:
            with self._batch.gating():
                return self._batch.forward(self._ids, self._mask, self._where)
        finally:
            for layer in self._layers:
                layer.fix(None, 0)

    def _record(self, expected: Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self._ids.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._ids.device))
        try:
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    logits = self._run()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream(self._ids.device).wait_stream(side)
            graph.replay()
            allowed = TOLERANCE[expected.dtype] * max(1.0, float(expected.abs().max()))
            self.works = bool((logits - expected).abs().max() <= allowed)
        except RuntimeError:  # the model does something that cannot be recorded
            self.works = False
        if self.works:
            self._graph, self._logits = graph, logits
