"""One prompt, some heads: the target's log-prob and the next tokens, before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlab import __version__
from headlab.errors import HeadlabError
from headlab.gates import (
    ZERO,
    Gates,
    Heads,
    Reference,
    counterfactual_reference,
    mean_reference,
)
from headlab.heads import as_heads

if TYPE_CHECKING:
    from headlab.model import Model


@dataclass(frozen=True)
class Prediction:
    """What the model says after the prompt."""

    log_prob: float  # of the whole target
    top: list[tuple[str, float]]  # the likeliest next tokens with their probabilities

    @property
    def prob(self) -> float:
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class Ablation:
    """A prompt with and without the intervention."""

    model: str
    prompt: str
    target: str
    target_tokens: list[str]
    heads: list[str]
    keep: bool
    scale: float
    reference: str
    before: Prediction
    after: Prediction
    settings: dict[str, Any]  # what else it takes to compute this again
    target_given: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def change(self) -> float:
        """How much the target's log-prob rose; negative where the heads had helped."""
        return self.after.log_prob - self.before.log_prob

    def as_dict(self) -> dict[str, Any]:
        record = asdict(self)
        for side in ("before", "after"):
            record[side]["prob"] = getattr(self, side).prob
            record[side]["top"] = [
                {"token": token, "prob": prob} for token, prob in record[side]["top"]
            ]
        return {**record, "change": self.change}


def ablate(
    model: Model,
    prompt: str,
    heads: Heads,
    target: str | None = None,
    *,
    keep: bool = False,
    scale: float = 0.0,
    reference: str = "zero",
    reference_data: Sequence[str] = (),
    per_position: bool = False,
    counterfactual: str | None = None,
    top: int = 5,
) -> Ablation:
    """Set the heads' gates to `scale` (with `keep`, all other heads' gates) and compare.

    Without a target, the model's own likeliest next token is taken. The reference is zero, the mean
    over the clean runs of `reference_data`, or the same heads on `counterfactual`.

    >>> ablate(model, "The capital of France is", ["L23H4"], " Paris").change # doctest: +SKIP
    -1.69996...
    """
    named = as_heads(heads)
    if not named:
        raise HeadlabError("no heads given; name at least one, e.g. L5H1")
    gates = (Gates.keep if keep else Gates.ablate)(model, named, scale)
    given = target is not None
    if target is None:
        ids = model.ids(prompt)
        likeliest = model(ids)[0, -1].argmax()[None].cpu()
        joined, start = torch.cat([ids, likeliest]), len(ids)
        target = model.token_texts(likeliest)[0]
    else:
        joined, start = model.join(prompt, target)
    fed = joined[:-1]  # the last target token is only predicted
    stand_in = _reference(
        model,
        reference,
        fed,
        prompt,
        joined[start:-1],
        reference_data,
        per_position,
        counterfactual,
    )
    before = _predict(model(fed)[0], joined, start, model, top)
    with model.gated(gates, stand_in):
        after = _predict(model(fed)[0], joined, start, model, top)
    return Ablation(
        model=model.name,
        prompt=prompt,
        target=target,
        target_tokens=model.token_texts(joined[start:]),
        heads=[str(head) for head in named],
        keep=keep,
        scale=scale,
        reference=reference,
        before=before,
        after=after,
        settings={
            "counterfactual": counterfactual,
            "reference_prompts": len(reference_data),
            "per_position": per_position,
            "dtype": str(model.dtype).removeprefix("torch."),
            "bos": model.bos,
            "headlab": __version__,
        },
        target_given=given,
        notes=_notes(prompt, target, given),
    )


def log_probs(logits: Tensor, joined: Tensor, start: int) -> Tensor:
    """Log-prob of each target token: logits [..., position, vocabulary] -> [..., target token].

    `joined` are the ids of prompt and target, the target's from `start` on; the logits at position
    p predict token p + 1.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = logits[..., start - 1 : len(joined) - 1, :].to(wide).log_softmax(-1)
    index = joined[start:].to(scores.device)[:, None].expand(*scores.shape[:-1], 1)
    return scores.gather(-1, index).squeeze(-1)


def _predict(logits: Tensor, joined: Tensor, start: int, model: Model, top: int) -> Prediction:
    if not torch.isfinite(logits).all():
        raise HeadlabError("the logits are not finite numbers under these gates; use smaller ones")
    following = logits[start - 1].float().softmax(-1).topk(min(top, logits.shape[-1]))
    likeliest = list(
        zip(model.token_texts(following.indices), following.values.tolist(), strict=True)
    )
    return Prediction(float(log_probs(logits, joined, start).sum()), likeliest)


def _reference(
    model: Model,
    kind: str,
    fed: Tensor,
    prompt: str,
    continuation: Tensor,
    reference_data: Sequence[str],
    per_position: bool,
    counterfactual: str | None,
) -> Reference:
    if kind not in ("zero", "mean", "counterfactual"):
        raise HeadlabError(f"the reference is zero, mean or counterfactual, not {kind!r}")
    if kind == "mean":
        if not reference_data:
            raise HeadlabError("a mean reference needs prompts to average over (reference data)")
        mean = mean_reference(model, reference_data, per_position)
        if per_position and mean.values is not None and mean.values.shape[2] != len(fed):
            raise HeadlabError(
                f"the reference prompts have {mean.values.shape[2]} tokens, prompt and target "
                f"together {len(fed) + 1}; a mean per position needs one token less than these"
            )
        return mean
    if kind == "counterfactual":
        if not counterfactual:
            raise HeadlabError("a counterfactual reference needs the counterfactual prompt")
        # Compared without the target first: the message should count the user's own tokens.
        counterfactual_reference(model, [prompt], [counterfactual])
        corrupt = torch.cat([model.ids(counterfactual), continuation])
        return counterfactual_reference(model, [fed], [corrupt])
    return ZERO


def _notes(prompt: str, target: str, given: bool) -> list[str]:
    if given and not target[0].isspace() and not prompt[-1].isspace() and target[0].isalnum():
        return [
            f"the target {target!r} joins the prompt's last word; did you mean {' ' + target!r}?"
        ]
    return []
