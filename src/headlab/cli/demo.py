"""headlab demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headlab.cli.app import app, err, out
from headlab.cli.options import Quiet, load_model, status
from headlab.cli.printing import print_ablation, print_check
from headlab.files import require_folder


@app.command(epilog="Example: headlab demo --out headlab-demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the page and figure go.")] = Path(
        "headlab-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Switch heads of SmolLM2 off on three famous prompts and write a page about it."""
    require_folder(folder)  # a wrong one should fail before the work
    loaded = load_model("smollm2", {}, quiet, check=False)
    from headlab.demo import PROMPTS, investigate, write_page
    from headlab.proofs import check as run_check

    with status("checking", quiet):
        result = run_check(loaded).require()
    if not quiet:
        print_check(result)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
    findings = []
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=quiet) as bar:
        total = len(PROMPTS) * loaded.n_layers * loaded.n_heads
        task = bar.add_task("switching heads off", total=total)
        for prompt in PROMPTS:
            findings.append(investigate(loaded, prompt, lambda n: bar.advance(task, n)))
    if not quiet:
        for finding in findings:
            print_ablation(finding.ablation)
            out.print(
                f"{len(finding.random)} draws of as many random other heads: "
                f"mean {finding.random_mean:.3f}, from {min(finding.random):.3f} "
                f"to {max(finding.random):.3f}\n"
            )
    print(write_page(loaded, result, findings, folder))
