"""The study's figures: accuracy by condition, paired differences, and what heads attend to, each
beside what even attention would give."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from headlab.figures import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    STYLE,
    add_caption,
    save,
    save_table,
)
from headlab.studies.fillers.panels import (
    Change,
    Panel,
    Shift,
    changes,
    published_for,
)
from headlab.studies.fillers.rows import (
    attention_rows,
    change_rows,
    part_rows,
    region_rows,
    share_rows,
)
from headlab.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlab.fillers import Condition
    from headlab.store import Run

COLOURS = {
    "none": "#6a4c93",
    "mless": "#2a9d8f",
    "mful": "#6bb8e0",
    "gap": ORANGE,
    "random": PINK,
    "arm": AMBER,
}
_OTHERS = (BLUE, GREEN, "#8c564b", "#bcbd22", "#c1272d", "#17becf")
_BAR = 0.24  # inches
PAPERS_HEAD = "L0H13"  # "Head 14" of the paper


def draw_all(run: Run, panels: list[Panel]) -> list[dict[str, str]]:
    folder = run.folder / "figures"
    drawn = [("fillers", "Accuracy by condition, and average attention by position")]
    save(overview(panels), folder, "fillers", share_rows(panels))
    if any(changes(panels).values()):
        save(differences(panels), folder, "differences", change_rows(panels))
        drawn.append(("differences", "What each condition changes on the same problems"))
    if looked := [panel for panel in panels if panel.heads]:
        save(attention(looked), folder, "attention", attention_rows(looked))
        drawn.append(("attention", "Attention by position, beside even attention"))
        save_table(region_rows(looked), folder, "regions")
        if moved := [panel for panel in looked if _drawn(panel)]:
            save(parts(moved), folder, "parts", part_rows(moved))
            drawn.append(("parts", "Attention on the parts of a prompt against even attention"))
    return [
        {"name": name, "alt": alt, **{e: f"figures/{name}.{e}" for e in ("png", "pdf", "csv")}}
        for name, alt in drawn
    ]


def colours(panels: Sequence[Panel]) -> dict[str, str]:
    """A colour for each condition; one in a chat template has that of the raw one."""
    names = {each.name: each for panel in panels for each in panel.conditions}
    unused = [colour for name, colour in COLOURS.items() if name not in names]
    spare = itertools.cycle([*_OTHERS, *unused])
    found: dict[str, str] = {}
    for name in names:
        bare = name.removesuffix("-chat") if names[name].template == "chat" else name
        found[name] = COLOURS.get(bare) or found.get(bare) or next(spare)
    return found


def shown_head(panel: Panel) -> str | None:
    """The head that figures show: the paper's where it is among them, else the mean of all."""
    names = [str(head) for head in panel.heads]
    if len(names) == 1:
        return names[0]
    return PAPERS_HEAD if PAPERS_HEAD in names else None


def head_label(panel: Panel, head: str | None) -> str:
    if head is not None:
        return head
    layers = sorted({each.layer for each in panel.heads})
    of = f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers"
    return f"mean of {len(panel.heads)} heads of {of}"


# --- accuracy, and attention beside it ---


def overview(panels: Sequence[Panel]) -> Figure:
    """Left: accuracy by model and condition; right: average attention on the original tokens, and
    on the whole sequence, with even attention dotted."""
    looked = next((panel for panel in panels if panel.heads), None)
    own = colours(panels)
    with plt.rc_context(STYLE):
        wide = max(3.4, 0.75 + _BAR * sum(len(panel.names) + 1 for panel in panels))
        figure = plt.figure(figsize=(wide + (4.6 if looked else 0), 3.6))
        grid = figure.add_gridspec(
            2, 2 if looked else 1, width_ratios=[wide, 4.6][: 2 if looked else 1]
        )
        bars = figure.add_subplot(grid[:, 0])
        _bars(bars, panels, own)
        if looked is not None:
            head = shown_head(looked)
            label = head_label(looked, head)
            top, bottom = (figure.add_subplot(grid[row, 1]) for row in (0, 1))
            _lines(top, looked, "original", head, own)
            top.set_title(f"attention on own tokens, {label}", loc="left")
            _lines(bottom, looked, "whole", head, own)
            bottom.set_title(f"attention on all tokens, {label}", loc="left")
            bottom.set_xlabel("token position")
        figure.tight_layout()
        conditions = {c.name: c for panel in panels for c in panel.conditions}
        figure.legend(
            handles=_handles(conditions, own, panels, looked is not None),
            loc="lower left",
            bbox_to_anchor=(0.01, 1.0),
            ncols=_columns(conditions, figure),
            frameon=False,
            fontsize=7.5,
        )
        add_caption(figure, caption(panels, looked))
    return figure


