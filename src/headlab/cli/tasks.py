"""headlab tasks"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from headlab.cli.app import app, out
from headlab.cli.options import AsJson, Quiet, complete_model, status
from headlab.cli.printing import new_table, print_json, printable

tasks = typer.Typer(
    help="What a model can be asked: list the tasks, or show their prompts.",
    epilog="Example: headlab tasks show ioi --n 3",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.add_typer(tasks, name="tasks")


@tasks.callback(invoke_without_command=True)
def list_tasks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tasks with an example of each."""
    if context.invoked_subcommand is not None:
        return
    from headlab.tasks import TASKS

    if as_json:
        fields = ("name", "says", "example", "measure", "size", "paired")
        print_json([{field: getattr(task, field) for field in fields} for task in TASKS.values()])
        return
    table = new_table("task", "size", "measure", "what it asks")
    for task in TASKS.values():
        said = f"{escape(task.says)}\n[dim]{escape(task.example)}[/]"
        table.add_row(task.name, task.size, task.measure, said)
    table.add_row(
        "words-icl,\nwords-instruction",
        "807 or --data",
        "log-prob",
        "a word for a word, ten examples or an instruction; also antonym-icl, capitalize-icl ...",
    )
    table.add_row(
        "FILE.jsonl",
        "its lines",
        "-",
        'yours: {"prompt", "target", "counterfactual"?, "wrong"?: \\[...], "also_right"?, ...}',
    )
    out.print(table)


@tasks.command(epilog="Example: headlab tasks show greater-than --model smollm2 --n 3")
def show(
    task: Annotated[str, typer.Argument(help="A task's name, or a JSONL file.")],
    model: Annotated[
        str,
        typer.Option(
            help="Whose tokenizer the prompts are made for.", autocompletion=complete_model
        ),
    ] = "smollm2",
    n: Annotated[int, typer.Option(help="How many.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of the random choices.")] = 0,
    data: Annotated[
        str | None, typer.Option(help="Question sets: a folder with published files, or hub.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Print prompts, targets, wrong answers and counterfactuals."""
    from headlab.tasks import find_task

    find_task(task)  # a wrong name fails before a tokenizer is loaded
    with status("loading the tokenizer", quiet or as_json):
        from headlab.loading import load_texts
        from headlab.tasks import make_examples

        examples = make_examples(load_texts(model), task, n, seed, data=data)
    if as_json:
        print_json([example.as_dict() for example in examples])
        return
    for example in examples:
        prompt, target = escape(printable(example.prompt)), escape(printable(example.target))
        out.print(f"[dim]{escape(example.id)}[/]  {escape(example.category)}", highlight=False)
        out.print(f"  {prompt}[bold cyan]\\[{target}][/]", highlight=False)
        if example.also_right:
            out.print(f"  also right: {_listed(example.also_right)}", highlight=False)
        if example.wrong:
            out.print(f"  wrong: {_listed(example.wrong)}", highlight=False)
        if example.counterfactual:
            said = escape(printable(example.counterfactual))
            out.print(f"  counterfactual: {said}", highlight=False)


def _listed(answers: tuple[str, ...]) -> str:
    if len(answers) <= 10:
        return escape(", ".join(repr(answer) for answer in answers))
    shown = ", ".join(repr(answer) for answer in answers[:6])
    return escape(f"{shown}, ... {answers[-1]!r}")
