"""headlab demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlab.cli.app import app, out
from headlab.cli.options import Quiet, load_model, progress, status
from headlab.cli.printing import print_ablation, print_check, print_scores
from headlab.files import require_folder


@app.command(epilog="Example: headlab demo --out headlab-demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the page and figures go.")] = Path(
        "headlab-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Switch every head of SmolLM2 off in turn, prove what was found, write a page about it."""
    require_folder(folder)  # a wrong one should fail before the work
    loaded = load_model("smollm2", {}, quiet, check=False)
    from headlab.demo import investigate, total_work, write_page
    from headlab.proofs import check as run_check

    with status("checking", quiet):
        result = run_check(loaded).require()
    if not quiet:
        print_check(result)
    with progress("switching heads off", total_work(loaded), quiet) as advance:
        found = investigate(loaded, advance)
    if not quiet:
        print_scores(found.scores, len(found.shown))
        out.print()
        print_ablation(found.famous)
        held_out = found.logit_diff
        out.print(
            f"\non {len(held_out.clean)} other prompts the logit difference goes from "
            f"{held_out.mean('clean')[0]:.2f} to {held_out.mean('chosen')[0]:.2f}; with as many "
            f"random other heads off, to {sum(held_out.draws) / len(held_out.draws):.2f} "
            f"(mean of {len(held_out.draws)} draws, from {min(held_out.draws):.2f} "
            f"to {max(held_out.draws):.2f})\n"
        )
    print(write_page(loaded, result, found, folder))
