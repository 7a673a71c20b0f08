"""Three scores and a role for every head, from the gates of a fit.

| role         | G+   | G−   | score           | ablating it should          |
| facilitating | high | high | F = G−          | lower the target's log-prob |
| interfering  | low  | low  | N = 1 − G+      | raise it                    |
| irrelevant   | high | low  | I = G+ (1 − G−) | do nothing                  |

A head has a role where its score is at least 0.5. G+ low and G− high, which is rare, scores high on
both F and N: such a head is "mixed".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headlab.gatefits.fitting import GateFit
from headlab.heads import Head
from headlab.scores import HeadScores

METRICS = {"F": "facilitation", "I": "irrelevance", "N": "interference"}
ROLES = ("facilitating", "irrelevant", "interfering", "mixed", "none")
_HAS_ROLE = 0.5


@dataclass(frozen=True)
class Roles:
    """What a fit says of every head, for each seed."""

    fit: GateFit

    @property
    def shape(self) -> tuple[int, int]:
        return self.fit.plus.shape[1], self.fit.plus.shape[2]

    @cached_property
    def scores(self) -> dict[str, Tensor]:
        """F, I and N: [seed, layer, head] each."""
        plus, minus = self.fit.g_plus, self.fit.g_minus
        return {"F": minus, "I": plus * (1 - minus), "N": 1 - plus}

    @cached_property
    def keys(self) -> dict[str, Tensor]:
        """What heads are ordered by: the scores' order without their ties, as gates saturate."""
        plus, minus = self.fit.plus.double(), self.fit.minus.double()
        return {"F": minus, "I": logsigmoid(plus) + logsigmoid(-minus), "N": -plus}

    def order(self, metric: str, aggregated: bool = False) -> Tensor:
        """Numbers of heads, the largest score first: [seed, head]. `aggregated`: by the mean score
        over seeds, one order for all of them."""
        key = self.keys[metric].flatten(1)
        if aggregated:  # among equal means, as of saturated gates, the keys' mean decides
            first = key.mean(0).argsort(descending=True, stable=True)
            mean = self.scores[metric].double().flatten(1).mean(0)[first]
            return first[mean.argsort(descending=True, stable=True)].expand_as(key)
        return key.argsort(dim=1, descending=True, stable=True)

    @cached_property
    def roles(self) -> Tensor:
        """[seed, layer, head], a number of ROLES."""
        has = {metric: score >= _HAS_ROLE for metric, score in self.scores.items()}
        role = torch.full_like(self.fit.plus, ROLES.index("none"), dtype=torch.long)
        role[has["I"]] = ROLES.index("irrelevant")
        role[has["F"]] = ROLES.index("facilitating")
        role[has["N"]] = ROLES.index("interfering")
        role[has["F"] & has["N"]] = ROLES.index("mixed")
        return role

    def agreement(self) -> tuple[Tensor, Tensor]:
        """Each head's commonest role, and how many seeds agree on it: [layer, head] twice."""
        counts = torch.stack([(self.roles == n).sum(0) for n in range(len(ROLES))])
        return counts.argmax(0), counts.amax(0)

    def shares(self) -> dict[str, dict[str, float]]:
        """Of each role the share of heads that have it: on average, in every seed, in any seed.
        By the score alone, as published: a mixed head facilitates and interferes as well."""
        has = {metric: score >= _HAS_ROLE for metric, score in self.scores.items()}
        of = {
            "facilitating": has["F"],
            "irrelevant": has["I"],
            "interfering": has["N"],
            "mixed": has["F"] & has["N"],
            "none": ~(has["F"] | has["I"] | has["N"]),
        }
        return {
            name: {
                "mean": float(each.double().mean()),
                "always": float(each.all(0).double().mean()),
                "any": float(each.any(0).double().mean()),
            }
            for name, each in of.items()
        }

    def table(self) -> pd.DataFrame:
        """A row a seed and head: gates, scores, role."""
        layers, heads = self.shape
        names = [str(Head(layer, head)) for layer in range(layers) for head in range(heads)]
        return pd.DataFrame(
            {
                "seed": [seed for seed in self.fit.seeds for _ in names],
                "head": names * len(self.fit.seeds),
                "g_plus": self.fit.g_plus.flatten().double().numpy(),
                "g_minus": self.fit.g_minus.flatten().double().numpy(),
                **{name: score.flatten().double().numpy() for name, score in self.scores.items()},
                "role": [ROLES[number] for number in self.roles.flatten().tolist()],
            }
        )

    def as_head_scores(self, metric: str = "F") -> HeadScores:
        """One of the scores as a ranking; what stands for examples are the seeds."""
        fit = self.fit
        return HeadScores(
            model=fit.model,
            task=fit.task,
            method="gates",
            measure="log-prob",  # what the gates were fitted to
            reference=str(fit.settings.get("reference", "zero")),
            examples=[f"seed {seed}" for seed in fit.seeds],
            values=self.scores[metric].permute(1, 2, 0),
            clean=torch.full((len(fit.seeds),), torch.nan),
            settings={**fit.settings, "score": METRICS[metric]},
            fingerprints=fit.examples,
        )
