"""The command line: reads options, calls the library, prints."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from headlab.aliases import ALIASES
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.ablation import Ablation
    from headlab.model import Model
    from headlab.proofs import Check

out = Console()  # results
err = Console(stderr=True)  # everything else


class _Sentences(TyperGroup):
    """Ends every failure with one sentence. HEADLAB_DEBUG=1 shows the trace instead."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadlabError as error:
            _fail(str(error), error)
        except KeyboardInterrupt:
            err.print("interrupted; nothing half-written was left behind")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of our output went away
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise typer.Exit(0) from None
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror or error}{place}", error)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.startswith(("click", "typer")):
                raise  # wrong usage, which typer explains
            kind = type(error).__name__
            _fail(f"unexpected {kind}: {error} (HEADLAB_DEBUG=1 shows where)", error)


def _fail(sentence: str, error: BaseException) -> None:
    if os.environ.get("HEADLAB_DEBUG"):
        raise error
    err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True, highlight=False)
    raise typer.Exit(1) from None


app = typer.Typer(
    name="headlab",
    cls=_Sentences,
    help="A laboratory for the attention heads of causal language models.",
    epilog="Example: headlab ablate smollm2 --prompt 'The capital of France is' "
    "--target ' Paris' --heads L23H4,L11H7",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _complete_model(incomplete: str) -> list[str]:
    return [alias for alias in ALIASES if alias.startswith(incomplete)]


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Alias, hub id, folder or .gguf file.",
        autocompletion=_complete_model,
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results only, no status lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16 or float64. Default: float32 up to 1B parameters."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: a GPU if there is one.")
]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread a large model, e.g. auto. Needs accelerate.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Attention = Annotated[str | None, typer.Option("--attn", help="sdpa, eager, flash_attention_2 ...")]
Bos = Annotated[
    str, typer.Option(help="Start prompts with BOS: auto (the tokenizer's own), yes, no.")
]
RemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]


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


