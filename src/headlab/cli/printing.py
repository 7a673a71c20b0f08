"""How results look on a screen and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from headlab.cli.app import err, out
from headlab.files import as_json

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


def count(n: int, noun: str) -> str:
    """1 cell, 2 cells"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


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
    out.print(table)
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
    out.print(table)
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
    out.print(numbers)
    tokens = new_table("next token", "prob", "", "next token", "prob")
    for (was, p), (now, q) in zip(result.before.top, result.after.top, strict=True):
        before, after = escape(repr(was)), escape(repr(now))
        tokens.add_row(before, as_probability(p), "   ", after, as_probability(q))
    out.print(tokens)
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
        table.add_row(str(head), f"{shown[head]:+.4f}", interval, mark)
    total = scores.shape[0] * scores.shape[1]
    count = scores.values.shape[-1]
    examples = f"{count} examples" if count > 1 else "one example"
    out.print(
        f"{scores.measure} on {examples}, {scores.clean.mean():.4f} {scores.base}; "
        f"{_how(scores, total)}, reference {scores.reference}",
        highlight=False,
    )
    out.print(table)
    if scores.method == "random":
        return
    if scores.noise_floor is None:
        said = "noise floor not measured"
    else:
        above = total - int(noise.sum())
        said = f"noise floor {scores.noise_floor:.1g}: {above} of {total} heads are above it"
    if count > 1 and not scores.is_distance:
        said += (
            f"; for {int(beyond.sum())} heads the interval leaves out 0 "
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
    out.print(table)
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
    if scores.method == "ablate":
        return f"each of {total} heads {gate_words(scores.scale)} in turn"
    if scores.method == "patch":
        return f"each of {total} heads patched in turn ({scores.settings['direction']})"
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
