"""headlab convert"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import Quiet, be_quiet, status
from headlab.cli.printing import print_model


@app.command(epilog="Example: headlab convert final.pth --out sparse-gpt2 --bias 0")
def convert(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A nanoGPT checkpoint (.pth).", show_default=False),
    ],
    folder: Annotated[Path, typer.Option("--out", help="A new folder.", show_default=False)],
    tokenizer: Annotated[str, typer.Option(help="gpt2, a folder, or none.")] = "gpt2",
    heads: Annotated[
        int | None,
        typer.Option(min=1, help="In a layer, if the file does not say. Default: width / 64."),
    ] = None,
    activation: Annotated[
        str, typer.Option(help="gelu (nanoGPT's) or gelu_new (OpenAI's).")
    ] = "gelu",
    bias: Annotated[
        float | None,
        typer.Option(help="One b for all gates, open where s + b > 0. Default: from the file."),
    ] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Convert without gates.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a model folder of a published sparse GPT-2 checkpoint, and print its path.

    Only tensors are read from the file: no code in it runs.
    """
    with status(f"loading and converting {file.name}", quiet):
        be_quiet()
        from headlab.sparse.convert import convert_nanogpt

        done = convert_nanogpt(
            file,
            folder,
            tokenizer=tokenizer,
            heads=heads,
            activation=activation,
            bias=bias,
            dense=dense,
        )
    if not quiet:
        for note in done.notes:
            out.print(escape(note), highlight=False, soft_wrap=True)
        out.print()
        print_model(done.model)
    print(done.folder)
