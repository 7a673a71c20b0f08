"""From a model and examples to a score for every head: `rank`, by one of several methods."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from headlab import __version__
from headlab.engine import Progress, ReferenceLike, measure
from headlab.errors import HeadlabError
from headlab.examples import Example, name_examples
from headlab.gates import AXES, ZERO, Gates, Reference
from headlab.gradients import BY_PASSES, gate_gradients, warn_of_hard_gates
from headlab.measures import Measure, find_measure
from headlab.noise import gradient_noise_floor, noise_floor
from headlab.scores import HeadScores
from headlab.screening import screen
from headlab.tasks import TASKS

if TYPE_CHECKING:
    from headlab.model import Model

METHODS = {
    "ablate": "each head switched off alone; exact",
    "patch": "each head alone given what it gives on the counterfactual; exact",
    "attribute": "the measure's gradient with respect to each head's gate; two passes",
    "random": "a random order: the baseline of all others",
}
LEARNED = ("gates", "contrastive", "probe")  # by fits of their own: gatefits, probing
Direction = Literal["noising", "denoising"]


def rank(
    model: Model,
    examples: Sequence[Example],
    method: str = "patch",
    measure_by: str | Measure | None = None,
    *,
    reference: ReferenceLike | None = None,
    scale: float = 0.0,
    direction: Direction = "noising",
    steps: int = 1,
    exact: int | None = None,
    seed: int = 0,
    task: str = "",
    progress: Progress | None = None,
) -> HeadScores:
    """A score for every head, the more of the measure it carries the higher.

    `reference` is what stands in for a head: zero for ablate, the counterfactual for patch, and for
    attribute the counterfactual where every example has one, else zero. `scale` is the gate of the
    head that is taken away. `direction` denoising puts a head of the clean run into the
    counterfactual one. `steps` of attribute: 1 is the gradient with all gates at 1 (denoising: at
    0), more is the mean over gates that move together from 0 to 1. `exact` of ablate and patch:
    only so many heads are run, those with the largest slopes, and a few of the others as a check
    (`screening`); what is left keeps the slope's estimate.

    >>> rank(model, examples, "patch").order()[:2]                            # doctest: +SKIP
    [Head(layer=23, head=3), Head(layer=20, head=0)]
    """
    require_method(method, direction, steps, scale, exact)
    chosen = find_measure(measure_by or default_measure(examples))
    named = name_examples(examples)
    reference = _reference(method, reference, named)
    if reference == "counterfactual" and (bare := [e for e in named if e.counterfactual is None]):
        raise HeadlabError(f"{bare[0].name} has no counterfactual, which {method} needs")
    if method == "attribute":
        warn_of_hard_gates(model, f"{BY_PASSES}, not by attribute")
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "ablate": _take_away,
        "patch": _take_away,
        "attribute": _attribute,
        "random": _random,
    }
    found = ways[method](
        model=model,
        examples=named,
        chosen=chosen,
        reference=reference,
        scale=scale,
        direction=direction,
        steps=steps,
        exact=exact,
        seed=seed,
        progress=progress,
    )
    return HeadScores(
        model=model.name,
        task=task,
        method=method,
        measure=chosen.name,
        reference=reference.kind if isinstance(reference, Reference) else reference,
        examples=[example.id for example in named],
        fingerprints=[example.fingerprint for example in named],
        scale=scale,
        is_distance=chosen.is_distance,
        settings={
            **({"direction": direction} if method in ("patch", "attribute") else {}),
            **({"steps": steps} if method == "attribute" else {}),
            **({"exact": exact} if found.get("estimated") else {}),
            **({"seed": seed} if method == "random" or found.get("estimated") else {}),
            "dtype": str(model.dtype).removeprefix("torch."),
            "bos": model.bos,
            "d_model": model.hf.config.get_text_config().hidden_size,
            "parallel_attn_mlp": bool(
                getattr(model.hf.config, "use_parallel_residual", False)
                or getattr(model.hf.config, "parallel_attn", False)
            ),
            "headlab": __version__,
        },
        **found,
    )


def require_method(
    method: str,
    direction: str = "noising",
    steps: int = 1,
    scale: float = 0.0,
    exact: int | None = None,
) -> None:
    """Refuse what no ranking knows, before anything is loaded."""
    if method not in METHODS:
        close = difflib.get_close_matches(method, [*METHODS, *LEARNED], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise HeadlabError(
            f"no method {method!r}{hint} (there are {', '.join([*METHODS, *LEARNED])})"
        )
    if direction not in ("noising", "denoising"):
        raise HeadlabError(f"the direction is noising or denoising, not {direction!r}")
    if direction == "denoising" and method not in ("patch", "attribute"):
        raise HeadlabError(f"denoising is a way to patch or attribute, not to {method}")
    if scale == 1:
        raise HeadlabError("a gate of 1 changes nothing; give another scale")
    if scale and method not in ("ablate", "patch"):
        raise HeadlabError(f"a scale is of ablate or patch, not of {method}")
    if steps < 1:
        raise HeadlabError(f"attribution takes at least one step, not {steps}")
    if steps > 1 and method != "attribute":
        raise HeadlabError(f"steps are of attribute, not of {method}")
    if exact is None:
        return
    if method not in ("ablate", "patch"):
        raise HeadlabError(f"exact is how many heads ablate or patch runs, not {method}")
    if exact < 1:
        raise HeadlabError(f"exact is at least one head to run, not {exact}")


def default_measure(examples: Sequence[Example]) -> str:
    """The logit difference where every example has a wrong answer (the probability difference
    where some have several right ones), else the target's log-prob."""
    if not examples or not all(each.wrong for each in examples):
        return "log-prob"
    return "prob-diff" if any(each.also_right for each in examples) else "logit-diff"


