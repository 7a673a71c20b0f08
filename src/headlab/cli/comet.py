"""headlab comet install, headlab comet path"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from headlab.cli.app import app, err, out
from headlab.cli.options import AsJson, Quiet, status
from headlab.cli.printing import new_table, print_json, printable
from headlab.errors import HeadlabError

comet_app = typer.Typer(
    help="COMET, a learned score of text quality: its environment and its checkpoint.",
    epilog="Example: headlab comet install",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.add_typer(comet_app, name="comet")


@comet_app.command(epilog="Example: headlab comet install --python python3.12")
def install(
    force: Annotated[bool, typer.Option("--force", help="Make it anew, even if whole.")] = False,
    python: Annotated[
        str | None, typer.Option(help="The Python to make it with (3.10 to 3.12). Default: this.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make the environment that COMET runs in, of some GB, and print its folder.

    It is made in $HEADLAB_COMET, or in Headlab's cache folder.
    """
    from headlab import comet

    folder = comet.environment_folder()
    if comet.environment_state(folder) == "whole" and not force:
        if not quiet:
            err.print("it is there and whole; --force makes it anew")
        print(folder)
        return
    with status("making COMET's environment", quiet) as shown:

        def tell(line: str) -> None:
            if shown is not None and not line.startswith("WARNING"):
                room = max(20, err.width - 4)
                shown.update(escape(printable(line)[:room]))

        comet.install(force, python, tell)
    print(folder)


@comet_app.command("path", epilog="Example: headlab comet path --json")
def show_path(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Show where COMET's environment is, whether it is whole, and the checkpoint it would use."""
    from headlab import comet

    folder = comet.environment_folder()
    if quiet:
        print(folder)
        return
    state, checkpoint = comet.environment_state(folder), comet.default_checkpoint()
    where, problem = None, None
    try:
        where = comet.local_checkpoint(checkpoint) if checkpoint else None
    except HeadlabError as error:
        problem = str(error)
    if as_json:
        file = str(where) if where else None
        print_json(
            {
                "environment": str(folder),
                "state": state,
                "checkpoint": checkpoint,
                "file": file,
                "problem": problem,
            }
        )
        return
    table = new_table("", "")
    table.show_header = False
    table.add_row("environment", escape(str(folder)))
    table.add_row("state", _STATES[state])
    table.add_row("checkpoint", escape(checkpoint or f"none; {_HOW}"))
    if checkpoint:
        table.add_row("file", escape(problem or str(where or "not here yet; it is downloaded")))
    out.print(table, highlight=False)


_HOW = (
    "name one where it is asked for, set HEADLAB_COMET_CHECKPOINT, or have "
    "Unbabel/wmt22-comet-da in the hub cache"
)
_STATES = {
    "whole": "whole",
    "absent": "not there; headlab comet install makes it",
    "half-made": "half-made; headlab comet install makes it anew",
    "outdated": "outdated; headlab comet install makes it anew",
    "moved": "moved from where it was made; headlab comet install makes it anew",
    "foreign": "not made by headlab comet install; set HEADLAB_COMET to another folder",
}
