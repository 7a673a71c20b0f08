"""The study's figures: accuracy before and after, and which heads the gates close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from headlab.aliases import ALIASES
from headlab.figures import BLUE, GREY, ORANGE, STYLE, add_caption, save
from headlab.heads import Head
from headlab.studies.contrastive.cell import VARIANTS, deals
from headlab.studies.contrastive.panels import NAMES, Panel, gates_of, layout, published
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.store import Run

_APART = 0.17  # kept to the left, forgotten to the right


def draw_all(run: Run, panels: list[Panel]) -> list[dict[str, str]]:
    folder = run.folder / "figures"
    save(accuracies(panels), folder, "contrastive", _rows(panels))
    save(gate_maps(panels), folder, "gates", _gate_rows(panels))
    told = (
        ("contrastive", "Accuracy on the task left out, before and after"),
        ("gates", "The gate of each head, mean over fits"),
    )
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in told
    ]


def accuracies(panels: Sequence[Panel]) -> Figure:
    """Rows formats kept, columns models; a task a place, its kept and its forgotten format."""
    kept, models, tasks = layout(panels)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(kept),
            len(models),
            figsize=(max(4.6, (0.62 * len(tasks) + 0.9) * len(models)), 2.3 * len(kept) + 0.7),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for panel in panels:
            axis = axes[kept.index(panel.kept), models.index(panel.model)]
            place = tasks.index(panel.task)
            _draw(axis, place - _APART, panel, panel.kept, BLUE)
            _draw(axis, place + _APART, panel, panel.forgotten, ORANGE)
        for row, format_ in zip(axes, kept, strict=True):
            row[0].set_ylabel("accuracy")
            for axis, model in zip(row, models, strict=True):
                axis.set_title(f"{model}, kept: {NAMES[format_]}", loc="left")
                axis.set_ylim(-0.04, 1.04)
                axis.set_xlim(-0.6, len(tasks) - 0.4)
        for axis in axes[-1]:
            axis.set_xticks(range(len(tasks)), tasks, rotation=30, ha="right")
        figure.tight_layout()
        marks: dict[str, Any] = {"ls": "", "ms": 5}
        handles = [
            Line2D([], [], color=BLUE, marker="o", label="kept", **marks),
            Line2D([], [], color=ORANGE, marker="o", label="forgotten", **marks),
            Line2D([], [], color="black", marker="o", mfc="none", label="before", **marks),
            Line2D([], [], color=GREY, marker="x", label="shuffled gates", **marks),
        ]
        if any(published_for(panel) for panel in panels):
            handles.append(
                Line2D([], [], color=GREY, marker="D", mfc="none", label="published", **marks)
            )
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.01, 1.0),
            ncols=len(handles),
            frameon=False,
            fontsize=7.5,
            handletextpad=0.2,
        )
        add_caption(figure, _caption(panels))
    return figure


def _draw(axis: Any, x: float, panel: Panel, format_: str, colour: str) -> None:
    before, _, _ = panel.accuracy(format_, "before")
    after, low, high = panel.accuracy(format_, "gates")
    shuffled, _, _ = panel.accuracy(format_, "shuffled")
    axis.plot([x, x], [before, after], color=colour, lw=1, alpha=0.5)
    axis.plot([x, x], [low, high], color=colour, lw=2.2, alpha=0.35, solid_capstyle="butt")
    seeds = panel.each_seed(format_)
    axis.plot([x] * len(seeds), seeds, ".", color=colour, ms=2.5, alpha=0.7)
    dealt = panel.found.values["right", format_, "shuffled"].double().mean(1)
    axis.plot([x, x], [float(dealt.min()), float(dealt.max())], color=GREY, lw=0.9)
    axis.plot(x, shuffled, "x", color=GREY, ms=4, mew=0.9)
    axis.plot(x, before, "o", mfc="white", mec=colour, ms=4.5, mew=1.0)
    axis.plot(x, after, "o", color=colour, ms=4.5)
    if (known := published_for(panel)) is not None:
        axis.plot(x, known[format_][1], "D", mfc="none", mec=GREY, ms=4.5, mew=0.9)


def published_for(panel: Panel) -> dict[str, list[float]] | None:
    """The paper's accuracies before and after, by format: of the very model and task."""
    numbers = published()
    same = ALIASES.get(panel.source, panel.source) == numbers["model"]
    return numbers["accuracy"][panel.kept] if same and panel.task == numbers["task"] else None


