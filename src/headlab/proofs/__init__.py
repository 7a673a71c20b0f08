"""Prove on the loaded model that a gate means what it says; refuse the model if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headlab.proofs import meaning, shortcuts
from headlab.proofs.result import TOLERANCE, Check, Proof

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.tokens import Tokens

__all__ = ["TOLERANCE", "Check", "Proof", "check"]
_PROMPTS, _LENGTH = 2, 11  # of the random tokens the proofs run on


@torch.no_grad()
def check(model: Model) -> Check:
    """Run every proof on random tokens and report the largest difference of each.

    Never raises for a wrong model: `.passed` says, `.require()` raises. As a side effect the model
    learns which shortcuts are proved: ids without mask and positions, restarting at a layer,
    joining a pass there, logits at chosen places only, the last layer at those places only, passes
    that begin where something changes, beginnings that rows share, norms, MLPs and rotary positions
    in few kernels.

    >>> headlab.check(model).passed                                           # doctest: +SKIP
    True
    """
    tokens = _random_tokens(model)
    model.bare = model.causal = model.cuts_logits = False
    model.restart = None
    proofs = []
    meant = (
        *(meaning.finite, meaning.called_once, meaning.causal, meaning.identity),
        *(meaning.head_order, meaning.head_sum, meaning.surgery),
    )
    for prove in meant:
        proof = prove(model, tokens)
        proofs.append(proof)
        if proof.refuses and prove in (meaning.finite, meaning.called_once):
            break  # nothing after it could be computed
    else:
        ways = (
            *(shortcuts.bare, shortcuts.places, shortcuts.restart, shortcuts.joining),
            *(shortcuts.ending, shortcuts.beginning, shortcuts.sharing),
            *(shortcuts.norms, shortcuts.mlps, shortcuts.rotary),
        )
        proofs += [prove(model, tokens) for prove in ways]
    return Check(model.name, proofs)


def _random_tokens(model: Model) -> Tokens:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(model.vocabulary, (_PROMPTS, _LENGTH), generator=random)
    return model.tokens(ids)
