from __future__ import annotations

import os
from collections.abc import Iterator

import browser as browsers
import pytest
import torch
from tiny import save_tiny

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
