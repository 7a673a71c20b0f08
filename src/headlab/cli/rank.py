"""headlab rank"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headlab.cli.app import app
from headlab.cli.beside import remove_old
from headlab.cli.options import (
    AsJson,
    MaybeTask,
    MeasureName,
    ModelName,
    Quiet,
    Seed,
    load_model,
    loads_a_model,
    progress,
)
from headlab.cli.printing import print_json, print_scores
from headlab.errors import HeadlabError
from headlab.files import require_folder


@app.command(epilog="Example: headlab rank smollm2 ioi --method patch --n 32 --exact 40")
@loads_a_model
def rank(
    model: ModelName,
    loading: dict[str, Any],
    task: MaybeTask = None,
    method: Annotated[
        str, typer.Option(help="ablate, patch, attribute, gates, contrastive, probe or random.")
    ] = "patch",
    direction: Annotated[
        str | None,
        typer.Option(help="patch, attribute: noising (the clean run, default) or denoising."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="attribute: 1 (default) is the plain gradient, more integrates."),
    ] = None,
    exact: Annotated[
        int | None,
        typer.Option(
            help="ablate, patch: run only so many heads, those with the largest gradients, and 20 "
            "others as a check; the rest get estimates. Default: every head."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="ablate, attribute, gates: zero, mean; not gates: counterfactual."),
    ] = None,
    n: Annotated[
        int | None, typer.Option(help="Examples. Default: 100, or every line of a file.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="rank, curve or all: a half that the other does not have.")
    ] = None,
    keep: Annotated[str | None, typer.Option(help="contrastive: the task that is kept.")] = None,
    forget: Annotated[
        str | None, typer.Option(help="contrastive: the task that is forgotten.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Question sets: a folder with published files, or hub.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="gates, contrastive: how many fits (10); probe: probes (1).", min=1),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="probe: of its training. Default: 100", min=1)
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="gates, contrastive: of each fit. Default: 500")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="gates, contrastive: examples. Default: 64")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            help="gates, contrastive: pull on gates (strength in study files). Default: 0.1",
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="gates, contrastive: largest gradient norm. Default: 1")
    ] = None,
    measure: MeasureName = None,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(help="Rows of the table.", min=1)] = 10,
    out: Annotated[
        Path, typer.Option("--out", help="The scores; map and values beside it.")
    ] = Path("scores.json"),
    format: Annotated[
        str | None,
        typer.Option(
            help="headlab (default), or mib: a circuit as in MIB. Not gates, contrastive."
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Give every head a score: how much of the task it carries."""
    from headlab.measures import find_measure
    from headlab.ranking import LEARNED, require_method
    from headlab.screening import CHECKED, masks_run, require_slopes
    from headlab.tasks import find_task

    fits = {"updates": updates, "batch": batch, "strength": strength, "clip": clip}
    silent = quiet or as_json
    learned = method in LEARNED
    if not learned:
        require_method(method)
    _require_heeded(
        method,
        {
            "TASK": task,
            "--direction": direction,
            "--steps": steps,
            "--exact": exact,
            "--reference": reference,
            "--split": split,
            "--keep": keep,
            "--forget": forget,
            "--seeds": seeds,
            "--updates": updates,
            "--batch": batch,
            "--lambda": strength,
            "--clip": clip,
            "--epochs": epochs,
            "--measure": measure,
            "--format": format,
        },
    )
    direction, steps = direction or "noising", 1 if steps is None else steps
    seeds = seeds or (1 if method == "probe" else 10)
    if not learned:
        require_method(method, direction, steps, exact=exact)
    _require_reference(method, reference)
    if format not in (None, "headlab", "mib"):
        raise HeadlabError(f"the format is headlab or mib, not {format!r}")
    if n is not None and n < 1:
        raise HeadlabError(f"at least one example is needed, not {n}")
    require_folder(out.parent)
    if out.is_dir():
        raise HeadlabError(f"{out} is a folder; give a file, e.g. {out / 'scores.json'}")
    if out.exists() and not out.is_file():
        raise HeadlabError(f"{out} is not a file; give another name")
    if method == "probe":
        from headlab.cli.probe import rank_probe

        rank_probe(*(model, loading, task, data, n, seed, seeds, epochs, out, top, as_json, silent))
        return
    if method == "contrastive":
        from headlab.cli.contrast import rank_contrast

        rank_contrast(
            *(model, loading, keep, forget, data, n, seed, seeds, fits, reference, out, top),
            *(as_json, silent),
        )
        return
    if task is None:
        raise HeadlabError("name a task (headlab tasks) or a JSONL file after the model")
    if measure is not None:
        known = find_measure(measure)
        if exact is not None:
            require_slopes(known)
    found = find_task(task)
    if isinstance(found, Path):
        from headlab.tasks.jsonl import read_examples

        read_examples(found)  # wrong lines are named before a model is loaded
    loaded = load_model(model, loading, silent)
    from headlab.figures import save_head_map
    from headlab.ranking import measure_for
    from headlab.ranking import rank as run
    from headlab.scores import write_scores
    from headlab.tasks import make_examples

    if method == "gates" and split is None and not isinstance(found, Path):
        split = "rank"  # what is left tests them
    examples = make_examples(loaded, task, n, seed, split, data=data)  # type: ignore[arg-type]
    if method == "gates":
        from headlab.cli.gates import rank_gates

        drawn = {"n": len(examples), "seed": seed, "split": split, "data": data}
        rank_gates(
            *(loaded, examples, task, seeds, fits, reference, drawn, out, top, as_json, silent)
        )
        return
    chosen = measure_for(task, examples, measure)
    stand_in: Any = reference
    if reference == "mean":
        from headlab.gates import mean_reference

        stand_in = mean_reference(loaded, [example.prompt for example in examples])
    heads = loaded.n_layers * loaded.n_heads
    masks = {"attribute": steps, "random": 0}.get(method, masks_run(heads, exact))
    some = "" if exact is None or masks == heads else f"{exact + CHECKED} of "
    with progress(f"ranking {some}{heads} heads", len(examples) * masks, silent) as advance:
        scores = run(
            loaded,
            examples,
            method,
            chosen,
            reference=stand_in,
            direction=direction,  # type: ignore[arg-type]
            steps=steps,
            exact=exact,
            seed=seed,
            task=task,
            progress=advance,
        )
    drawn = {"n": len(examples), "seed": seed, "split": split, "data": data}  # to make them again
    scores = replace(scores, settings={**scores.settings, **drawn})
    remove_old(out, method)
    write_scores(scores, out, mib=format == "mib")
    save_head_map(scores, out.parent, out.stem)
    if as_json:
        print_json(scores.as_dict())
        return
    if not quiet:
        print_scores(scores, top)
    print(out.resolve())


