"""How results look on a screen and as JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from headlab.cli.app import err, out

if TYPE_CHECKING:
    from headlab.ablation import Ablation
    from headlab.model import Model
    from headlab.proofs import Check


def new_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column in ("prob", "largest difference", "allowed", "before", "after", "change")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


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
    done = f"gate {result.scale:g}" if result.scale else "off"
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


def as_probability(value: float) -> str:
    return f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"


def printable(text: str) -> str:
    """Control characters by their codes: a prompt must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    print(json.dumps(_finite(value), ensure_ascii=False, indent=2))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
