"""Steps of a batch whose shapes never change, so that a GPU can replay them.

A step is hundreds of kernels, and starting them takes the CPU longer than a GPU needs to run those
of a small model, or of a few rows. Recorded once and replayed, a step is started as one. For that
nothing about it may change but the numbers in its inputs: the new token's keys and values go to a
place that a tensor names, and attention is given a fixed number of places, of which those that are
not written yet are hidden. Our own kernel does not read those; torch's does, so that for it the
number grows now and then.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab import fused
from headlab.generation.keys import RoomyLayer
from headlab.proofs import TOLERANCE

if TYPE_CHECKING:
    from headlab.generation.batch import Batch
    from headlab.model import Model

_PLACES = 128  # by which the width of torch's attention grows
WORTH = 12  # steps that a recording must serve: making one takes as long as several
_ROUNDING = 1.5  # times the tolerance of logits: what two ways of a step may differ by, on average
_OUTLIER = 10  # times that: the most
_FULL = 0.8  # of a GPU's memory: then what is kept but not used is given back first
_SIDES: dict[torch.device, torch.cuda.Stream] = {}  # where steps are recorded


def can_replay(model: Model) -> bool:
    """Whether steps of this model may be recorded: on one GPU, with torch's own attention, under
    the masks it is given."""
    inner = model.hf.get_base_model() if hasattr(model.hf, "get_base_model") else model.hf
    return (
        is_on_one_gpu(model)
        and model.takes_positions
        and inner.config._attn_implementation == "sdpa"
        and getattr(inner, "_supports_attention_backend", False)
        and model.records
        and not _is_watched(model)
    )


def _is_watched(model: Model) -> bool:
    """Whether somebody's hooks would be silent while steps are replayed."""
    every = torch.nn.modules.module
    if every._global_forward_hooks or every._global_forward_pre_hooks:
        return True
    hooks = (
        hook
        for each in model.hf.modules()
        for own in (each._forward_hooks, each._forward_pre_hooks)
        for hook in own.values()
    )
    # Those by which transformers gathers hidden states stay after they were asked for once.
    return any("output_capturing" not in (getattr(hook, "__module__", "") or "") for hook in hooks)


def _has_own_attention(model: Model) -> bool:
    """Whether our kernel reads what is seen alone. (Asked here, it is tried before anything is
    recorded.)"""
    group = model.n_heads // (model.seam.kv_heads or model.n_heads)
    return fused.works("attend", model.device, model.dtype, group, model.head_width)


def is_on_one_gpu(model: Model) -> bool:
    devices = set(getattr(model.hf, "hf_device_map", {}).values())
    return model.device.type == "cuda" and len(devices) < 2


def _are_near(found: Tensor, expected: Tensor) -> Tensor:
    """Whether every row's logits differ by rounding alone: little in the mean, next to how far they
    are spread, and none by much more. What is added to all of a row changes no probability."""
    wide = torch.promote_types(found.dtype, torch.float32)
    apart = found.to(wide) - expected
    apart -= apart.mean(-1, keepdim=True)
    allowed = _ROUNDING * TOLERANCE.get(expected.dtype, 5e-2) * expected.to(wide).std(-1)
    mean, most = apart.square().mean(-1).sqrt(), apart.abs().amax(-1)
    return ((mean <= allowed) & (most <= _OUTLIER * allowed)).all()


