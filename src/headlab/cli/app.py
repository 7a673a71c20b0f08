"""The application the commands hang on: its consoles, and one sentence for every failure."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from typer.core import TyperGroup

from headlab.errors import HeadlabError

os.environ.setdefault("TQDM_DISABLE", "1")  # one voice on the screen; read when tqdm is imported


class _Wide(Console):
    """As wide as the terminal; where there is none, wide enough that no line is broken."""

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        known = super().size
        return known if self.is_terminal else ConsoleDimensions(_ENDLESS, known.height)


_ENDLESS = 10_000
out = _Wide()  # results
err = _Wide(stderr=True)  # everything else


class _Sentences(TyperGroup):
    """Ends every failure with one sentence. HEADLAB_DEBUG=1 shows the trace instead."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note
                return super().invoke(ctx)
        except HeadlabError as error:
            _fail(str(error), error)
        except KeyboardInterrupt:
            err.print("interrupted; no result was left half-written")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of our output went away
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise typer.Exit(0) from None
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror or error}{place}", error)
        except Exception as error:
            if type(error).__module__.startswith(("click", "typer")):
                raise  # an orderly exit, or wrong usage, which typer explains
            kind = type(error).__name__
            _fail(f"unexpected {kind}: {error} (HEADLAB_DEBUG=1 shows where)", error)


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the line of code it comes from."""
    err.print(f"[yellow]note:[/] {escape(str(message))}", soft_wrap=True, highlight=False)


def _fail(sentence: str, error: BaseException) -> NoReturn:
    if os.environ.get("HEADLAB_DEBUG"):
        raise error
    sentence = " ".join(sentence.split())
    err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True, highlight=False)
    raise typer.Exit(1) from None


app = typer.Typer(
    name="headlab",
    cls=_Sentences,
    help="A laboratory for the attention heads of causal language models.",
    epilog="Example: headlab ablate smollm2 --prompt 'The sky is' --heads L23H4",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from headlab import __version__

        print(f"headlab {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass
