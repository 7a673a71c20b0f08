"""How training went: edges, constraint, the penalty's weight and the tasks, against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

from headlab.figures import BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headlab.sparse.settings import Settings

_COLOURS = (GREEN, PINK, ORANGE, BLUE)


def save_training(
    log: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    settings: Settings,
    dense: Mapping[str, float],
    name: str,
    folder: Path,
) -> Path:
    """training.png, .pdf and .csv; `dense` is what the dense model reaches at each task."""
    by_step = {each["step"]: each for each in measured}
    rows = [
        {
            **row,
            **{
                f"held out: {key}": by_step.get(row["step"], {}).get(key) for key in _kept(measured)
            },
        }
        for row in log
    ]
    folder.mkdir(parents=True, exist_ok=True)
    return save(_draw(log, measured, settings, dense, name), folder, "training", rows)


def _kept(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    return [key for key in (measured[0] if measured else {}) if key not in ("map", "step", "name")]


def _draw(
    log: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    settings: Settings,
    dense: Mapping[str, float],
    name: str,
) -> Figure:
    steps = [row["step"] for row in log]
    at = [each["step"] for each in measured]
    with plt.rc_context(STYLE):
        n = 4 if dense else 3  # a task was watched, or none
        figure, axes = plt.subplots(1, n, figsize=(3 * n, 2.7))
        edges, bound, beta = axes[:3]
        edges.semilogy(steps, [100 * row["edges"] for row in log], color=BLUE, lw=0.7, alpha=0.5)
        edges.semilogy(at, [100 * each["edges"] for each in measured], "o-", color=BLUE, ms=2.5)
        for level in settings.levels:
            edges.axhline(level, color=GREY, lw=0.5, ls=":")
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        edges.yaxis.set_major_formatter(plain)
        edges.yaxis.set_minor_formatter(NullFormatter())
        edges.set_title("edges open (%)", loc="left")
        _constraint(bound, log, steps, measured, at, settings)
        beta.semilogy(steps, [row["beta"] for row in log], color=ORANGE, lw=1)
        beta.yaxis.set_major_formatter(plain)
        beta.yaxis.set_minor_formatter(NullFormatter())
        beta.set_title("weight of the penalty, β", loc="left")
        if dense:
            _tasks(axes[3], measured, at, dense)
        for axis in axes:
            axis.set_xlabel("step")
            _mark_levels(axis, measured)
        figure.tight_layout()
        add_caption(figure, _caption(settings, name))
    return figure


def _constraint(
    axis: Axes,
    log: Sequence[Mapping[str, Any]],
    steps: list[int],
    measured: Sequence[Mapping[str, Any]],
    at: list[int],
    settings: Settings,
) -> None:
    kl = settings.constraint == "kl"
    drawn = [row["kl"] if kl else row["loss"] - row["dense_loss"] for row in log]
    axis.plot(steps, drawn, color=GREEN, lw=0.7, alpha=0.4)
    axis.plot(steps, [row["constraint"] for row in log], color=GREEN, lw=1.2)
    if kl:
        axis.plot(at, [each["kl"] for each in measured], "o", color=GREEN, ms=3)
    axis.axhline(settings.bound, color="black", lw=0.7, ls=(0, (4, 3)))
    axis.set_title(
        "distance to the dense model (nats)" if kl else "loss above the dense model's (nats)",
        loc="left",
    )


def _tasks(
    axis: Axes, measured: Sequence[Mapping[str, Any]], at: list[int], dense: Mapping[str, float]
) -> None:
    for (task, value), colour in zip(dense.items(), _COLOURS, strict=False):
        axis.axhline(value, color=colour, lw=0.7, ls=(0, (4, 3)))
        axis.plot(at, [each[task] for each in measured], "o-", ms=2.5, color=colour, label=task)
    axis.axhline(0, color="black", lw=0.4)
    axis.set_title("tasks, with all heads", loc="left")
    axis.legend(frameon=False, fontsize=7)


def _mark_levels(axis: Axes, measured: Sequence[Mapping[str, Any]]) -> None:
    levels = [each for each in measured if str(each.get("name", "")).startswith("level-")]
    for number, each in enumerate(levels):
        axis.axvline(each["step"], color=GREY, lw=0.5)
        axis.annotate(
            f"{each['name'].removeprefix('level-')} %",
            (each["step"], 0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 2 + 7 * number),  # two that are close do not cover each other
            textcoords="offset points",
            fontsize=6,
            color=GREY,
        )


def _caption(settings: Settings, name: str) -> str:
    tuned = "all weights" if settings.lora is None else f"adapters of rank {settings.lora}"
    return (
        f"Sparse post-training of {name}: {settings.steps} steps of {settings.batch} contexts of "
        f"{settings.context} tokens, {tuned}, seed {settings.seed}. Thin: batches, gates drawn; "
        "dots: held-out text and tasks, hard gates; green, thick: running mean of batches. Dashed: "
        "the bound, and what the dense model reaches; vertical: levels that were reached."
    )