class FixedSteps:
    """Steps of one batch, as it is now, up to a number of places.

    The first step runs as ever, and once more with fixed shapes: only where both agree is it
    recorded. A call's first replay is compared in the same way. What a model's steps of some shape
    have shown once is not compared again.
    """

    def __init__(self, batch: Batch, stop: int):
        self._batch = batch
        self.width = batch.room
        if not _has_own_attention(batch.model) or batch.room > fused.MOST_PLACES:
            self.width = min(batch.room, -(-stop // _PLACES) * _PLACES)
        rows, device = len(batch.rows), batch.model.device
        self._ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._where = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        self._mask = batch.mask[:, None, None, : self.width].clone()
        self._mask[..., stop - 1 :] = False
        self._replay: Callable[[], Tensor] | None = None
        self.works = True
        writer = batch.writer
        gating = None if writer.is_plain else (writer.reference.kind, batch.boosts is None)
        self._kind = rows, self.width, batch.room, gating, writer.joins, batch.model.dtype

    def step(self, ids: Tensor, where: Tensor, stop: int) -> Tensor:
        """Logits [row, vocabulary] after each row's token; it is the one at place `stop` - 1."""
        self._ids.copy_(ids[:, None])
        self._where.copy_(where)
        self._slot.fill_(stop - 1)
        self._mask[..., stop - 1] = True
        if self._replay is None:
            return self._begin(stop)
        writer, known = self._batch.writer, self._batch.model.replayed
        if writer.replayed or self._kind in known:
            return self._replay()
        expected = self._as_ever(stop)
        self.works = writer.replayed = self._like(expected, self._replay)
        if self.works:
            known.add(self._kind)
        return expected

    def _begin(self, stop: int) -> Tensor:
        """The first step, and its recording."""
        known = self._kind in self._batch.model.replayed
        logits = self._attempt(self._tried) if known else self._as_ever(stop)
        if logits is None:
            self.works = False
            return self._as_ever(stop)
        if known or self._like(logits, self._tried):
            self._replay = self._recorded()
        self.works = self._replay is not None
        return logits

    def leave(self, filled: int) -> None:
        """Hand the cache back with so many places filled."""
        for layer in self._layers:
            layer.show(filled)
        self._replay = None

    @property
    def _layers(self) -> list[RoomyLayer]:
        return self._batch.cache.layers

    def _as_ever(self, stop: int) -> Tensor:
        """The same step as others take it; it leaves the cache as it finds it, but for the keys and
        values that are to be written anyway."""
        for layer in self._layers:
            layer.show(stop - 1)
        return self._batch.ordinary(self._ids, self._where, stop)

    def _run(self) -> Tensor:
        for layer in self._layers:
            layer.fix(self._slot, self.width)
        try:
            with self._batch.gating():
                return self._batch.forward(self._ids, self._mask, self._where)
        finally:
            for layer in self._layers:
                layer.fix(None, 0)

    def _tried(self) -> Tensor:
        """The step with fixed shapes. Whatever waits for the GPU cannot be recorded, and a
        recording that breaks off would do damage: so that is found out before."""
        if not self._ids.is_cuda:
            return self._run()
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(action="ignore"):  # it does not see everything that waits
            torch.cuda.set_sync_debug_mode("error")
        try:
            return self._run()
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _attempt(self, step: Callable[[], Tensor]) -> Tensor | None:
        try:
            return step()
        except torch.OutOfMemoryError:
            self._batch.model.back_offs += 1
            return None
        except Exception:  # it waits for the GPU, takes no such mask, or has a kernel that fails
            return None

    def _like(self, expected: Tensor, step: Callable[[], Tensor]) -> bool:
        found = self._attempt(step)
        if found is None:
            return False
        near = self._attempt(lambda: _are_near(found, expected))
        return near is not None and bool(near)

    def _recorded(self) -> Callable[[], Tensor] | None:
        """The step as one replay; None where it cannot be recorded."""
        device = self._ids.device
        if not self._ids.is_cuda:
            return self._run
        if torch.cuda.memory_reserved(device) > _FULL * torch.cuda.mem_get_info(device)[1]:
            torch.cuda.empty_cache()  # while recording nothing is given back
        graph = torch.cuda.CUDAGraph()
        side = _SIDES.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        collecting = gc.isenabled()
        gc.disable()  # what it would free now might not bear it
        try:
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    logits = self._run()
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError:
            self._batch.model.back_offs += 1
            return None
        except Exception:  # it waits for the GPU after all, or takes no such input
            self._batch.model.records = False  # and is not tried again
            return None
        finally:
            if collecting:
                gc.enable()
        torch.cuda.current_stream(device).wait_stream(side)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay
