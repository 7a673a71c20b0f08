"""The demo: find a few heads of a real model, switch them off, and show what it then says."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from headlab import __version__
from headlab.ablation import Ablation, ablate
from headlab.engine import measure
from headlab.examples import Example
from headlab.figures import probability_bars, save
from headlab.files import write_whole
from headlab.gates import Gates
from headlab.heads import Head
from headlab.model import Model
from headlab.proofs import Check

N_HEADS = 5  # switched off at once
N_DRAWS = 20  # of as many random heads, the baseline
SEED = 0


@dataclass(frozen=True)
class Prompt:
    """A prompt everyone knows, and another of its kind on which the heads are found."""

    title: str
    text: str
    answer: str
    found_on: str
    found_answer: str


PROMPTS = [
    Prompt(
        "Who gets the drink?",
        "When Mary and John went to the store, John gave a drink to",
        " Mary",
        "After Anna and Peter sat down at the table, Peter passed the salt to",
        " Anna",
    ),
    Prompt(
        "A capital",
        "The capital of France is",
        " Paris",
        "The capital of Japan is",
        " Tokyo",
    ),
    Prompt(
        "What comes next?",
        "Monday, Tuesday, Wednesday, Thursday,",
        " Friday",
        "January, February, March, April,",
        " May",
    ),
]


@dataclass(frozen=True)
class Finding:
    """One prompt's result."""

    prompt: Prompt
    ablation: Ablation  # the chosen heads off
    draws: list[list[Head]]  # random other heads, as many
    random: list[float]  # the answer's probability with each draw off

    @property
    def random_mean(self) -> float:
        return sum(self.random) / len(self.random)


def investigate(model: Model, prompt: Prompt, advance: Callable[[int], None]) -> Finding:
    """Find the heads on one prompt, switch them off on the other, beside random ones."""
    found_on = Example(prompt.found_on, prompt.found_answer)
    scores = measure(model, [found_on], Gates.each_head(model), progress=advance).change[:, 0]
    order = [Head(*divmod(int(i), model.n_heads)) for i in scores.argsort()]
    chosen, rest = order[:N_HEADS], order[N_HEADS:]
    random = torch.Generator().manual_seed(SEED)
    draws = [
        [rest[i] for i in torch.randperm(len(rest), generator=random)[:N_HEADS]]
        for _ in range(N_DRAWS)
    ]
    gates = Gates.stack([Gates.ablate(model, draw) for draw in draws])
    probs = measure(model, [Example(prompt.text, prompt.answer)], gates).values[:, 0].exp()
    result = ablate(model, prompt.text, chosen, prompt.answer)
    return Finding(prompt, result, draws, probs.tolist())


def write_page(model: Model, check: Check, findings: list[Finding], folder: Path) -> Path:
    """The figure (PNG, PDF, CSV) and one self-contained page in `folder`; gives the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    caption = (
        f"{model.name}, {model.n_layers} x {model.n_heads} heads, gates 0, reference zero. "
        f"{N_HEADS} heads found by leave-one-out on another prompt of the kind (n = 1 each); "
        f"{N_DRAWS} random draws of {N_HEADS} other heads (seed {SEED}): dots, mean, range."
    )
    picture = save(
        probability_bars([_panel(each) for each in findings], caption),
        folder,
        "heads-off",
        [row for each in findings for row in _rows(each)],
    )
    environment = Environment(
        loader=PackageLoader("headlab", "report"), autoescape=True, undefined=StrictUndefined
    )
    page = folder / "index.html"
    html = environment.get_template("demo.html.j2").render(
        model=model,
        check=check,
        findings=findings,
        picture=base64.b64encode(picture.read_bytes()).decode(),
        n_heads=N_HEADS,
        n_draws=N_DRAWS,
        version=__version__,
    )
    write_whole(page, html)
    return page.resolve()


def _panel(finding: Finding) -> dict[str, Any]:
    return {
        "title": f"{finding.prompt.title}  ({finding.prompt.answer.strip()})",
        "clean": finding.ablation.before.prob,
        "chosen": finding.ablation.after.prob,
        "chosen_label": f"{N_HEADS} heads\noff",
        "random": finding.random,
        "random_label": f"{N_HEADS} random\noff",
    }


def _rows(finding: Finding) -> list[dict[str, Any]]:
    shared = {"prompt": finding.prompt.text, "answer": finding.prompt.answer}
    heads = " ".join(finding.ablation.heads)
    rows = [
        {**shared, "off": "none", "draw": "", "heads": "", "prob": finding.ablation.before.prob},
        {
            **shared,
            "off": "chosen",
            "draw": "",
            "heads": heads,
            "prob": finding.ablation.after.prob,
        },
    ]
    for number, (draw, prob) in enumerate(zip(finding.draws, finding.random, strict=True)):
        heads = " ".join(str(head) for head in draw)
        rows.append({**shared, "off": "random", "draw": number, "heads": heads, "prob": prob})
    return rows
