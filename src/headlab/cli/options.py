"""Options that many commands share: which model, how to load it, how to print."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.aliases import ALIASES
from headlab.cli.progress import progress as progress
from headlab.cli.progress import status as status

if TYPE_CHECKING:
    from headlab.model import Model


def complete_model(incomplete: str) -> list[str]:
    return [alias for alias in ALIASES if alias.startswith(incomplete)]


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Alias, hub id, folder or .gguf file.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
MaybeModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, hub id, folder or .gguf file.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


def complete_task(incomplete: str) -> list[str]:
    from headlab.tasks import TASKS

    return [task for task in TASKS if task.startswith(incomplete)]


TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task (headlab tasks) or a JSONL file.",
        autocompletion=complete_task,
        show_default=False,
    ),
]
MaybeTask = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A task (headlab tasks) or a JSONL file.",
        autocompletion=complete_task,
        show_default=False,
    ),
]
MeasureName = Annotated[
    str | None, typer.Option(help="Default: the task's own; logit-diff or log-prob of a file.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results only, no status lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def loading_options(
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16 or float64. Default: float32 up to 1B parameters."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: a GPU if there is one.")
    ] = None,
    device_map: Annotated[
        str | None, typer.Option(help="Spread a large model, e.g. auto. Needs accelerate.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    attn_implementation: Annotated[
        str | None, typer.Option("--attn", help="sdpa, eager, flash_attention_2 ...")
    ] = None,
    bos: Annotated[
        str, typer.Option(help="Start prompts with BOS: auto (the tokenizer's own), yes, no.")
    ] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
) -> None:
    """Only its signature is used: every command that loads a model takes these."""


def loads_a_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with a `loading` parameter the options above, gathered in that parameter."""
    shared = inspect.signature(loading_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def gathered(**values: Any) -> None:
        command(loading={name: values.pop(name) for name in shared}, **values)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in (own | shared).items()
        if name != "loading"
    ]
    gathered.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    gathered.__annotations__ = {each.name: each.annotation for each in parameters}
    return gathered


def load_model(name: str, loading: dict[str, Any], quiet: bool, check: bool = True) -> Model:
    with status(f"loading {name} (the first time can take a while)", quiet):
        be_quiet()
        from headlab.loading import load

        return load(name, check=check, **loading)


def be_quiet() -> None:
    """One voice on the screen: the libraries below keep their bars and advice to themselves."""
    import logging as standard

    from transformers.utils import logging

    standard.getLogger("huggingface_hub").setLevel(standard.ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
