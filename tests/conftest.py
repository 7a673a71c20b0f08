from __future__ import annotations

import os
from collections.abc import Iterator

import browser as browsers
import pytest
import torch
from tiny import save_tiny
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headlab import fused

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network
torch.set_num_threads(1)  # the tests run side by side; tiny models gain nothing from more


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[browsers.Browser]:
    path = browsers.find()
    if path is None:
        if os.environ.get("CI_BROWSER") == "1":
            pytest.fail("CI_BROWSER=1, but there is no chromium")
        pytest.skip("no chromium here (apt-get install chromium)")
    with browsers.Browser(path) as one:
        yield one


@pytest.fixture
def browser(chromium: browsers.Browser) -> browsers.Browser:
    chromium.size(1280, 900)
    chromium.dark(False)
    return chromium


@pytest.fixture
def kernel(monkeypatch) -> list[tuple[int, int]]:
    """The kernels that look at all before, for short rows, are open on a CPU: how many queries and
    keys each has had. Those of the way back have a minus."""
    shapes = []

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        length, places = query.shape[2], key.shape[2]
        seen = torch.ones(length, places, dtype=torch.bool).tril(places - length)
        found = scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=scale, enable_gqa=True
        )
        return found.transpose(1, 2)

    def attend_all(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        shapes.append((query.shape[2], key.shape[2]))
        return attend(query, key, value, scale)

    def attend_all_back(slope: Tensor, *given: Tensor | float) -> tuple[Tensor, ...]:
        *heads, scale = given
        assert slope.stride(-1) == 1, "numbers of a head lie close"
        shapes.append((-heads[0].shape[2], -heads[1].shape[2]))
        with torch.enable_grad():
            heads = [each.detach().requires_grad_() for each in heads]
            return torch.autograd.grad(attend(*heads, scale), heads, slope)

    ours = {"attend_all": attend_all, "attend_all_back": attend_all_back}
    monkeypatch.setattr("headlab.fused.launching.works", lambda kernel, *_: kernel in ours)
    for name, stand_in in ours.items():
        monkeypatch.setattr(fused, name, stand_in)
    return shapes
