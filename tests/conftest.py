from __future__ import annotations

import os

import pytest
import torch
from tiny import save_tiny

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network
torch.set_num_threads(1)  # the tests run side by side; tiny models gain nothing from more


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny"))