@app.command(epilog="Example: headlab models --json")
def models(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the aliases and what is loadable here without a download."""
    from dataclasses import asdict

    from headlab.aliases import known_models

    known = known_models()
    if as_json:
        _print_json([asdict(model) for model in known])
        return
    if quiet:
        for model in known:
            if model.here:
                print(model.name)
        return
    table = _table("model", "hub id", "here", "")
    for model in known:
        table.add_row(model.name, model.hub_id, "yes" if model.here else "no", model.why)
    out.print(table)
    out.print(
        "Any other hub id, a folder with config.json and safetensors, or a .gguf file: by name."
    )


@app.command(epilog="Example: headlab check smollm2")
def check(
    model: ModelName,
    dtype: Dtype = None,
    device: Device = None,
    device_map: DeviceMap = None,
    revision: Revision = None,
    attn: Attention = None,
    bos: Bos = "auto",
    trust_remote_code: RemoteCode = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prove on the loaded model that a gate on a head means what it says."""
    options = _load_options(dtype, device, device_map, revision, attn, bos, trust_remote_code)
    loaded = _load(model, options, quiet or as_json, check=False)
    with _status("checking", quiet or as_json):
        from headlab.proofs import check as run_check

        result = run_check(loaded)
    if as_json:
        _print_json({**_describe(loaded), **result.as_dict()})
    elif quiet:
        print("passed" if result.passed else "failed")
    else:
        _print_model(loaded)
        _print_check(result)
    result.require()


@app.command(
    epilog="Example: headlab ablate smollm2 --prompt 'The capital of France is' --target ' Paris' "
    "--heads L23H4,L11H7 --reference counterfactual --counterfactual 'The capital of Japan is'"
)
def ablate(
    model: ModelName,
    prompt: Annotated[str, typer.Option(help="The text before the target.", show_default=False)],
    heads: Annotated[
        str, typer.Option(help="Comma-separated: L5H1, 5.1 or a5.h1.", show_default=False)
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="The text to score, usually with its leading space. Default: the likeliest token."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Gate all other heads instead.")] = False,
    scale: Annotated[float, typer.Option(help="The gate: 0 removes, 0.5 halves, 2 doubles.")] = 0.0,
    reference: Annotated[
        str, typer.Option(help="What stands in for a head: zero, mean or counterfactual.")
    ] = "zero",
    reference_data: Annotated[
        Path | None,
        typer.Option(help="Prompts for the mean: one a line, or JSONL with a prompt field."),
    ] = None,
    per_position: Annotated[
        bool,
        typer.Option("--per-position", help="Mean at each position; one template and length only."),
    ] = False,
    counterfactual: Annotated[
        str | None, typer.Option(help="A prompt of the same length in tokens.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    device_map: DeviceMap = None,
    revision: Revision = None,
    attn: Attention = None,
    bos: Bos = "auto",
    trust_remote_code: RemoteCode = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Switch heads off (or keep only some) and compare the answer before and after."""
    from headlab.heads import parse_heads
    from headlab.prompts import read_prompts, require_reference

    named = parse_heads(heads)  # what the user typed is read before a model is loaded
    require_reference(reference, reference_data, counterfactual, per_position)
    if not prompt:
        raise HeadlabError("the prompt is empty; give at least one word")
    if target == "":
        raise HeadlabError("the target is empty; give the text whose log-prob you want")
    data = read_prompts(reference_data) if reference_data else []
    options = _load_options(dtype, device, device_map, revision, attn, bos, trust_remote_code)
    loaded = _load(model, options, quiet or as_json)
    with _status("running", quiet or as_json):
        from headlab.ablation import ablate as run

        result = run(
            loaded,
            prompt,
            named,
            target,
            keep=keep,
            scale=scale,
            reference=reference,
            reference_data=data,
            per_position=per_position,
            counterfactual=counterfactual,
        )
    if as_json:
        _print_json(result.as_dict())
    elif quiet:
        print(f"{result.before.log_prob:.6f}\t{result.after.log_prob:.6f}\t{result.change:.6f}")
    else:
        _print_ablation(result)


@app.command(epilog="Example: headlab demo --out headlab-demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the page and figure go.")] = Path(
        "headlab-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Switch heads of SmolLM2 off on three famous prompts and write a page about it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    folder.mkdir(parents=True, exist_ok=True)  # a wrong folder should fail before the work
    loaded = _load("smollm2", {}, quiet, check=False)
    from headlab.demo import PROMPTS, investigate, write_page
    from headlab.proofs import check as run_check

    with _status("checking", quiet):
        result = run_check(loaded).require()
    if not quiet:
        _print_check(result)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
    findings = []
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=quiet) as bar:
        total = len(PROMPTS) * loaded.n_layers * loaded.n_heads
        task = bar.add_task("switching heads off", total=total)
        for prompt in PROMPTS:
            findings.append(investigate(loaded, prompt, lambda n: bar.advance(task, n)))
    if not quiet:
        for finding in findings:
            _print_ablation(finding.ablation)
            out.print(
                f"{len(finding.random)} draws of as many random other heads: "
                f"{finding.random_mean:.3f} ({finding.low:.2f} to {finding.high:.2f})\n"
            )
    print(write_page(loaded, result, findings, folder))


# --- loading and printing ---


def _load_options(
    dtype: str | None,
    device: str | None,
    device_map: str | None,
    revision: str | None,
    attn: str | None,
    bos: str,
    trust_remote_code: bool,
) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "revision": revision,
        "attn_implementation": attn,
        "bos": bos,
        "trust_remote_code": trust_remote_code,
    }


def _load(name: str, options: dict[str, Any], quiet: bool, check: bool = True) -> Model:
    with _status(f"loading {name} (the first time can take a while)", quiet):
        from transformers.utils import logging

        from headlab.loading import load

        logging.set_verbosity_error()  # one voice on the screen
        logging.disable_progress_bar()
        return load(name, check=check, **options)


def _status(text: str, quiet: bool) -> AbstractContextManager[Any]:
    return nullcontext() if quiet else err.status(escape(text))


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column in ("prob", "log-prob", "largest difference", "allowed", "before", "after")
        table.add_column(column, justify="right" if right else "left")
    return table


def _describe(model: Model) -> dict[str, Any]:
    return {
        "model": model.name,
        "architecture": type(model.hf).__name__,
        "layers": model.n_layers,
        "heads": model.n_heads,
        "kv_heads": model.seam.kv_heads,
        "head_width": model.head_width,
        "parameters": model.n_parameters,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "attention": model.hf.config._attn_implementation,
        "bos": f"{'yes' if model.bos else 'no'} ({model.bos_policy})",
        "max_length": model.max_length,
        "seam": model.seam.paths[0],
        "seam_found_by": model.seam.found,
    }


def _print_model(model: Model) -> None:
    table = _table("", "")
    table.show_header = False
    for name, value in _describe(model).items():
        text = f"{value:,}" if name == "parameters" else escape(str(value))
        table.add_row(name.replace("_", " "), text)
    out.print(table)
    out.print()


def _print_check(result: Check) -> None:
    table = _table("proof", "claim", "largest difference", "allowed", "")
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


def _print_ablation(result: Ablation) -> None:
    what = "kept, all others" if result.keep else ""
    done = f"gate {result.scale:g}" if result.scale else "off"
    out.print(
        f"[bold]{escape(result.prompt)}[/][bold cyan]{escape(result.target)}[/]", highlight=False
    )
    heads = ", ".join(result.heads)
    out.print(f"{heads} {what} {done}, reference {result.reference}".replace("  ", " "))
    numbers = _table("", "before", "after")
    origin = "" if result.target_given else " (the likeliest)"
    numbers.add_row(
        f"log-prob of {escape(repr(result.target))}{origin}",
        f"{result.before.log_prob:.4f}",
        f"{result.after.log_prob:.4f}",
    )
    numbers.add_row("probability", f"{result.before.prob:.4f}", f"{result.after.prob:.4f}")
    out.print(numbers)
    tokens = _table("next token", "prob", "", "next token", "prob")
    for (was, p), (now, q) in zip(result.before.top, result.after.top, strict=True):
        tokens.add_row(escape(repr(was)), f"{p:.3f}", "   ", escape(repr(now)), f"{q:.3f}")
    out.print(tokens)
    for note in result.notes:
        err.print(f"[yellow]note:[/] {escape(note)}")


def _print_json(value: Any) -> None:
    print(json.dumps(_finite(value), ensure_ascii=False, indent=2))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    app()


if __name__ == "__main__":
    main()
