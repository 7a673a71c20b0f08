"""The same claims on a GPU, where there is one."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import ARCHITECTURES, random_ids, tiny

from headlab import Gates, Head, Model, counterfactual_reference
from headlab.proofs import check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_check_passes_on_a_gpu(name, dtype):
    result = check(Model(copy.deepcopy(tiny(name, dtype)).cuda(), name=name))
    assert all(proof.passed for proof in result.proofs), result


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gpu_gives_the_cpus_numbers(name):
    ids, other = random_ids(2, 8), random_ids(2, 8, seed=1)
    logits = []
    for network in (tiny(name), copy.deepcopy(tiny(name)).cuda()):
        model = Model(network)
        reference = counterfactual_reference(model, list(ids), list(other))
        with model.gated(Gates.ablate(model, [Head(1, 2)], scale=0.3), reference):
            logits.append(model(ids).cpu())
    assert (logits[0] - logits[1]).abs().max() < 1e-4
