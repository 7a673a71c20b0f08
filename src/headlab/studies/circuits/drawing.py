"""What a run leaves in figures/: the study's figures, head maps, and tables of numbers."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headlab.figures import save_head_map, save_table
from headlab.studies.cells import slug
from headlab.studies.circuits.edges import save_edges
from headlab.studies.circuits.figure import save_figure
from headlab.studies.circuits.lines import Line
from headlab.studies.circuits.multipliers import Pairing, in_percent, levels_of, pairing_of

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.circuits.spec import CircuitsSpec


def published() -> dict[str, Any]:
    """The paper's numbers."""
    text = files("headlab.studies.circuits").joinpath("published.json").read_text()
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def draw_all(run: Run, spec: CircuitsSpec, lines: list[Line]) -> list[dict[str, str]]:
    """Every figure, and the two tables; gives the figures' files and what they show."""
    folder = run.folder / "figures"
    drawn: dict[str, str] = {}
    for method in spec.methods:
        own = [line for line in lines if line.method == method]
        if any(not line.finding for line in own):
            name = "circuits" if len(spec.methods) == 1 else f"circuits-{method}"
            pairs = pairing_of(spec, own).pairs
            save_figure(own, pairs, spec.threshold, published()["numbers"], folder, name)
            in_sample = ", in-sample" if spec.is_per_prompt(method) else ""
            drawn[name] = f"Explained effect against heads kept, ranked by {method}{in_sample}"
    pairing = pairing_of(spec, lines)
    if lines:
        save_table(_numbers(spec, pairing), folder, "numbers")
    if pairing.pairs:
        save_table(pairing.rows(levels_of(spec)), folder, "multipliers")
    for line in lines:
        name = _free("head-map", (line.model, line.task, line.method), drawn)
        save_head_map(line.scores, folder, name)
        drawn[name] = f"Head map of {line.model} on {line.task}, {line.method}"
    for line in {(line.model, line.task): line for line in reversed(lines)}.values():
        if line.edges is not None:
            name = _free("edges", (line.model, line.task), drawn)
            save_edges(line, line.edges, folder, name)
            drawn[name] = f"Edges kept by each head of {line.model} on {line.task}"
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in drawn.items()
    ]


def _free(kind: str, words: tuple[str, ...], taken: dict[str, str]) -> str:
    """A name for a figure; those of words that differ by signs only are numbered."""
    name = "-".join([kind, *map(slug, words)])
    numbered = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in numbered if each not in taken)


def _numbers(spec: CircuitsSpec, pairing: Pairing) -> list[dict[str, Any]]:
    """The report's table of numbers, a row a line; a line in several pairs has the first one's
    multiplier."""
    held = {id(other): one for one, other, _ in reversed(pairing.declared())}
    rows = []
    for line in pairing.lines:
        row: dict[str, Any] = {"model": line.model, "task": line.task, "method": line.method}
        row |= {"measure": line.measure, "prompts": line.n, "heads": line.n_heads}
        row |= {"clean": line.mean("clean"), "none": line.mean("none")}
        row["edges_percent"] = None if line.edges is None else 100 * float(line.edges.mean())
        for level in levels_of(spec):
            ends = line.crossing_interval(level) if line.curves else (None, None)
            name = f"k{in_percent(level)}"
            row[name] = line.crossing(level) if line.curves else None
            row[f"{name}_low"], row[f"{name}_high"] = ends
        k = line.crossing(spec.threshold) if line.curves else None
        row["random_at_k"] = None if k is None else line.random_at(k)
        for name in ("cpr", "cmd", "random_cpr", "matched_cpr", "beats_random", "beats_matched"):
            row[name] = line.mean(name) if line.curves else None
        row |= _against(pairing, held.get(id(line)), line, spec.threshold)
        rows.append({**row, "finding": line.finding})
    return rows


def _against(pairing: Pairing, dense: Line | None, line: Line, level: float) -> dict[str, Any]:
    names = ("against", "multiplier", "multiplier_low", "multiplier_high", "no_multiplier")
    if dense is None:
        return dict.fromkeys(names)
    found = pairing.multiplier(dense, line, level)
    values = (found.dense, found.value, found.low, found.high, found.reason)
    return dict(zip(names, values, strict=True))
