"""The demo: which heads of a real model find the receiver, proved on prompts not yet seen."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from headlab import __version__
from headlab.ablation import Ablation, ablate
from headlab.engine import Measured, measure
from headlab.examples import Example
from headlab.figures import ablation_bars, save, save_head_map
from headlab.files import write_whole
from headlab.gates import Gates
from headlab.heads import Head
from headlab.model import Model
from headlab.proofs import Check
from headlab.ranking import rank
from headlab.scores import HeadScores
from headlab.stats import mean_interval, share_interval
from headlab.tasks import ioi

N_PROMPTS = 16  # the heads are found on so many, and tested on as many others
N_HEADS = 5  # switched off together
N_SHOWN = 10  # in the table
N_DRAWS = 20  # of as many random heads, the baseline
SEED = 0
FAMOUS = "When Mary and John went to the store, John gave a drink to", " Mary"


@dataclass(frozen=True)
class Tested:
    """A measure on the prompts not used for finding, [.., example]."""

    measure: str
    clean: Tensor  # [example]
    chosen: Tensor  # [example], the chosen heads off
    random: Tensor  # [draw, example]
    single: Tensor  # [shown head, example], each off alone

    def mean(self, part: str) -> tuple[float, float, float]:
        """Mean and 95 % interval over prompts."""
        values = getattr(self, part)
        mean = float(values.double().mean())
        if self.measure == "choice-accuracy":
            return mean, *share_interval(int(values.sum()), len(values))
        low, high = mean_interval(values)
        return mean, float(low), float(high)

    @property
    def draws(self) -> list[float]:
        return self.random.double().mean(1).tolist()

    @property
    def single_change(self) -> list[tuple[float, float, float]]:
        """Of each shown head: mean change and its interval."""
        change = self.single - self.clean
        low, high = mean_interval(change)
        return list(zip(change.double().mean(1).tolist(), low.tolist(), high.tolist(), strict=True))


@dataclass(frozen=True)
class Findings:
    """All that the page shows."""

    examples: list[Example]  # the first half to find on, the second to test on
    scores: HeadScores
    shown: list[Head]  # the largest, helping or hindering
    chosen: list[Head]  # the most helpful
    draws: list[list[Head]]  # random other heads, as many
    logit_diff: Tested
    accuracy: Tested
    famous: Ablation


def total_work(model: Model) -> int:
    """Pairs of a mask and an example that `investigate` runs: what its progress counts up to."""
    heads = model.n_layers * model.n_heads
    return N_PROMPTS * (heads + 2 * (1 + N_DRAWS + N_SHOWN))


def investigate(model: Model, advance: Callable[[int], None]) -> Findings:
    """Find the heads on some prompts; switch them off on others, beside random ones."""
    examples = ioi.generate(model, 2 * N_PROMPTS, SEED)
    scores = rank(model, examples[:N_PROMPTS], "ablate", "logit-diff", task="ioi", progress=advance)
    order = scores.order()
    chosen, rest = order[:N_HEADS], order[N_HEADS:]
    random = torch.Generator().manual_seed(SEED)
    draws = [
        [rest[i] for i in torch.randperm(len(rest), generator=random)[:N_HEADS]]
        for _ in range(N_DRAWS)
    ]
    shown = scores.order(by_size=True)[:N_SHOWN]
    gates = Gates.stack(
        [Gates.ablate(model, heads) for heads in [chosen, *draws, *([head] for head in shown)]]
    )

    def test(measure_by: str) -> Tested:
        table = measure(model, examples[N_PROMPTS:], gates, measure_by, progress=advance)
        return _tested(table)

    return Findings(
        examples,
        scores,
        shown,
        chosen,
        draws,
        test("logit-diff"),
        test("choice-accuracy"),
        ablate(model, FAMOUS[0], chosen, FAMOUS[1]),
    )


def _tested(table: Measured) -> Tested:
    values = table.values
    return Tested(
        table.measure.name,
        table.clean,
        values[0],
        values[1 : 1 + N_DRAWS],
        values[1 + N_DRAWS :],
    )


def write_page(model: Model, check: Check, findings: Findings, folder: Path) -> Path:
    """Figures (PNG, PDF, CSV) and one self-contained page in `folder`; gives the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{model.name}, {model.n_layers} x {model.n_heads} heads, task ioi"
    head_map_file = save_head_map(findings.scores, folder)
    bars_file = save(
        ablation_bars(
            [
                _panel("logit difference", findings.logit_diff),
                _panel("share of prompts answered right", findings.accuracy),
            ],
            f"{about}. The {N_HEADS} most helpful heads ({', '.join(map(str, findings.chosen))}), "
            f"found on {N_PROMPTS} prompts, off together on n = {N_PROMPTS} others (lines: 95 % "
            f"intervals, bootstrap and Wilson), and {N_DRAWS} random draws of {N_HEADS} other "
            f"heads (seed {SEED}; dots: draws, line: their range). Gates 0, reference zero.",
        ),
        folder,
        "heads-off",
        _rows(findings),
    )
    environment = Environment(
        loader=PackageLoader("headlab", "report"), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template("demo.html.j2").render(
        model=model,
        check=check,
        found=findings,
        n_prompts=N_PROMPTS,
        n_heads=N_HEADS,
        n_draws=N_DRAWS,
        head_map=_embedded(head_map_file),
        bars=_embedded(bars_file),
        version=__version__,
    )
    page = folder / "index.html"
    write_whole(page, html)
    return page.resolve()


def _embedded(picture: Path) -> str:
    return base64.b64encode(picture.read_bytes()).decode()


def _panel(title: str, tested: Tested) -> dict[str, Any]:
    return {
        "title": title,
        "clean": tested.mean("clean"),
        "chosen": tested.mean("chosen"),
        "random": tested.draws,
        "labels": [f"{N_HEADS} heads\noff", f"{N_HEADS} random\noff"],
    }


def _rows(findings: Findings) -> list[dict[str, Any]]:
    """One row a set of heads and measure."""
    rows: list[dict[str, Any]] = []
    chosen = " ".join(map(str, findings.chosen))
    for tested in (findings.logit_diff, findings.accuracy):
        for off, heads in (("clean", ""), ("chosen", chosen)):
            mean, low, high = tested.mean(off)
            rows.append(_row(tested.measure, off, heads, mean, low, high))
        for draw, mean in zip(findings.draws, tested.draws, strict=True):
            rows.append(_row(tested.measure, "random", " ".join(map(str, draw)), mean))
    return rows


def _row(
    measure: str, off: str, heads: str, mean: float, low: float | str = "", high: float | str = ""
) -> dict[str, Any]:
    return {"measure": measure, "off": off, "heads": heads, "mean": mean, "low": low, "high": high}
