"""headlab curve"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headlab.cli.app import app, err
from headlab.cli.options import (
    AsJson,
    MaybeModel,
    MaybeTask,
    MeasureName,
    Quiet,
    Seed,
    load_model,
    loads_a_model,
    progress,
)
from headlab.cli.printing import print_curve, print_json
from headlab.errors import HeadlabError
from headlab.files import as_json as to_json
from headlab.files import require_folder, write_whole

if TYPE_CHECKING:
    from headlab.examples import Example
    from headlab.scores import HeadScores
    from headlab.texts import Texts


@app.command(epilog="Example: headlab curve smollm2 ioi --scores scores.json --keep --n 32")
@loads_a_model
def curve(
    loading: dict[str, Any],
    model: MaybeModel = None,
    task: MaybeTask = None,
    scores: Annotated[Path, typer.Option(help="As headlab rank leaves them.")] = Path(
        "scores.json"
    ),
    keep: Annotated[bool, typer.Option("--keep/--ablate", help="Keep the best, or ablate.")] = True,
    ks: Annotated[str, typer.Option(help="auto, all, or numbers: 0,1,5,20.")] = "auto",
    reference: Annotated[
        str | None, typer.Option(help="What the other heads give: counterfactual, mean or zero.")
    ] = None,
    orders: Annotated[int, typer.Option(help="Random orders, at least 20.")] = 20,
    threshold: Annotated[float, typer.Option(help="The share explained that k is for.")] = 0.9,
    n: Annotated[
        int | None, typer.Option(help="Examples. Default: 100, or what a file has left.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="rank, curve or all.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Question sets: a folder with published files, or hub.")
    ] = None,
    same_prompts: Annotated[
        bool, typer.Option("--same-prompts", help="Those of the ranking; marked in-sample.")
    ] = False,
    per_prompt: Annotated[
        bool, typer.Option("--per-prompt", help="An order for each prompt; in-sample.")
    ] = False,
    measure: MeasureName = None,
    seed: Seed = 0,
    folder: Annotated[Path, typer.Option("--out", help="Where figure and numbers go.")] = Path(
        "headlab-curve"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prove an order of heads: the effect explained with k of them, beside random orders.

    Model, task and reference are those of the scores where none are given.
    """
    from headlab.measures import find_measure
    from headlab.scores import read_scores
    from headlab.tasks import find_task

    numbers = _numbers(ks)
    if reference not in (None, *_REFERENCES):
        raise HeadlabError(f"--reference is zero, mean or counterfactual, not {reference!r}")
    ranked = read_scores(scores)
    model, task, reference, data, taken = _as_ranked(ranked, scores, model, task, reference, data)
    if measure is not None:
        find_measure(measure)
    found = find_task(task)
    if isinstance(found, Path):
        from headlab.tasks.jsonl import read_examples

        read_examples(found)
    require_folder(folder)
    silent = quiet or as_json
    if taken and not silent:
        told = ", ".join(f"{name} {value}" for name, value in taken.items())
        err.print(escape(f"as in {scores}: {told}"), highlight=False, soft_wrap=True)
    if ranked.estimated and not silent:
        from headlab.screening import ran

        told = f"in {scores} {ran(ranked)}; the others' places in the order are estimates"
        err.print(escape(told), highlight=False, soft_wrap=True)
    loaded = load_model(model, loading, silent)
    from headlab.curves import curve as run
    from headlab.curves import expected_masks
    from headlab.figures import save
    from headlab.ranking import measure_for
    from headlab.tasks import make_examples

    if same_prompts or per_prompt:
        examples = _ranked_examples(loaded, task, ranked, data)
    else:
        used = frozenset(ranked.fingerprints)
        examples = make_examples(loaded, task, n, seed, split, used, data)  # type: ignore[arg-type]
    if not examples:
        raise HeadlabError(
            f"the ranking has used every example of {task}; rank with --split rank, or say "
            "--same-prompts for a curve that is in-sample"
        )
    chosen = measure_for(task, examples, measure or ranked.measure or None)
    stand_in: Any = reference
    if reference == "mean":
        from headlab.gates import mean_reference

        stand_in = mean_reference(loaded, [example.prompt for example in examples])
    heads = loaded.n_layers * loaded.n_heads
    total = expected_masks(heads, numbers, orders) * len(examples)
    with progress("keeping heads" if keep else "ablating heads", total, silent) as advance:
        made = run(
            loaded,
            examples,
            ranked,
            "keep" if keep else "ablate",
            ks=numbers,
            reference=stand_in,
            orders=orders,
            threshold=threshold,
            measure_by=chosen,
            task=task,
            same_prompts=same_prompts,
            per_prompt=per_prompt,
            seed=seed,
            progress=advance,
        )
    folder.mkdir(parents=True, exist_ok=True)
    rows = made.table().to_dict("records")
    path = save(made.plot(), folder, "curve", rows).resolve()
    write_whole(folder / "curve.json", to_json(made.as_dict()) + "\n")
    if as_json:
        print_json(made.as_dict())
        return
    if not quiet:
        print_curve(made)
    print(path)


_REFERENCES = ("zero", "mean", "counterfactual")


def _as_ranked(
    ranked: HeadScores,
    path: Path,
    model: str | None,
    task: str | None,
    reference: str | None,
    data: str | None,
) -> tuple[str, str, str, str | None, dict[str, str]]:
    """What is given, and where nothing is, what the scores were made with; last, what was taken
    from them."""
    taken = {}
    if model is None:
        if not ranked.model:
            raise HeadlabError(f"{path} does not say of which model it is; name a model and a task")
        model = taken["model"] = ranked.model
    if task is None:
        if not ranked.task or ranked.method == "contrastive":  # of two tasks
            why = f"it is of {ranked.task}" if ranked.task else "it does not say of which task"
            raise HeadlabError(f"name a task after the model for {path}: {why}")
        task = taken["task"] = ranked.task
    drawn_from = ranked.settings.get("data")
    if data is None and task == ranked.task and drawn_from is not None:
        data = taken["data"] = str(drawn_from)
    if reference is None:
        # A random order has none of its own.
        known = ranked.reference in _REFERENCES and ranked.method != "random"
        if known:
            taken["reference"] = ranked.reference
        reference = ranked.reference if known else "counterfactual"
    return model, task, reference, data, taken


def _ranked_examples(
    texts: Texts, task: str, ranked: HeadScores, data: str | None
) -> list[Example]:
    """The very examples of the ranking, made or read again."""
    from headlab.tasks import make_examples

    if not ranked.fingerprints:
        raise HeadlabError("these scores do not say which prompts they are of")
    generated = not task.endswith(".jsonl") and "n" in ranked.settings
    drawn = {key: ranked.settings[key] for key in ("n", "seed", "split")} if generated else {}
    known = set(ranked.fingerprints)
    found = [e for e in make_examples(texts, task, data=data, **drawn) if e.fingerprint in known]
    if len(found) < len(known):
        raise HeadlabError(
            f"only {len(found)} of the ranking's {len(known)} examples are in {task}; it was of "
            f"{ranked.task or 'another task'}"
        )
    return found


def _numbers(ks: str) -> Any:
    if ks in ("auto", "all"):
        return ks
    try:
        return [int(k) for k in ks.split(",")]
    except ValueError:
        raise HeadlabError(f"--ks is auto, all or numbers like 0,1,5,20, not {ks!r}") from None
