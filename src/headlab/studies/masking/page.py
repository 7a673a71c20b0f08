"""The study's figures and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.stats import spearmanr

from headlab.files import write_whole
from headlab.gatefits import few_updates
from headlab.grading.answers import find_answer
from headlab.report import render, rounded
from headlab.studies.facts import asked, cite, facts, run_warnings
from headlab.studies.masking.figure import (
    draw_all,
    of_first_ranking,
    published_cross,
    published_for,
)
from headlab.studies.masking.grades import ACCURACY
from headlab.studies.masking.panels import Panel, Point, read_panels
from headlab.studies.spec import MIN_ORDERS
from headlab.tasks.cogqa import FUNCTIONS
from headlab.wording import count, percent, points

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.masking.spec import MaskingSpec

_PAPER = ("Cognitive Mirrors", "2512.10978", "2025")
_WEAK = 0.2  # right without masks: with less, there is little to lose
_FEW = 30  # questions of a function
_LONG = 6  # sentences that open a page; where there are more, a cell has one


def write_report(run: Run) -> Path:
    """Figures and report.html of a run, finished or not; gives the page's path."""
    spec: MaskingSpec = run.spec  # type: ignore[assignment]
    panels = read_panels(run)
    figures = draw_all(run, panels) if panels else []
    page = render(
        "masking" if panels else "frame",
        _data(panels),
        title="Do the top heads of a function carry it, against random ones?",
        lead=_page_lead(panels),
        asked=[
            *asked(spec),
            ("functions", ", ".join(FUNCTIONS[name] for name in spec.functions)),
            ("heads ranked by", ", ".join(spec.rank_by)),
            ("heads masked", _ks(spec)),
            ("masks act on", f"{spec.positions} tokens, z x {spec.scale:g}"),
            ("random draws", f"{spec.draws} of each K, and as many of the same layers"),
            ("questions", "built in" if spec.data is None else Path(spec.data).name),
            ("at most", f"{spec.max_new_tokens} tokens an answer"),
        ],
        warnings=_warnings(run, spec, panels),
        examples=[],
        figures=figures,
        **facts(run),
        cite=cite(*_PAPER),
    )
    path = run.folder / "report.html"
    write_whole(path, page)
    return path.resolve()


def _ks(spec: MaskingSpec) -> str:
    if spec.ks == "shares":
        return "1.6, 3.1, 6.25 and 12.5 % of all"
    return ", ".join(str(k) for k in spec.ks)


# --- what is found, in words ---


def findings(run: Run) -> list[str]:
    """A sentence for each cell and function."""
    return _lead(read_panels(run))


def _lead(panels: list[Panel]) -> list[str]:
    told = []
    for panel in panels:
        if panel.probe_says is not None:
            told.append(panel.probe_says)
        told += [_sentence(panel, name) for name in panel.functions]
    return told


def _page_lead(panels: list[Panel]) -> list[str]:
    """The findings; where they are many, a sentence a cell, or a ranking."""
    told = _lead(panels)
    if len(told) <= _LONG:
        return told
    groups = [[panel] for panel in panels]
    if len(groups) > _LONG:
        names = dict.fromkeys(panel.ranking for panel in panels)
        groups = [[panel for panel in panels if panel.ranking == name] for name in names]
    return [_summary(group, panels) for group in groups]


def _summary(group: list[Panel], panels: list[Panel]) -> str:
    """For which functions the top heads matter at the largest K; of several cells, how often."""
    said = {
        "below": "the top heads matter more than random ones",
        "above": "random heads matter more",
        "open": "nothing can be concluded",
    }
    found: dict[str, list[str]] = {verdict: [] for verdict in said}
    for panel in group:
        for name in panel.functions:
            found[panel.verdict(name, panel.found.ks[name][-1])].append(FUNCTIONS[name])
    total = sum(len(names) for names in found.values())
    parts = [
        f"{said[verdict]} "
        + (f"for {', '.join(names)}" if len(group) == 1 else f"in {len(names)} of {total}")
        for verdict, names in found.items()
        if names
    ]
    first, several = group[0], len({panel.seed for panel in panels}) > 1
    if len(group) == 1:
        of = f"{first.model}, by {first.ranking}{f', seed {first.seed}' if several else ''}"
    else:
        seeds = " x seeds" if several else ""
        of = f"By {first.ranking}, functions x models{seeds}"
    return f"{of}, at the largest K: {'; '.join(parts)}."


