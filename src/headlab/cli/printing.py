"""How results look on a screen and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.measure import measure_renderables
from rich.table import Column, Table

from headlab.cli.app import err, out
from headlab.files import as_json
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.ablation import Ablation
    from headlab.curves import Curve
    from headlab.model import Model
    from headlab.proofs import Check
    from headlab.scores import HeadScores
    from headlab.store import Run


_NUMBERS = {
    "prob",
    "score",
    "largest difference",
    "allowed",
    "before",
    "after",
    "change",
    "95 % interval",
}


def new_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column in _NUMBERS
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


_GAP = 2  # spaces between two columns
_LONGEST = 40  # a longer word, a path, may be broken


def print_table(table: Table, spare: Sequence[str] = ()) -> None:
    """A table in which no word is broken. Where it is too wide for that, columns are left out:
    those of `spare` first, then from the right; a line says which."""
    columns, gone = list(table.columns), []
    first_to_go = [column for name in spare for column in columns if column.header == name]
    first_to_go += [column for column in reversed(columns[1:]) if column not in first_to_go]
    while (widths := _widths(columns)) is None and first_to_go:
        gone.append(first_to_go.pop(0))
        columns = [column for column in columns if column not in gone]
    fitted = Table(box=None, pad_edge=False, header_style="dim", show_header=table.show_header)
    for number, column in enumerate(columns):
        width = widths[number] if widths else None
        fitted.add_column(column.header, justify=column.justify, overflow="fold", width=width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        fitted.add_row(*cells)
    out.print(fitted)
    if gone:
        names = ", ".join(str(column.header) for column in table.columns if column in gone)
        out.print(f"(no room for: {escape(names)})", style="dim", highlight=False)


def _widths(columns: Sequence[Column]) -> list[int] | None:
    """A width for each column such that no word is broken; None where there is no room."""
    measured = [
        measure_renderables(out, out.options, [column.header, *column.cells]) for column in columns
    ]
    return fitted_widths(
        [min(each.minimum, _LONGEST) for each in measured],
        [each.maximum for each in measured],
        out.width - _GAP * (len(columns) - 1),
    )


def fitted_widths(least: list[int], most: list[int], room: int) -> list[int] | None:
    """Between the least and the most of each, as even as can be.

    >>> fitted_widths([4, 6], [4, 30], 50), fitted_widths([4, 6], [10, 30], 20)
    ([4, 30], [10, 10])
    >>> fitted_widths([4, 6], [4, 30], 9)
    """
    if sum(least) > room:
        return None
    widths = list(least)
    for _ in range(min(room, sum(most)) - sum(least)):
        narrow = [number for number, width in enumerate(widths) if width < most[number]]
        widths[min(narrow, key=widths.__getitem__)] += 1
    return widths


def print_findings(run: Run, quiet: bool = False) -> None:
    """What a run found, on stdout; what to be careful with, on stderr."""
    for sentence in run.study.findings(run):
        out.print(escape(sentence), highlight=False, soft_wrap=True)
    for sentence in [] if quiet else run.study.warnings(run):
        err.print(escape(sentence), highlight=False, soft_wrap=True, style="yellow")


def print_model(model: Model) -> None:
    table = new_table("", "")
    table.show_header = False
    for name, value in model.describe().items():
        if name == "notes":
            continue
        text = f"{value:,}" if name == "parameters" else escape(str(value))
        table.add_row(name.replace("_", " "), text)
    print_table(table)
    out.print()


def print_check(result: Check) -> None:
    table = new_table("proof", "claim", "largest difference", "allowed", "")
    for proof in result.proofs:
        if proof.difference is None:
            difference, verdict = "-", "[yellow]not measured[/]"
        elif proof.passed:
            difference, verdict = f"{proof.difference:.2g}", "[green]ok[/]"
        else:
            difference = f"{proof.difference:.2g}"
            verdict = "[red]fails[/]" if proof.required else "[yellow]switched off[/]"
        table.add_row(proof.name, proof.claim, difference, f"{proof.tolerance:.2g}", verdict)
    print_table(table)
    out.print()


def print_ablation(result: Ablation) -> None:
    what = "kept, all others" if result.keep else ""
    done = gate_words(result.scale)
    prompt, target = printable(result.prompt), printable(result.target)
    out.print(f"[bold]{escape(prompt)}[/][bold cyan]{escape(target)}[/]", highlight=False)
    heads = ", ".join(result.heads)
    out.print(f"{heads} {what} {done}, reference {result.reference}".replace("  ", " "))
    numbers = new_table("", "before", "after", "change")
    origin = "" if result.target_given else " (the likeliest)"
    numbers.add_row(
        f"log-prob of {escape(repr(result.target))}{origin}",
        f"{result.before.log_prob:.4f}",
        f"{result.after.log_prob:.4f}",
        f"{result.change:+.4f}",
    )
    numbers.add_row(
        "probability", as_probability(result.before.prob), as_probability(result.after.prob)
    )
    print_table(numbers)
    tokens = new_table("next token", "prob", "", "next token", "prob")
    for (was, p), (now, q) in zip(result.before.top, result.after.top, strict=True):
        before, after = escape(repr(was)), escape(repr(now))
        tokens.add_row(before, as_probability(p), "   ", after, as_probability(q))
    print_table(tokens)
    for note in result.notes:
        err.print(f"[yellow]note:[/] {escape(note)}")


def print_scores(scores: HeadScores, top: int) -> None:
    """The heads that matter most, and how many of the scores are to be believed."""
    shown, (low, high) = scores.shown, scores.shown_interval
    several = scores.values.shape[-1] > 1 and scores.method != "random"
    beyond, noise = scores.leaves_out_zero, scores.in_noise
    table = new_table("head", "change" if scores.shows_change else "score", "95 % interval", "")
    for head in scores.order(by_size=scores.shows_change)[:top]:
        interval = f"{low[head]:+.4f} to {high[head]:+.4f}" if several else "-"
        mark = "in the noise" if noise[head] else "" if beyond[head] else "may be chance"
        mark = mark if several or noise[head] else ""
        mark = "not run: estimate" if scores.is_estimated[head] else mark
        table.add_row(str(head), f"{shown[head]:+.4f}", interval, mark)
    total = scores.shape[0] * scores.shape[1]
    n = scores.values.shape[-1]
    examples = count(n, "example") if n > 1 else "one example"
    out.print(
        f"{scores.measure} on {examples}, {scores.clean.mean():.4f} {scores.base}; "
        f"{_how(scores, total)}, reference {scores.reference}",
        highlight=False,
    )
    print_table(table)
    if scores.method == "random":
        return
    if scores.estimated:
        from headlab.screening import missed, ran

        out.print(f"{ran(scores)}{missed(scores)}", highlight=False)
    if scores.noise_floor is None:
        said = "noise floor not measured"
    else:
        run = ~scores.is_estimated
        above = int((run & ~noise).sum())
        heads = count(int(run.sum()), "head")
        said = f"noise floor {scores.noise_floor:.1g}: {above} of {heads} are above it"
    if n > 1 and not scores.is_distance:
        said += (
            f"; for {count(int(beyond.sum()), 'head')} the interval leaves out 0 "
            f"(about {scores.n_by_chance:.0f} would by chance if no head did anything)"
        )
        if int(beyond.sum()) <= scores.n_by_chance:
            said += ": no more than chance would give; take more examples"
    out.print(said, highlight=False)


def print_curve(curve: Curve) -> None:
    """How many heads it takes, and whether random ones would do."""
    summary = curve.as_dict()
    effect = summary["effect"]
    kept = "kept" if curve.mode == "keep" else "ablated"
    out.print(
        f"{curve.measure} of {curve.task or 'the examples'}: {summary['clean']:.4f} with all "
        f"{curve.n_heads} heads, {summary['none']:.4f} with none (reference {curve.reference}); "
        f"the effect is {effect['mean']:.4f} ({effect['low']:.4f} to {effect['high']:.4f}), "
        f"n = {summary['n']} examples, {curve.sample}",
        highlight=False,
    )
    table = new_table(f"heads {kept}", "first", "95 % interval", "for good", "interval")
    for name, found in summary["crossings"].items():
        cells = [_at(found["first"], curve.ks), _span(found["interval"])]
        cells += [_at(found["stay"], curve.ks), _span(found["stay_interval"])]
        table.add_row(name, *cells)
    print_table(table)
    areas = summary["random_cpr"]
    if curve.mode == "keep":
        said = f"area under the curve (CPR) {curve.cpr:.3f}, from 1 (CMD) {curve.cmd:.3f}"
    else:
        said = f"area of what remains {curve.cpr:.3f}"
    said += (
        f"; {len(areas)} random orders {sum(areas) / len(areas):.3f} "
        f"({min(areas):.3f} to {max(areas):.3f}): it beats {100 * curve.beats_random:.0f} % of them"
    )
    if (curve.matched_explained - curve.matched_explained[0]).abs().max() > 0:
        said += f", and {100 * curve.beats_matched:.0f} % with as many heads of each layer"
    out.print(said, highlight=False)


def _at(k: int | None, ks: list[int]) -> str:
    """At most k where the one before was not measured."""
    known = k is None or k == 0 or k - 1 in ks
    return _count(k) if known else f"at most {k}"


def _count(k: int | None) -> str:
    return "never" if k is None else str(k)


def _span(interval: tuple[int | None, int | None]) -> str:
    return f"{_count(interval[0])} to {_count(interval[1])}"


def _how(scores: HeadScores, total: int) -> str:
    some = f"each of {total} heads"
    if scores.estimated:
        some = f"{total - len(scores.estimated)} of {total} heads"
    if scores.method == "ablate":
        return f"{some} {gate_words(scores.scale)} in turn"
    if scores.method == "patch":
        return f"{some} patched in turn ({scores.settings['direction']})"
    if scores.method == "attribute":
        steps = scores.settings["steps"]
        kind = f"mean gradient over {steps} steps" if steps > 1 else "gradient"
        return f"{kind} of {total} heads' gates ({scores.settings['direction']})"
    return f"{scores.method} scores of {total} heads"


def gate_words(scale: float) -> str:
    return f"at gate {scale:g}" if scale else "off"


def as_probability(value: float) -> str:
    return f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"


def printable(text: str) -> str:
    """Control characters by their codes: a prompt must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    print(as_json(value))