def measure_for(task: str, examples: Sequence[Example], given: str | None = None) -> Measure:
    """The measure asked for, or the task's own, or what the examples allow."""
    own = TASKS[task].measure if task in TASKS else default_measure(examples)
    return find_measure(given or own)


def _reference(
    method: str, given: ReferenceLike | None, examples: Sequence[Example]
) -> ReferenceLike:
    if method == "patch":
        if given not in (None, "counterfactual"):
            raise HeadlabError("patching takes the counterfactual; ablate takes other references")
        return "counterfactual"
    if given is not None:
        return given
    paired = all(example.counterfactual is not None for example in examples)
    return "counterfactual" if method == "attribute" and paired else ZERO


# --- the methods: each gives values [layer, head, example], clean [example], noise_floor ---


def _take_away(
    model: Model,
    examples: Sequence[Example],
    chosen: Measure,
    reference: ReferenceLike,
    scale: float,
    direction: Direction,
    exact: int | None,
    seed: int,
    progress: Progress | None,
    **_: Any,
) -> dict[str, Any]:
    back = direction == "denoising"  # heads of the clean run into the counterfactual one
    examples = [swap(example) for example in examples] if back else examples
    gates = Gates.each_head(model, scale)
    screened = None
    if exact is not None:
        screened = screen(model, examples, chosen, reference, exact, scale, seed, progress)
    if screened is not None:
        gates = Gates(gates.values[screened.run], " ".join(AXES))
    table = measure(model, examples, gates, chosen, reference, progress=progress)
    largest = table.change.double().mean(1).abs().topk(min(8, gates.n_masks)).indices.tolist()
    sign = 1 if back or chosen.is_distance else -1
    found: dict[str, Any] = {}
    change = table.change
    if screened is not None:
        change = screened.filled(change)
        found["estimated"], found["checked"] = screened.told(sign, model.n_heads)
    work = model, examples, gates, chosen, reference
    return {
        "values": (sign * change).view(model.n_layers, model.n_heads, -1),
        "clean": table.clean,
        "noise_floor": _floor(noise_floor, *work, always=largest),
        **found,
    }


def swap(example: Example) -> Example:
    """The counterfactual as the prompt, the prompt as the counterfactual; the same answers."""
    assert example.counterfactual is not None
    return replace(example, prompt=example.counterfactual, counterfactual=example.prompt)


def _attribute(
    model: Model,
    examples: Sequence[Example],
    chosen: Measure,
    reference: ReferenceLike,
    direction: Direction,
    steps: int,
    progress: Progress | None,
    **_: Any,
) -> dict[str, Any]:
    if steps == 1 and chosen.is_distance and direction == "noising":
        raise HeadlabError(
            f"{chosen.name} has no slope where nothing is changed; take --steps 5 or so"
        )
    if steps == 1:
        at = torch.tensor([0.0 if direction == "denoising" else 1.0])
    else:
        at = (torch.arange(steps) + 0.5) / steps  # midpoints; all gates move together
    gates = Gates(at[:, None, None].expand(-1, model.n_layers, model.n_heads).contiguous())
    found = gate_gradients(model, examples, gates, chosen, reference, progress=progress)
    gradient = found.gradient.mean(0)  # [example, layer, head]
    clean = measure(model, examples, Gates.ones(model), chosen, reference).clean
    return {
        "values": (-gradient if chosen.is_distance else gradient).permute(1, 2, 0),
        "clean": clean,
        "noise_floor": _floor(gradient_noise_floor, model, examples, gates, chosen, reference),
    }


def _random(
    model: Model, examples: Sequence[Example], chosen: Measure, seed: int, **_: Any
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(model.n_layers * model.n_heads, generator=random)
    values = order.view(model.n_layers, model.n_heads, 1) / len(order)
    return {
        "values": values.expand(-1, -1, len(examples)),
        "clean": measure(model, examples, Gates.ones(model), chosen).clean,
        "noise_floor": None,
    }


def _floor(how: Callable[..., float], *work: Any, **named: Any) -> float | None:
    try:
        return how(*work, **named)
    except (HeadlabError, RuntimeError, ValueError):
        return None  # no room for a wider copy, or none can be made of quantised weights