def _sentence(panel: Panel, name: str) -> str:
    k = panel.found.ks[name][-1]
    none = panel.unmasked(name)
    top, random = (panel.point(name, kind, k) for kind in ("top", "random"))
    apart, low, high = panel.fall(name, k)
    low_draw, high_draw = (percent(end) for end in random.band)
    draws = count(len(random.draws), "draw")
    said = {
        "below": "the top heads matter more than random ones",
        "above": "random heads matter more than the top ones",
        "open": "nothing can be concluded",
    }[panel.verdict(name, k)]
    return (
        f"{panel.model}, {FUNCTIONS[name]}, by {panel.ranking}: right {_share(none)} with all "
        f"heads; with {k} of {panel.total} masked {_share(top)} (top), {percent(random.mean)} "
        f"(random, {low_draw} to {high_draw} in {draws}); random less top "
        f"{points(apart)} points ({points(low)} to {points(high)}), p = "
        f"{panel.draw_p(name, k):.2g} over draws: {said}."
    )


def _share(point: Point) -> str:
    return f"{percent(point.mean)} ({percent(point.low)} to {percent(point.high)})"


def warnings(run: Run) -> list[str]:
    return _warnings(run, run.spec, read_panels(run))  # type: ignore[arg-type]


def _warnings(run: Run, spec: MaskingSpec, panels: list[Panel]) -> list[str]:
    told = run_warnings(run, any(panel.found.backed_off for panel in panels))
    if spec.draws < MIN_ORDERS:
        told.append(
            f"A quick look: {count(spec.draws, 'random draw')} stand behind a baseline, where "
            f"{MIN_ORDERS} should."
        )
    if spec.positions == "all":
        told.append(
            "Masks act on the prompt too: a stronger intervention than the paper's, which leaves "
            "the prompt alone."
        )
    if "gates" in spec.rank_by:
        told += few_updates(spec.updates)
    lent = {
        f"{FUNCTIONS[name]} {panel.borrowed(name, k)} of {k}": None
        for panel in of_first_ranking(panels)
        for name in panel.functions
        for k in panel.found.ks[name][-1:]
        if panel.borrowed(name, k)
    }
    if lent:
        told.append(
            "Some layers have too few other heads for the same-layer control; taken from the next "
            f"layers at the largest K: {', '.join(lent)}."
        )
    few = {
        FUNCTIONS[name]: panel.unmasked(name).n
        for panel in panels
        for name in panel.functions
        if panel.unmasked(name).n < _FEW
    }
    if few:
        each = ", ".join(f"{name} {n}" for name, n in few.items())
        told.append(f"Few questions to test on: {each}. Intervals are wide.")
    weak = dict.fromkeys(
        f"{FUNCTIONS[name]} ({panel.model})"
        for panel in panels
        for name in panel.functions
        if panel.unmasked(name).mean < _WEAK
    )
    if weak:
        told.append(
            f"Right on less than {percent(_WEAK)} even with all heads: {', '.join(weak)}. There "
            "is little that masking could take away."
        )
    for panel in panels[:1]:
        if panel.found.left_out or panel.found.cast:
            parts = [f"{n} {reason}" for reason, n in panel.found.left_out.items()]
            if panel.found.cast:
                parts.append(f"{panel.found.cast} answers that were numbers became text")
            told.append(f"Of the data, left out or changed: {'; '.join(parts)}.")
    for panel in of_first_ranking(panels):
        unread = 1 - float(panel.texts.loc[panel.texts["kind"] == "none", "in_json"].mean())
        if unread > 0:
            told.append(
                f"{panel.model}: {percent(unread)} of the unmasked answers are no JSON; their "
                "first paragraph was judged."
            )
    missing = {name: why for panel in panels for name, why in panel.grades.missing.items()}
    for name, why in missing.items():
        told.append(f"Not graded: {name} ({why}); headlab report grades it where it can.")
    return told


# --- the report's data ---


