"""What is kept of a cell that was interrupted: taken up again where it is of the same cell."""

from __future__ import annotations

import json

import pytest
import torch
from test_roles import lab, spec_of  # noqa: F401

from headlab.gatefits import deltas
from headlab.studies.running import run_study
from headlab.studies.scratch import Scratch


def told(pairs: list[int]):
    return pairs.append


def test_a_piece_is_made_once_and_read_afterwards(tmp_path):
    heard: list[int] = []
    scratch = Scratch(tmp_path / "s", {"cell": "a"}, told(heard))
    made = scratch.tensor("x", lambda: torch.arange(3), pairs=7)
    assert heard == []
    again = scratch.tensor("x", lambda: pytest.fail("made twice"), pairs=7)
    assert torch.equal(made, again)
    assert heard == [7]
    first = scratch.values("y", lambda: {"texts": ("é", 1)}, pairs=2)
    assert first == {"texts": ["é", 1]}  # a list already, as it will be read
    assert scratch.values("y", lambda: pytest.fail("made twice"), pairs=2) == first
    assert heard == [7, 2]


@pytest.mark.parametrize("broken", ["other key", "cut", "empty"])
def test_pieces_of_something_else_are_made_again(tmp_path, broken):
    scratch = Scratch(tmp_path, {"cell": "a"}, told([]))
    scratch.tensor("x", lambda: torch.zeros(2))
    scratch.values("y", lambda: [0])
    if broken == "other key":
        scratch = Scratch(tmp_path, {"cell": "b"}, told([]))
    for path in tmp_path.iterdir():
        if broken != "other key":
            path.write_bytes(path.read_bytes()[: 5 if broken == "cut" else 0])
    assert scratch.tensor("x", lambda: torch.ones(2)).tolist() == [1, 1]
    assert scratch.values("y", lambda: [1]) == [1]
    assert json.loads((tmp_path / "y.json").read_text())["value"] == [1]


def test_ablations_that_were_done_are_not_done_again(lab, tmp_path, monkeypatch):  # noqa: F811
    spec = spec_of(lab, updates=10)
    whole = run_study(spec, tmp_path / "whole")
    real, calls = deltas._difference, []

    def stops(*args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(deltas, "_difference", stops)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "cut")
    resumed = run_study(spec, tmp_path / "cut")
    orders = 3 * 2 + 3  # three lines of two seeds, and random ones
    assert len(calls) == 5 + orders - 4
    (one,), (other,) = (sorted((run.folder / "cells").iterdir()) for run in (whole, resumed))
    assert one.read_bytes() == other.read_bytes()
    assert not (tmp_path / "cut" / "scratch").exists()
