"""headlab demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlab.cli.app import app
from headlab.cli.options import Quiet
from headlab.cli.run import execute


@app.command(epilog="Example: headlab demo --out headlab-demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="The run's folder.")] = Path("headlab-demo"),
    quiet: Quiet = False,
) -> None:
    """Run the circuits study on SmolLM2, small enough for a laptop; ends with its report."""
    from headlab.store import Run
    from headlab.studies.spec import make_spec

    given = {"models": ["smollm2"], "tasks": ["ioi", "greater-than"], "size": "smoke"}
    spec = make_spec({"study": "circuits", **given})
    execute(Run.start(folder, spec), None, False, quiet)
