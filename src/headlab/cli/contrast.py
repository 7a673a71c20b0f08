"""headlab rank --method contrastive"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from headlab.cli.app import err, out
from headlab.cli.beside import remove_old
from headlab.cli.gates import kept_on_interrupt, unfinished, warn_of_few
from headlab.cli.options import load_model, progress
from headlab.cli.printing import new_table, print_json, print_table
from headlab.errors import HeadlabError
from headlab.wording import count


def rank_contrast(
    model: str,
    loading: dict[str, Any],
    keep: str | None,
    forget: str | None,
    data: str | None,
    n: int | None,
    seed: int,
    seeds: int,
    schedule: dict[str, Any],
    reference: str | None,
    path: Path,
    top: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit gates that keep one task and forget another; say what is left of both."""
    if keep is None or forget is None:
        raise HeadlabError("contrastive gates need --keep TASK and --forget TASK")
    from headlab.tasks import find_task

    find_task(keep)
    find_task(forget)
    if keep == forget:
        raise HeadlabError(f"{keep} cannot be kept and forgotten at once; name two tasks")
    loaded = load_model(model, loading, quiet)
    import torch

    from headlab.engine import measure
    from headlab.figures import save_head_map
    from headlab.gatefits import Schedule, fit_contrast
    from headlab.gatefits.files import write_contrast, write_state
    from headlab.gates import ZERO, mean_reference
    from headlab.scores import HeadScores, write_scores
    from headlab.stats import share_interval
    from headlab.studies.provenance import fingerprint
    from headlab.tasks import make_examples, takes_data

    def made(task: str, split: Any) -> list[Any]:
        of_sets = data if takes_data(task) else None
        return make_examples(loaded, task, None, seed, split, data=of_sets)

    training = [made(task, "rank")[:n] for task in (keep, forget)]
    tested = [made(task, "curve") for task in (keep, forget)]
    sizes = [len(each) for each in training]
    if sizes[0] != sizes[1]:
        raise HeadlabError(
            f"{keep} has {count(sizes[0], 'example')} to fit on and {forget} {sizes[1]}; the i-th "
            "of one and of the other belong together: give as many of both, in one order"
        )
    chosen = Schedule(**{name: value for name, value in schedule.items() if value is not None})
    prompts = [example.prompt for each in training for example in each[:100]]
    stand_in = mean_reference(loaded, prompts) if reference == "mean" else ZERO
    used = [example.fingerprint for each in training for example in each]
    kept = path.with_name(f"{path.stem}-fit.part.safetensors")
    key = {
        "model": loaded.name,
        "fingerprint": fingerprint(loaded),
        "bos": loaded.bos,
        "examples": used,
        "seeds": seeds,
        "reference": stand_in.kind,
        **vars(chosen),
    }
    state = unfinished(kept, key, loaded)
    if state is not None and not quiet:
        err.print(
            f"going on after {state.step} of {count(chosen.updates, 'update')}", highlight=False
        )
    told = f"fitting gates of {count(seeds, 'seed')}"
    total = seeds * chosen.updates
    with kept_on_interrupt(kept), progress(told, total, quiet) as advance:
        if state is not None:
            advance(seeds * state.step)
        fit = fit_contrast(
            loaded,
            training[0],
            training[1],
            range(seeds),
            chosen,
            reference=stand_in,
            state=state,
            on_state=lambda now: write_state(now, kept, key),
            progress=advance,
        )
    masks = torch.cat([torch.ones_like(fit.gates[:1]), fit.gates])
    rows: list[dict[str, Any]] = []
    for name, task, examples in zip(("kept", "forgotten"), (keep, forget), tested, strict=True):
        right = measure(loaded, examples, masks, "top1-accuracy", stand_in).values
        before = int(right[0].sum())
        after = right[1:].double().mean(1)
        rows.append(
            {
                "what": name,
                "task": task,
                "n": len(examples),
                "before": before / len(examples),
                "interval": share_interval(before, len(examples)),
                "after": float(after.mean()),
                "each seed": after.tolist(),
            }
        )
    scores = HeadScores(
        model=fit.model,
        task=f"{keep} kept, {forget} forgotten",
        method="contrastive",
        measure="log-prob",
        reference=stand_in.kind,
        examples=[f"seed {each}" for each in fit.seeds],
        values=(1 - fit.gates).permute(1, 2, 0),
        clean=torch.full((len(fit.seeds),), torch.nan),
        settings={**fit.settings, "score": "1 - gate"},
        fingerprints=used,
    )
    remove_old(path, "contrastive")
    write_contrast(fit, path.with_name(f"{path.stem}-gates"))
    write_scores(scores, path)
    save_head_map(scores, path.parent, path.stem)
    kept.unlink(missing_ok=True)
    closed = [str(head) for head in scores.order() if float(scores.score[head]) >= 0.5]
    if as_json:
        print_json({"model": fit.model, "accuracy": rows, "closed": closed})
        return
    if not quiet:
        table = new_table("", "task", "prompts", "right before", "right after", "seeds")
        for row in rows:
            each = row["each seed"]
            table.add_row(
                row["what"],
                escape(row["task"]),
                str(row["n"]),
                f"{100 * row['before']:.0f} %",
                f"{100 * row['after']:.0f} %",
                f"{100 * min(each):.0f} to {100 * max(each):.0f} %",
            )
        print_table(table)
        more = ", ..." if len(closed) > top else ""
        out.print(
            f"{count(len(closed), 'head')} closed (mean gate at most 0.5)"
            f"{': ' if closed else ''}{', '.join(closed[:top])}{more}",
            highlight=False,
            soft_wrap=True,
        )
        warn_of_few(chosen.updates)
    print(path.resolve())