_FITS = ("gates", "contrastive")
_EXACT = ("ablate", "patch", "attribute", "random")
_HEEDED_BY = {  # options that not all methods take
    "TASK": (*_EXACT, "gates", "probe"),
    "--direction": ("patch", "attribute"),
    "--steps": ("attribute",),
    "--exact": ("ablate", "patch"),
    "--reference": ("ablate", "patch", "attribute", *_FITS),
    "--split": (*_EXACT, "gates"),
    "--keep": ("contrastive",),
    "--forget": ("contrastive",),
    "--seeds": (*_FITS, "probe"),
    "--epochs": ("probe",),
    **dict.fromkeys(("--updates", "--batch", "--lambda", "--clip"), _FITS),
    **dict.fromkeys(("--measure", "--format"), _EXACT),
}


def _require_heeded(method: str, options: dict[str, Any]) -> None:
    """Refuse options that a method would not heed."""
    for name, value in options.items():
        methods = _HEEDED_BY[name]
        if value is not None and method not in methods:
            listed = " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))
            raise HeadlabError(f"--method {method} takes no {name}, which is for {listed}")


def _require_reference(method: str, reference: str | None) -> None:
    if reference not in (None, "zero", "mean", "counterfactual"):
        raise HeadlabError(f"--reference is zero, mean or counterfactual, not {reference!r}")
    if method in _FITS and reference == "counterfactual":
        raise HeadlabError("gates close to zero or to a mean, not to 'counterfactual'")
    if method == "patch" and reference in ("zero", "mean"):
        raise HeadlabError(
            f"--method patch takes the counterfactual; --reference {reference} is for ablate, "
            "attribute and gates"
        )
