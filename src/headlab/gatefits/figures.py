"""Figures of learned gates: maps of the three scores, the fit itself, Δ log-prob against heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import pyplot as plt

from headlab.figures import AMBER, BLUE, GREEN, GREY, ORANGE, PINK, STYLE, add_caption, save
from headlab.gatefits.fitting import PATH_EVERY
from headlab.gatefits.roles import METRICS, ROLES, Roles
from headlab.heads import Head
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headlab.gatefits.deltas import Deltas

FITS = {"λ = 0": GREY, "G+": AMBER, "G−": PINK}  # none of a score's: they say another thing
COLOURS = {"F": GREEN, "I": BLUE, "N": ORANGE, "random": GREY}
NAMES = {**METRICS, "random": "random order"}


def score_maps(roles: Roles) -> Figure:
    """The three scores, means over seeds: layers from left to right, heads from top to bottom."""
    layers, heads = roles.shape
    with plt.rc_context(STYLE):
        cell = min(0.22, 8 / layers)
        figure, axes = plt.subplots(
            3, 1, figsize=(max(3.4, cell * layers + 1.6), 3 * (cell * heads + 0.7)), squeeze=False
        )
        for axis, (metric, name) in zip(axes[:, 0], METRICS.items(), strict=True):
            picture = axis.imshow(
                roles.scores[metric].mean(0).T.numpy(), cmap="viridis", vmin=0, vmax=1
            )
            axis.set_title(name, loc="left")
            axis.set_ylabel("head")
            axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
            axis.tick_params(length=0, labelsize=7)
            bar = figure.colorbar(picture, ax=axis, fraction=0.03, pad=0.02)
            bar.outline.set_visible(False)
        axes[-1, 0].set_xlabel("layer")
        figure.tight_layout()
        add_caption(figure, _about(roles))
    return figure


def fit_paths(roles: Roles) -> Figure:
    """The loss of the three fits, and the gates' way: their shares near 0 and near 1."""
    fit = roles.fit
    n, updates = len(fit.seeds), fit.losses.shape[1]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.5))
        for phase, (name, colour) in enumerate(FITS.items()):
            own = fit.losses[phase * n : (phase + 1) * n]
            start = 0 if phase == 0 else updates
            xs = np.arange(start, start + updates)
            axes[0].plot(xs, own.mean(0), color=colour, lw=1.2, label=name)
            axes[0].fill_between(xs, own.amin(0), own.amax(0), color=colour, alpha=0.2, lw=0)
            if phase:
                gates = fit.paths[phase * n : (phase + 1) * n].sigmoid()  # [seed, point, ...]
                points = start + np.arange(gates.shape[1]) * PATH_EVERY
                marker = "." if len(points) < 3 else ""  # of one point there is no line
                for edge, style in ((gates > 0.5, "-"), (gates < 0.05, ":")):
                    share = edge.float().mean((0, 2, 3))
                    label = f"{name} {'above 0.5' if style == '-' else 'below 0.05'}"
                    line = f"{marker}{style}"
                    axes[1].plot(points, share, line, color=colour, lw=1.2, label=label)
        axes[0].set_xlabel("update")
        axes[0].set_title("loss, target tokens", loc="left")
        axes[0].legend(frameon=False, fontsize=7)
        axes[1].set_xlabel("update")
        axes[1].set_title("share of gates", loc="left")
        axes[1].set_ylim(-0.03, 1.03)
        axes[1].legend(frameon=False, fontsize=7)
        draw_ecdf(axes[2], roles)
        figure.tight_layout()
        add_caption(figure, _about(roles))
    return figure


def draw_ecdf(axis: Axes, roles: Roles) -> None:
    """The share of heads and seeds with at most a score."""
    for metric, name in METRICS.items():
        values = np.sort(roles.scores[metric].flatten().numpy())
        shares = np.arange(1, len(values) + 1) / len(values)
        axis.step(values, shares, where="post", color=COLOURS[metric], lw=1.2, label=name)
    axis.axvline(0.5, color="black", lw=0.5, ls=":")
    axis.set_xlabel("score")
    axis.set_title("share of heads with at most it", loc="left")
    axis.legend(frameon=False, fontsize=7)


def draw_deltas(axis: Axes, deltas: Deltas) -> None:
    for line in ("random", *METRICS):
        low, high = deltas.band(line)
        style = "--" if line == "random" else "-"
        axis.plot(deltas.ks, deltas.mean(line), style, color=COLOURS[line], lw=1.5)
        axis.fill_between(deltas.ks, low, high, color=COLOURS[line], alpha=0.2, lw=0)
    axis.axhline(0, color="black", lw=0.5)
    axis.set_xlim(0, deltas.ks[-1])


def save_fit_figures(roles: Roles, folder: Path, name: str) -> list[Path]:
    """name-scores and name-fit, each as PNG, PDF and CSV."""
    role, agree = roles.agreement()
    rows: list[dict[str, Any]] = []
    for layer in range(roles.shape[0]):
        for head in range(roles.shape[1]):
            place = Head(layer, head)
            means = {n: float(s[:, layer, head].mean()) for n, s in roles.scores.items()}
            rows.append(
                {
                    "head": str(place),
                    **means,
                    "role": ROLES[int(role[place])],
                    "seeds": int(agree[place]),
                }
            )
    losses = [
        {"fit": phase, "seed": seed, "update": update, "loss": float(loss)}
        for number, phase in enumerate(("free", "plus", "minus"))
        for row, seed in enumerate(roles.fit.seeds)
        for update, loss in enumerate(roles.fit.losses[number * len(roles.fit.seeds) + row])
    ]
    return [
        save(score_maps(roles), folder, f"{name}-scores", rows),
        save(fit_paths(roles), folder, f"{name}-fit", losses),
    ]


def _about(roles: Roles) -> str:
    fit, (layers, heads) = roles.fit, roles.shape
    return (
        f"{fit.model}, {layers} x {heads} heads, task {fit.task or '-'}; gates fitted on "
        f"{count(len(fit.examples), 'example')}, {count(fit.settings['updates'], 'update')} each "
        f"of three fits, "
        f"batch {fit.settings.get('batch')}, λ = ±{fit.settings.get('strength'):g}, reference "
        f"{fit.settings.get('reference')}; seeds {_listed(fit.seeds)}."
    )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) if len(seeds) < 4 else f"{seeds[0]} to {seeds[-1]}"
