"""headlab demo"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, err
from headlab.cli.options import Quiet
from headlab.cli.run import carry_out
from headlab.errors import HeadlabError
from headlab.studies import STUDIES
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run

MODEL = "smollm2"
# The studies shown, one after another, and what is asked of each beside model and size.
SHOWN: dict[str, dict[str, Any]] = {
    "circuits": {"tasks": ["ioi", "greater-than"], "n": 6},
    "roles": {"tasks": ["syntax", "commonsense"]},
    "masking": {},
    "fillers": {},
}
_SAYS = (
    "Each study at its smallest size, to see what it asks and shows: a quick look, with few "
    "prompts behind every number."
)


@app.command(epilog="Example: headlab demo --out headlab-demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="The runs' folder.")] = Path("headlab-demo"),
    quiet: Quiet = False,
) -> None:
    """Run every kind of study on SmolLM2, small enough for a laptop; ends with one page over all.
    Given again, it goes on where it stopped."""
    again = f"headlab demo --out {shlex.quote(str(folder))}"
    try:
        runs, failed = _run_all(folder, quiet)
    except KeyboardInterrupt:
        err.print(escape(f"interrupted; go on with: {again}"), soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None
    if failed:
        known = f": {failed[0]}" if quiet else " (above)"
        cells = count(sum(len(run.cells) for run in runs), "cell")
        raise HeadlabError(f"{len(failed)} of {cells} failed{known}; {again} tries again")


def _run_all(folder: Path, quiet: bool) -> tuple[list[Run], list[str]]:
    """The runs, and why cells failed."""
    from headlab.store import Run
    from headlab.studies.front import require_front, write_front
    from headlab.studies.spec import make_spec

    require_front(folder)
    specs = [
        make_spec({"study": name, "models": [MODEL], "size": "smoke", **asked})
        for name, asked in SHOWN.items()
    ]
    runs = [Run.start(folder / spec.study, spec) for spec in specs]  # all fit what is there
    failed = []
    for number, run in enumerate(runs, 1):
        if not quiet:
            said = f"{number}/{len(runs)} studies  {run.spec.study}: {STUDIES[run.spec.study]}"
            err.print(escape(said), highlight=False, soft_wrap=True, style="bold")
        failed += carry_out(run, None, False, quiet)
    folders = [run.folder for run in runs]
    print(write_front(folder, folders, f"What the heads of {MODEL} do", _SAYS))
    return runs, failed