def _data(panels: list[Panel]) -> dict[str, Any]:
    functions = {name for panel in panels for name in panel.functions}
    shapes = {panel.model: panel.found.shape for panel in panels}
    return {
        "models": [
            {"name": model, "layers": layers, "heads": heads}
            for model, (layers, heads) in shapes.items()
        ],
        "functions": [
            {"name": name, "title": title} for name, title in FUNCTIONS.items() if name in functions
        ],
        "titles": FUNCTIONS,  # of all that a probe tells apart
        "rankings": list(dict.fromkeys(panel.ranking for panel in panels)),
        "seeds": sorted({panel.seed for panel in panels}),
        "boosts": any(panel.has("boosted", name) for panel in panels for name in panel.functions),
        "panels": [_panel(panel) for panel in panels],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    found = panel.found
    return {
        "model": panel.model,
        "ranking": panel.ranking,
        "seed": panel.seed,
        "total": panel.total,
        "where": panel.where,
        "labels": panel.grades.labels,
        "probe": found.probe,
        "train_right": found.right,
        "functions": [_function(panel, name) for name in panel.functions],
        "cross": _cross(panel),
        "answers": _answers(panel),
    }


def _function(panel: Panel, name: str) -> dict[str, Any]:
    ks, scores = panel.found.ks[name], list(panel.grades.labels)
    kinds = [
        kind
        for kind in ("top", "random", "matched", "boosted", "boosted-random")
        if panel.has(kind, name)
    ]
    known: dict[str, Any] = {
        "name": name,
        "ks": ks,
        "elbow": panel.found.elbows[name],
        "n": panel.unmasked(name).n,
        "unmasked": {score: _point(panel.unmasked(name, score)) for score in scores},
        "lines": {
            kind: {
                score: [_point(panel.point(name, kind, k, score)) for k in ks] for score in scores
            }
            for kind in kinds
        },
        "falls": {score: [rounded(panel.fall(name, k, score)) for k in ks] for score in scores},
        "verdicts": {score: [panel.verdict(name, k, score) for k in ks] for score in scores},
        "map": [rounded(row) for row in panel.found.scores[name].tolist()],
        "order": panel.order(name),
        "published": published_for(panel, name),
    }
    if "boosted" in kinds:
        # By accuracy alone: the other scores compare with the very answer that is to be improved.
        known["gains"] = [rounded(panel.gain(name, k)) for k in ks]
    return known


def _point(point: Point) -> dict[str, Any]:
    return {
        "mean": rounded([point.mean])[0],
        "low": rounded([point.low])[0],
        "high": rounded([point.high])[0],
        "band": rounded(point.band),
        "draws": len(point.draws),
    }


def _cross(panel: Panel) -> list[dict[str, Any]]:
    """A row for the heads of one function, so many of them, on the questions of another."""
    if not panel.has_cross:
        return []
    rows = []
    for heads_of in panel.functions:
        for name in panel.functions:
            for k in panel.found.ks[heads_of]:
                points = {
                    score: panel.point(name, "top", k, score, heads_of)
                    for score in panel.grades.labels
                }
                rows.append(
                    {
                        "heads_of": heads_of,
                        "asked": name,
                        "k": k,
                        "scores": {
                            score: rounded((point.mean, point.low, point.high))
                            for score, point in points.items()
                        },
                        "published": published_cross(panel, heads_of, name),
                    }
                )
    return rows


def _answers(panel: Panel) -> list[dict[str, Any]]:
    """Some questions with the answers before and after, the first random draw beside them."""
    found, texts = panel.found, panel.texts
    shown = []
    for id, prompt in found.prompts.items():
        item = found.items[id]
        own = texts[(texts["item"] == id) & (texts["heads_of"].isin(["", item["function"]]))]
        own = own[(own["draw"] == 0) & own["kind"].isin(["none", "top", "random"])]
        shown.append(
            {
                **item,
                "id": id,
                "prompt": prompt,
                "texts": [
                    {
                        "kind": row.kind,
                        "k": int(row.k),
                        "text": row.text,
                        "read": find_answer(row.text),
                        "right": bool(getattr(row, ACCURACY)),
                    }
                    for row in own.sort_values(["k", "kind"]).itertuples()
                ],
            }
        )
    return shown


# --- two runs side by side ---


def compare(one: Run, other: Run) -> list[dict[str, str]]:
    """A row for each model, ranking and function of both."""
    rows = []
    for a in read_panels(one):
        for b in read_panels(other):
            if (a.source, a.ranking, a.seed) != (b.source, b.ranking, b.seed):
                continue
            for name in [name for name in a.functions if name in b.functions]:
                k = max(set(a.found.ks[name]) & set(b.found.ks[name]), default=None)
                row = {"function": FUNCTIONS[name], "model": a.model, "ranking": a.ranking}
                row["right"] = "; ".join(percent(p.unmasked(name).mean) for p in (a, b))
                for kind in ("top", "random"):
                    row[f"{kind} {k or ''}".strip()] = "; ".join(
                        "-" if k is None else percent(p.point(name, kind, k).mean) for p in (a, b)
                    )
                sizes = (p.sizes(name).flatten() for p in (a, b))
                row["heads"] = f"rank correlation {float(spearmanr(*sizes).statistic):.2f}"
                rows.append(row)
    return rows
