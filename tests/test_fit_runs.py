"""How a fit runs: what is written down and when, where it goes on, what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from looking import Looks
from planted import pairs, planted

from headlab import HeadlabError
from headlab.gatefits import Schedule, fit_gates
from headlab.gatefits.fitting import FitWork, begin
from headlab.gatefits.rows import Rows
from headlab.gates import ZERO
from headlab.proofs import check


def test_a_fit_goes_on_where_it_stopped():
    schedule = Schedule(updates=30, batch=8)
    whole = fit_gates(planted(), pairs(20), range(2), schedule)
    states = []
    fit_gates(
        planted(),
        pairs(20),
        range(2),
        schedule,
        on_state=lambda state: states.append(
            dataclasses.replace(
                state, **{k: v.clone() for k, v in vars(state).items() if torch.is_tensor(v)}
            )
        ),
        state_every=7,
    )
    assert [(state.stage, state.step) for state in states[:6]] == [
        *((0, 7), (0, 14), (0, 21), (0, 28), (1, 0), (1, 7))
    ]
    for state in (states[1], states[4], states[6]):
        again = fit_gates(planted(), pairs(20), range(2), schedule, state=state)
        assert torch.equal(again.plus, whole.plus)
        assert torch.equal(again.minus, whole.minus)
        assert torch.equal(again.losses, whole.losses)
        assert torch.equal(again.paths, whole.paths)


def test_updates_look_at_no_number_until_the_next_is_on_its_way():
    """On a GPU that would wait; what an update gives is written down by the one that follows."""
    schedule = Schedule(updates=3, batch=8)
    model = planted()
    check(model)  # ids alone are enough
    work = FitWork(model, Rows(model, pairs(20), 8), schedule, ZERO)
    state = begin(model, [0, 1], schedule, 6, tokens=40)  # several passes
    fits = [("free", 0), ("free", 1)]
    with Looks() as looks:
        work.update(state, fits)
    assert not looks.count
    assert state.losses.isnan().all()
    work.update(state, fits)
    assert state.losses[:2, 0].isfinite().all()
    assert state.losses[:, 1:].isnan().all()
    work.settle()
    assert state.losses[:2, :2].isfinite().all()
    late = []
    last = Schedule(updates=12, batch=8)
    work = FitWork(model, work.rows, last, ZERO)
    state = begin(model, [0, 1], last, 6, tokens=40)
    work.run(
        state, fits, progress=lambda _: late.append(state.losses[:2, : state.step].isnan().sum())
    )
    assert [int(each) for each in late] == [2] * 12, "those of the last update of both seeds"


def test_a_path_is_of_the_gates_after_every_tenth_update():
    for updates in (1, 11):
        fit = fit_gates(planted(), pairs(20), [0, 1], Schedule(updates=updates, batch=8))
        after = torch.cat([fit.free, fit.plus, fit.minus])
        assert fit.paths.shape[1] == len(range(0, updates, 10))
        assert torch.equal(fit.paths[:, -1], after)


def test_an_interrupted_fit_goes_on_from_its_state():
    schedule = Schedule(updates=6, batch=8)
    whole = fit_gates(planted(), pairs(20), [0], schedule)
    model, states, done = planted(), [], []
    state = begin(model, [0], schedule, 3, tokens=4096)

    def interrupt(n: int) -> None:
        done.append(n)
        states.append(state.step)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_gates(model, pairs(20), [0], schedule, state=state, progress=interrupt)
    again = fit_gates(model, pairs(20), [0], schedule, state=state)
    assert torch.equal(again.losses, whole.losses)
    assert torch.equal(again.plus, whole.plus)


def test_gates_that_give_no_numbers_are_refused(monkeypatch):
    """By the update after the one that did, or by the last."""
    plain, one = FitWork.slopes, torch.tensor([1.0, math.nan])  # of two seeds

    def no_losses(self, *given):
        losses, slope = plain(self, *given)
        return losses * one, slope

    def no_slopes(self, *given):
        losses, slope = plain(self, *given)
        return losses, slope * one[:, None, None]

    for updates, broken in itertools.product((1, 3), (no_losses, no_slopes)):
        monkeypatch.setattr(FitWork, "slopes", broken)
        states, asked = [], Schedule(updates=updates, batch=8)
        with pytest.raises(HeadlabError, match="gives NaN under gates"):
            fit_gates(
                planted(), pairs(20), [0, 1], asked, on_state=states.append, state_every=updates
            )
        assert not states, "nothing of it is kept"


def test_out_of_memory_is_met_with_smaller_passes(monkeypatch):
    schedule = Schedule(updates=6, batch=8)
    expected = fit_gates(planted(), pairs(20), [0], schedule)
    model, plain = planted(), FitWork.slopes

    def tight(self, logits, numbers, tokens):
        if tokens > 20:
            raise torch.OutOfMemoryError("too much")
        return plain(self, logits, numbers, tokens)

    monkeypatch.setattr(FitWork, "slopes", tight)
    states = []
    found = fit_gates(model, pairs(20), [0], schedule, budget=64, on_state=states.append)
    assert torch.allclose(found.plus, expected.plus, atol=1e-4)
    assert model.back_offs == 2
    assert states[-1].tokens == 16, "kept for where it goes on"

    def never(self, logits, numbers, tokens):
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(FitWork, "slopes", never)
    with pytest.raises(HeadlabError, match="does not fit into memory with one example"):
        fit_gates(model, pairs(20), [0], schedule)
