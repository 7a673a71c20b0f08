"""headlab run, headlab resume, headlab new"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from headlab.aliases import ALIASES
from headlab.cli.app import app, err
from headlab.cli.options import Quiet, be_quiet, complete_model, complete_task, status
from headlab.cli.printing import print_findings
from headlab.errors import HeadlabError
from headlab.studies import STUDIES, require_study, template
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.store import Run
    from headlab.studies.spec import Spec


class _StudyOrFile(TyperGroup):
    """`headlab run circuits ...` and `headlab run STUDY.yaml ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            if Path(word).suffix not in (".yaml", ".yml") and not Path(word).exists():
                require_study(word)  # says which study is nearest
            args = ["file", *args]
        return super().resolve_command(ctx, args)


run_app = typer.Typer(
    cls=_StudyOrFile,
    no_args_is_help=True,
    help="Run a study: a named one with options, or a study file: headlab run STUDY.yaml",
    epilog="Example: headlab run circuits --models smollm2 --tasks ioi --size smoke; "
    "headlab run study.yaml --set n=32 --out runs/first",
)
app.add_typer(run_app, name="run")

Models = Annotated[
    str | None,
    typer.Option(
        help="Aliases, hub ids (also name@revision) or folders, with commas between them.",
        autocompletion=complete_model,
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        help="Tasks or JSONL files, with commas between them.", autocompletion=complete_task
    ),
]
Size = Annotated[str | None, typer.Option(help="smoke, small (default) or paper.")]
Seeds = Annotated[str | None, typer.Option(help="Seed numbers, not how many: 0,1,2.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The run's folder. Default: runs/STUDY-1 and so on."),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: a GPU if there is one.")
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with a model.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells, with time and memory; run nothing.")
]


@run_app.command(
    "circuits", epilog="Example: headlab run circuits --models smollm2 --tasks ioi,greater-than"
)
def run_circuits(
    models: Models = None,
    tasks: Tasks = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Models to compare, dense:sparse or dense:sparse:twin, with commas between. A "
            "folder of headlab sparsify stands for all its levels."
        ),
    ] = None,
    size: Size = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="patch (default), attribute, ablate, random; patch-per-prompt and so on for an "
            "order for each prompt, in-sample."
        ),
    ] = None,
    seeds: Seeds = None,
    n: Annotated[
        int | None, typer.Option(help="Prompts to rank on, and others to test on.")
    ] = None,
    orders: Annotated[int | None, typer.Option(help="Random orders, the baseline.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="The share explained that is asked for. Default: 0.9")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="What the other heads give: counterfactual, mean or zero.")
    ] = None,
    per_prompt: Annotated[
        bool,
        typer.Option("--per-prompt", help="All methods: an order for each prompt; in-sample."),
    ] = False,
    measure: Annotated[str | None, typer.Option(help="Default: each task's own.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of attribute; more is integrated.")] = None,
    exact: Annotated[
        int | None,
        typer.Option(
            help="patch, ablate: run only so many heads, those with the largest gradients, and 20 "
            "others as a check."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 up to 1B parameters.")] = None,
    bos: Annotated[str | None, typer.Option(help="Start prompts with BOS: auto, yes, no.")] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """How few heads explain the effect? Explained effect against heads kept, with multipliers."""
    from headlab.studies.spec import make_spec

    lists = {"models": models, "tasks": tasks, "pairs": pairs, "methods": methods, "seeds": seeds}
    single = {
        "size": size,
        "n": n,
        "orders": orders,
        "threshold": threshold,
        "reference": reference,
        "per_prompt": per_prompt or None,
        "measure": measure,
        "steps": steps,
        "exact": exact,
        "dtype": dtype,
        "bos": bos,
    }
    spec = make_spec({"study": "circuits", **given(lists, single)})
    run_spec(spec, folder, device, trust_remote_code, dry_run, quiet)


@run_app.command("file", hidden=True, epilog="Example: headlab run study.yaml --out runs/first")
def run_file(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", show_default=False)],
    models: Models = None,
    tasks: Tasks = None,
    size: Size = None,
    seeds: Seeds = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting: --set n=4 --set orders=5."),
    ] = None,
    folder: Out = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run a study file; options stand in for what it says."""
    import yaml

    from headlab.studies.spec import read_spec

    lists = {"models": models, "tasks": tasks}
    changes: dict[str, Any] = {k: _absolute(text) for k, text in lists.items() if text is not None}
    if seeds is not None:
        changes["seeds"] = words(seeds)
    if size is not None:
        changes["size"] = size
    for each in set_ or []:
        name, equals, value = each.partition("=")
        if not equals:
            raise HeadlabError(f"--set takes a name and a value, like n=4, not {each!r}")
        try:
            changes[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise HeadlabError(f"--set {name}: {value!r} is not a value") from None
    run_spec(read_spec(study, changes), folder, device, trust_remote_code, dry_run, quiet)


@app.command(epilog="Example: headlab resume runs/circuits-1")
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)],
    device: Device = None,
    trust_remote_code: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was interrupted; finished cells stay as they are."""
    from headlab.store import Run

    opened = Run.read(run)
    if not all(opened.has(cell) for cell in opened.cells):
        opened = Run.read(run, strictly=True)  # its models and files are needed
    execute(opened, device, trust_remote_code, quiet)


@app.command(epilog="Example: headlab new circuits > study.yaml")
def new(
    study: Annotated[str, typer.Argument(metavar="STUDY", help=", ".join(STUDIES) + ".")],
) -> None:
    """Print a commented study file to start from."""
    print(template(study), end="")


def run_spec(
    spec: Spec,
    folder: Path | None,
    device: str | None,
    trust_remote_code: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    from headlab.store import Run, next_folder

    if dry_run:
        from headlab.cli.display import print_plan
        from headlab.studies.planning import plan

        be_quiet()
        print_plan(plan(spec, device, trust_remote_code))
        return
    run = Run.start(folder or next_folder(spec.study), spec)
    execute(run, device, trust_remote_code, quiet)


def execute(run: Run, device: str | None, trust_remote_code: bool, quiet: bool) -> None:
    """Run what is missing, show how it goes, end with the report's path."""
    try:
        failed = carry_out(run, device, trust_remote_code, quiet)
    except KeyboardInterrupt:
        if not (run.folder / "study.yaml").exists():
            raise  # nothing has begun
        done = sum(run.has(cell) for cell in run.cells)
        err.print(
            escape(
                f"interrupted after {done} of {count(len(run.cells), 'cell')}; go on with: "
                f"{run.resume_command}"
            ),
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(130) from None
    if failed:
        known = f": {failed[0]}" if quiet else " (above)"
        raise HeadlabError(
            f"{len(failed)} of {count(len(run.cells), 'cell')} failed{known}; "
            f"{run.resume_command} tries again"
        )


def carry_out(run: Run, device: str | None, trust_remote_code: bool, quiet: bool) -> list[str]:
    """Run what is missing, print what was found and the report's path; why cells failed."""
    from headlab.cli.display import Display, Interruptible
    from headlab.studies.planning import plan
    from headlab.studies.running import run_study

    be_quiet()
    loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    todo = [cell for cell in run.cells if not run.has(cell)]
    if todo and device is not None:
        from headlab.loading import usable_device

        usable_device(device)
    with status("looking at the models", quiet):
        planned = plan(run.spec, **loading) if todo else []
    lost = {each.cell.model: each.reason or "" for each in planned if each.is_lost}
    if planned and len(lost) == len(run.spec.models):
        raise HeadlabError(next(iter(lost.values())))
    listener = Interruptible() if quiet or not todo else Display(run, planned)
    with listener:
        run_study(run, listener=listener, lost=lost, **loading)
    if not todo and not quiet:
        err.print("every cell is done already", highlight=False)
    print_findings(run, quiet)
    print((run.folder / "report.html").resolve())
    return [run.known(cell)["reason"] for cell in run.cells if run.status(cell) == "failed"]


def given(lists: dict[str, str | None], single: dict[str, Any]) -> dict[str, Any]:
    """The settings that options name; what is left out is not there."""
    named: dict[str, Any] = {name: words(text) for name, text in lists.items() if text is not None}
    return named | {name: value for name, value in single.items() if value is not None}


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _absolute(text: str) -> list[str]:
    """Paths on the command line are of here, not of the study file's folder."""
    from headlab.tasks import TASKS

    return [
        str(Path(word).absolute())
        if word not in {*ALIASES, *TASKS} and Path(word).exists()
        else word
        for word in words(text)
    ]