def _bars(axis: Any, panels: Sequence[Panel], own: dict[str, str]) -> None:
    place, ticks, highest, crowded = 0.0, [], 0.0, False
    several = len({panel.task for panel in panels}) > 1
    for panel in panels:
        start = place
        marks = published_for(panel)
        for condition in panel.conditions:
            share = panel.share(condition.name, panel.scores[0])
            axis.bar(
                place,
                100 * share.mean,
                width=0.9,
                color=own[condition.name],
                hatch="///" if condition.template == "chat" else None,
                edgecolor="white",
                lw=0.4,
            )
            axis.plot([place] * 2, [100 * share.low, 100 * share.high], color="black", lw=0.8)
            highest = max(highest, 100 * share.high)
            if condition.name in marks:
                axis.plot(place, marks[condition.name], "D", color=GREY, ms=4.5, mec="white")
                highest = max(highest, marks[condition.name])
            place += 1
        label = [_short(panel)] + ([panel.task] if several else [])
        crowded |= len(panels) > 1 and max(map(len, label)) * 0.065 > _BAR * (place - start + 1)
        ticks.append(((start + place - 1) / 2, label))
        place += 1
    for_all = [(at, (", " if crowded else "\n").join(label)) for at, label in ticks]
    axis.set_xticks(*zip(*for_all, strict=True), fontsize=8)
    if crowded:
        plt.setp(axis.get_xticklabels(), rotation=20, ha="right", rotation_mode="anchor")
    axis.margins(x=0.02)
    axis.set_ylim(0, min(100, 1.08 * highest + 1))
    axis.set_ylabel(f"right, % ({panels[0].scores[0]})")
    task = "" if several else f" {panels[0].task}"
    axis.set_title(f"Results on{task}" if task else "Results", loc="left")


def _lines(axis: Any, panel: Panel, view: str, head: str | None, own: dict[str, str]) -> None:
    """Observed, filled, and dotted what even attention gives; of one template, the first's, whose
    prompts line up."""
    for condition in panel.conditions:
        if condition.template != panel.conditions[0].template:
            continue
        if condition.arm is not None or (view == "whole" and not condition.inserts):
            continue
        lines = shown(panel.lines(condition.name, view, head))
        if not len(lines):
            continue
        colour = own[condition.name]
        style = "--" if condition.template == "chat" else "-"
        at = lines["position"]
        axis.plot(at, lines["mean"], style, color=colour, lw=1.1)
        axis.fill_between(at, 0, lines["mean"], color=colour, alpha=0.10, lw=0)
        axis.plot(at, lines["uniform"], ":", color=colour, lw=1)
    axis.set_ylim(bottom=0)
    axis.margins(x=0.01)
    axis.set_ylabel("attention")


def shown(lines: Any) -> Any:
    """Positions that at least half of the prompts have: the others are few and noisy."""
    return lines[lines["prompts"] >= lines["prompts"].max() / 2]


def _handles(
    conditions: dict[str, Condition], own: dict[str, str], panels: Sequence[Panel], looked: bool
) -> list[Any]:
    handles: list[Any] = [
        Patch(
            facecolor=own[name],
            hatch="///" if condition.template == "chat" else None,
            edgecolor="white",
            label=_text(name),
        )
        for name, condition in conditions.items()
    ]
    if looked:
        handles.append(Line2D([], [], color="black", ls=":", lw=1, label="even attention"))
    if any(published_for(panel) for panel in panels):
        handles.append(Line2D([], [], color=GREY, ls="", marker="D", ms=4.5, label="published"))
    return handles


def _columns(conditions: Iterable[str], figure: Figure) -> int:
    """Of a legend that is no wider than its figure."""
    widest = max(0.5 + 0.07 * max(map(len, conditions), default=0), 1.2)  # inches
    return max(1, int(figure.get_figwidth() / widest))


def caption(panels: Sequence[Panel], looked: Panel | None) -> str:
    """What the figure must say by itself."""
    first = panels[0]
    n = sorted({len(panel.problems) for panel in panels})
    told = f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"
    models = " and ".join(dict.fromkeys(_model(panel) for panel in panels))
    told_of = [c for c in first.conditions if not c.is_plain or c.says != "nothing"]
    says = "; ".join(f"{c.name}: {c.says}" for c in told_of)
    text = (
        f"{models}; {told} problems, {decoded_all(panels)}; right by {first.scores[0]} on the "
        "completion alone; whiskers: 95 % interval over problems, not of the paired difference. "
        f"{says}."
    )
    if looked is not None:
        prompts = int(looked.found.attention["prompts"].max())
        text += (
            f" Attention: what later tokens give a position, mean over {prompts} prompts; "
            "positions that half of them have; inserted tokens left out above. Dotted: queries "
            "that look evenly at all they may."
        )
    return text + f" Seed {', '.join(map(str, first.seeds))}."