def gate_maps(panels: Sequence[Panel]) -> Figure:
    """Rows models, columns formats kept: layers from left to right, heads from top to bottom."""
    kept, models, _ = layout(panels)
    found = {(m, f): gates_of(panels, m, f) for m in models for f in kept}
    layers = max(gates.shape[1] for gates in found.values() if gates is not None)
    with plt.rc_context(STYLE):
        cell = min(0.16, 8 / layers)
        heads = [next(g.shape[2] for f in kept if (g := found[m, f]) is not None) for m in models]
        figure, axes = plt.subplots(
            len(models),
            len(kept),
            figsize=(
                max(3.0, cell * layers + 0.9) * len(kept) + 0.5,
                sum(max(0.8, cell * n) + 0.75 for n in heads),
            ),
            squeeze=False,
            height_ratios=[max(0.8, cell * n) for n in heads],
            layout="constrained",
        )
        for row, model in zip(axes, models, strict=True):
            for axis, format_ in zip(row, kept, strict=True):
                gates = found[model, format_]
                axis.set_title(f"{model}, kept: {NAMES[format_]}", loc="left")
                axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
                axis.tick_params(length=0, labelsize=7)
                if gates is None:
                    continue
                picture = axis.imshow(
                    gates.mean(0).T.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto"
                )
            row[0].set_ylabel("head")
        for axis in axes[-1]:
            axis.set_xlabel("layer")
        bar = figure.colorbar(picture, ax=axes, fraction=0.03, pad=0.02)
        bar.set_label("gate", fontsize=8)
        bar.outline.set_visible(False)
        first = panels[0].found
        add_caption(
            figure,
            f"The gate of each head, mean over the fits of all tasks left out and of "
            f"{count(len(first.fit.seeds), 'seed')}; "
            f"{count(first.fit.settings['updates'], 'update')}, batch "
            f"{first.fit.settings['batch']}, λ = {first.fit.settings['strength']:g}, reference "
            f"{first.fit.settings['reference']}.",
        )
    return figure


def _caption(panels: Sequence[Panel]) -> str:
    first = panels[0].found
    settings = first.fit.settings
    heads = dict.fromkeys(f"{p.model} {p.found.fit.logits[0].numel()} heads" for p in panels)
    numbers = sorted({len(panel.found.tested) for panel in panels})
    n = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    marked = any(published_for(panel) for panel in panels)
    return (
        f"{', '.join(heads)}. Each task was left out of the fit and asked afterwards: n = {n} "
        f"pairs, right when every token of the answer is the most likely one. Gates of "
        f"{count(len(first.fit.seeds), 'seed')} (dots), {count(settings['updates'], 'update')}, "
        f"batch "
        f"{settings['batch']}, λ = {settings['strength']:g}, reference {settings['reference']}. "
        f"Bars: 95 % over pairs. Shuffled: the same gates on other heads, "
        f"{deals(len(first.fit.seeds)) * len(first.fit.seeds)} deals, grey from the least to the "
        f"most.{' Diamonds: the paper.' if marked else ''}"
    )


def _rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    rows = []
    for panel in panels:
        for format_ in (panel.kept, panel.forgotten):
            for variant in VARIANTS:
                value, low, high = panel.accuracy(format_, variant)
                rows.append(
                    {
                        "model": panel.model,
                        "left out": panel.task,
                        "kept": panel.kept,
                        "asked": format_,
                        "variant": variant,
                        "accuracy": value,
                        "low": low,
                        "high": high,
                        "log_prob": panel.log_prob(format_, variant),
                        "n": len(panel.found.tested),
                    }
                )
    return rows


def _gate_rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    kept, models, _ = layout(panels)
    rows = []
    for model in models:
        for format_ in kept:
            gates = gates_of(panels, model, format_)
            if gates is None:
                continue
            for layer in range(gates.shape[1]):
                for head in range(gates.shape[2]):
                    own = gates[:, layer, head]
                    rows.append(
                        {
                            "model": model,
                            "kept": format_,
                            "head": str(Head(layer, head)),
                            "gate": float(own.mean()),
                            "closed": float((own < 0.5).double().mean()),
                            "fits": len(own),
                        }
                    )
    return rows
