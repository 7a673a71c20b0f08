from __future__ import annotations

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network
torch.set_num_threads(1)  # the tests run side by side; tiny models gain nothing from more