def _short(panel: Panel) -> str:
    return panel.model.rpartition("/")[2]


def _model(panel: Panel) -> str:
    layers, heads = panel.found.shape
    return f"{panel.model} ({layers} x {heads} heads)"


def decoded(panel: Panel) -> str:
    """How tokens are chosen, in words."""
    decoding = panel.found.decoding
    if decoding["temperature"] is None:
        own = [c.name for c in panel.conditions if c.temperature]
        return f"greedy but for {', '.join(own)}" if own else "greedy"
    top = f", top-p {decoding['top_p']:g}" if decoding["top_p"] < 1 else ""
    seeds = count(len(panel.seeds), "draw")
    return f"temperature {decoding['temperature']:g}{top}, {seeds} each"


def decoded_all(panels: Sequence[Panel]) -> str:
    """The same for each model where they differ."""
    each = {panel.model: decoded(panel) for panel in panels}
    if len(set(each.values())) == 1:
        return next(iter(each.values()))
    return ", ".join(f"{model} {how}" for model, how in each.items())


def _start(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _text(name: str) -> str:
    """A dollar is no formula."""
    return name.replace("$", r"\$")


# --- paired differences ---


def differences(panels: Sequence[Panel]) -> Figure:
    """Each condition less its baseline on the same problems, with intervals."""
    own, found = colours(panels), changes(panels)
    total = sum(len(each) for each in found.values())
    several = len(panels) > 1
    labels: list[tuple[float, str]] = []
    at = 0.0
    high = 0.27 * (total + 1.3 * len(panels) * several) + 0.9
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, high))
        # Of its own width, however long the names are: what lies outside is saved as well.
        figure.subplots_adjust(0.2, 0.55 / high, 0.68, 1 - 0.3 / high)
        for place, panel in enumerate(panels):
            if several and found[place]:
                name = f"{_short(panel)}, {panel.task}"
                text = axis.text(-0.025, at, name, transform=axis.get_yaxis_transform())
                text.set(va="center", ha="right", weight="bold", size=8)
                at += 1
            for change in found[place]:
                _change(axis, at, change, own[change.condition])
                labels.append((at, f"{_text(change.condition)} − {_text(change.baseline)}"))
                at += 1
            at += 0.3
        axis.axvline(0, color="black", lw=0.5)
        axis.set_yticks(*zip(*labels, strict=True))
        axis.set_ylim(at - 0.6, -0.6)
        axis.set_xlabel("difference in percent right (points)")
        axis.set_title("Each condition against its baseline, on the same problems", loc="left")
        seeds = sorted({min(2, len(panel.seeds)) for panel in panels})
        test = {
            (1,): "McNemar's exact test",
            (2,): "a test that flips signs at random",
            (1, 2): "McNemar's exact test, of several seeds one that flips signs at random",
        }[tuple(seeds)]
        add_caption(
            figure,
            "Bars: 95 % paired bootstrap over problems, never narrower than for what so few may "
            "hide. + and −: problems that only the condition, or only the baseline, gets "
            f"right{'' if seeds == [1] else ' (mean over seeds)'}; "
            f"p of {test}; Holm: adjusted for all {total} comparisons of the run. "
            f"{_start(decoded_all(panels))}.",
        )
    return figure


def _change(axis: Any, at: float, change: Change, colour: str) -> None:
    axis.plot([100 * change.low, 100 * change.high], [at, at], color=colour, lw=1.6)
    axis.plot(100 * change.mean, at, "o", color=colour, ms=4.5)
    gained, lost = (f"{round(value, 1):g}" for value in (change.gained, change.lost))
    axis.text(
        1.02,
        at,
        f"+{gained} −{lost}, p = {change.p:.2g}, Holm {change.adjusted:.2g}",
        transform=axis.get_yaxis_transform(),
        va="center",
        fontsize=7,
    )


# --- attention ---


