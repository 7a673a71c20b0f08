"""The demo proves what it says: on prompts it did not find the heads on, beside random ones."""

from __future__ import annotations

import pytest
import torch
from tiny import worded

from headlab import Gates, check, demo, measure


@pytest.fixture(scope="module")
def found():
    check(worded())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "N_PROMPTS", 4)
        patch.setattr(demo, "N_HEADS", 2)
        patch.setattr(demo, "N_SHOWN", 3)
        patch.setattr(demo, "N_DRAWS", 5)
        counted: list[int] = []
        yield demo.investigate(worded(), counted.append), counted, demo.total_work(worded())


def test_the_heads_are_found_on_the_first_prompts_and_tested_on_the_others(found):
    findings, _, _ = found
    find, test = findings.examples[:4], findings.examples[4:]
    assert findings.scores.examples == [example.id for example in find]
    assert not {example.prompt for example in find} & {example.prompt for example in test}
    model = worded()
    for tested, name in (
        (findings.logit_diff, "logit-diff"),
        (findings.accuracy, "choice-accuracy"),
    ):
        off = measure(model, test, Gates.ablate(model, findings.chosen), name)
        assert torch.allclose(tested.chosen, off.values[0], atol=1e-5)
        assert torch.allclose(tested.clean, off.clean, atol=1e-5)
        for row, draw in enumerate(findings.draws):
            off = measure(model, test, Gates.ablate(model, draw), name)
            assert torch.allclose(tested.random[row], off.values[0], atol=1e-5)
        for row, head in enumerate(findings.shown):
            off = measure(model, test, Gates.ablate(model, [head]), name)
            assert torch.allclose(tested.single[row], off.values[0], atol=1e-5)


def test_the_chosen_heads_help_most_and_the_random_ones_are_others(found):
    findings, _, _ = found
    score = findings.scores.score
    best = score.flatten().topk(2)[0].tolist()
    assert [float(score[head]) for head in findings.chosen] == best
    sizes = sorted((abs(float(score[head])) for head in findings.shown), reverse=True)
    assert sizes == score.abs().flatten().topk(3)[0].tolist()
    assert len(findings.draws) == 5
    for draw in findings.draws:
        assert len(set(draw)) == 2
        assert not set(draw) & set(findings.chosen)


def test_its_progress_counts_to_the_end(found):
    _, counted, total = found
    assert sum(counted) == total