def attention(panels: Sequence[Panel]) -> Figure:
    """Rows models, columns views: observed over even attention, by position."""
    own = colours(panels)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(panels), 2, figsize=(9.0, 2.2 * len(panels) + 0.5), squeeze=False
        )
        for row, panel in zip(axes, panels, strict=True):
            head = shown_head(panel)
            for axis, view in zip(row, ("original", "whole"), strict=True):
                for condition in panel.conditions:
                    if condition.arm is not None or (view == "whole" and not condition.inserts):
                        continue
                    lines = shown(panel.lines(condition.name, view, head))
                    style = "--" if condition.template == "chat" else "-"
                    ratio = lines["mean"] / lines["uniform"]
                    axis.plot(lines["position"], ratio, style, color=own[condition.name], lw=1.1)
                axis.axhline(1, color="black", lw=0.5, ls=":")
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.yaxis.set_minor_formatter(NullFormatter())
                axis.margins(x=0.01)
            row[0].set_ylabel("observed / even")
            # The name has a line of its own, and the other column's room.
            row[0].set_title(
                f"{_titled(panel, panels)}, {head_label(panel, head)}\nown tokens", loc="left"
            )
            row[1].set_title("whole sequence", loc="left")
        for axis in axes[-1]:
            axis.set_xlabel("token position")
        figure.tight_layout()
        conditions = {c.name: c for panel in panels for c in panel.conditions if c.arm is None}
        figure.legend(
            handles=[_line(condition, own) for condition in conditions.values()],
            loc="lower left",
            bbox_to_anchor=(0.01, 1.0),
            ncols=_columns(conditions, figure),
            frameon=False,
            fontsize=7.5,
        )
        prompts = int(panels[0].found.attention["prompts"].max())
        add_caption(
            figure,
            "Average attention from later tokens over that of queries that look evenly at all they "
            f"may: 1 is what more tokens alone would give. Mean over {prompts} prompts.",
        )
    return figure


def _line(condition: Condition, own: dict[str, str]) -> Line2D:
    style = "--" if condition.template == "chat" else "-"
    return Line2D([], [], ls=style, lw=1.4, color=own[condition.name], label=_text(condition.name))


def _titled(panel: Panel, panels: Sequence[Panel]) -> str:
    return panel.model + (f", {panel.task}" if len({each.task for each in panels}) > 1 else "")


def _drawn(panel: Panel) -> list[Shift]:
    """Of the head that figures show; ARM acts behind the first layer's heads."""
    return [
        shift
        for shift in panel.shifts(shown_head(panel))
        if panel.condition(shift.condition).arm is None
    ]


def parts(panels: Sequence[Panel]) -> Figure:
    """What each condition does to the attention on instruction and question: observed, and what
    more tokens alone would do."""
    own = colours(panels)
    names = [name for panel in panels for name in panel.names if panel.condition(name).arm is None]
    crowded = max(len(panel.names) * len(name) for panel in panels for name in names) > 45
    high = 2.1 + (0.045 * max(map(len, names)) if crowded else 0)  # inches
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(panels), 2, figsize=(7.6, high * len(panels) + 0.4), squeeze=False, sharey="row"
        )
        for row, panel in zip(axes, panels, strict=True):
            found = _drawn(panel)
            for axis, region in zip(row, ("instruction", "question"), strict=True):
                shifts = [shift for shift in found if shift.region == region]
                for at, shift in enumerate(shifts):
                    colour = own[shift.condition]
                    axis.plot(at, shift.observed, "o", color=colour, ms=5)
                    axis.plot([at - 0.3, at + 0.3], [shift.uniform] * 2, ":", color="black", lw=1.4)
                    axis.plot(
                        [at] * 2,
                        [shift.uniform * shift.low, shift.uniform * shift.high],
                        color=colour,
                        lw=1.6,
                        alpha=0.7,
                    )
                axis.axhline(1, color="black", lw=0.4)
                axis.set_xticks(
                    range(len(shifts)), [_text(shift.condition) for shift in shifts], fontsize=8
                )
                if crowded:
                    plt.setp(
                        axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor"
                    )
                axis.set_xlim(-0.6, len(shifts) - 0.4)
                axis.set_title(f"on the {region}", loc="left")
            row[0].set_title(f"{_titled(panel, panels)}\non the instruction", loc="left")
            row[0].set_ylim(bottom=0)
            row[0].set_ylabel("factor to baseline")
        figure.tight_layout()
        heads = head_label(panels[0], shown_head(panels[0]))
        bases = " or ".join(dict.fromkeys(s.baseline for panel in panels for s in _drawn(panel)))
        add_caption(
            figure,
            f"Attention from later tokens on a part of the prompt, {heads}, as a factor to the "
            f"same prompts with {bases}; bar: 95 % interval over prompts of the "
            "change that even attention does not explain. Dotted: even attention.",
        )
    return figure
