"""headlab rank --method gates"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from headlab.cli.app import err, out
from headlab.cli.beside import remove_old
from headlab.cli.options import progress
from headlab.cli.printing import new_table, print_json, print_table
from headlab.errors import HeadlabError
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.examples import Example
    from headlab.gatefits import Roles, State
    from headlab.model import Model


def rank_gates(
    model: Model,
    examples: list[Example],
    task: str,
    seeds: int,
    schedule: dict[str, Any],
    reference: str | None,
    drawn: dict[str, Any],
    path: Path,
    top: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit gates, name every head's role, and leave all of it beside `path`. `drawn` is how the
    examples were."""
    from headlab.gatefits import Roles, Schedule, fit_gates
    from headlab.gatefits.figures import save_fit_figures
    from headlab.gatefits.files import write_fit, write_state
    from headlab.gates import ZERO, mean_reference
    from headlab.scores import write_scores
    from headlab.studies.provenance import fingerprint

    chosen = Schedule(**{name: value for name, value in schedule.items() if value is not None})
    stand_in = ZERO
    if reference == "mean":
        stand_in = mean_reference(model, [example.prompt for example in examples])
    kept = path.with_name(f"{path.stem}-fit.part.safetensors")
    key = {
        "model": model.name,
        "fingerprint": fingerprint(model),
        "bos": model.bos,
        "task": task,
        "examples": [example.fingerprint for example in examples],
        "seeds": seeds,
        "reference": stand_in.kind,
        **vars(chosen),
    }
    state = unfinished(kept, key, model)
    if state is not None and not quiet:
        done = state.stage * chosen.updates + state.step
        err.print(
            f"going on after {done} of {count(2 * chosen.updates, 'update')}", highlight=False
        )
    total = 3 * seeds * chosen.updates
    told = f"fitting gates of {count(seeds, 'seed')}"
    with kept_on_interrupt(kept), progress(told, total, quiet) as advance:
        if state is not None:
            advance(seeds * (state.step * (1 + state.stage) + state.stage * chosen.updates))
        fit = fit_gates(
            model,
            examples,
            range(seeds),
            chosen,
            reference=stand_in,
            task=task,
            state=state,
            on_state=lambda now: write_state(now, kept, key),
            progress=advance,
        )
    roles = Roles(fit)
    remove_old(path, "gates")
    write_fit(fit, path.with_name(f"{path.stem}-gates"))
    scores = roles.as_head_scores("F")
    write_scores(replace(scores, settings={**scores.settings, **drawn}), path)
    save_fit_figures(roles, path.parent, path.stem)
    kept.unlink(missing_ok=True)
    if as_json:
        print_json(_summary(roles))
        return
    if not quiet:
        _print_roles(roles, top)
        warn_of_few(chosen.updates)
    print(path.resolve())


def warn_of_few(updates: int) -> None:
    from headlab.gatefits import few_updates

    for sentence in few_updates(updates):
        err.print(sentence, highlight=False, soft_wrap=True, style="yellow")


def unfinished(kept: Path, key: dict[str, Any], model: Model) -> State | None:
    """The fit that was interrupted here; another's is not overwritten."""
    from headlab.gatefits.files import read_state

    state = read_state(kept, key, model.device)
    if state is None and kept.exists():
        raise HeadlabError(
            f"{kept} is an unfinished fit with other settings; give --out another name"
        )
    return state


@contextmanager
def kept_on_interrupt(kept: Path) -> Iterator[None]:
    """Say after Ctrl-C that a fit can go on."""
    try:
        yield
    except KeyboardInterrupt:
        if not kept.exists():
            raise
        err.print("interrupted; the fit is kept, and the same command goes on with it")
        raise typer.Exit(130) from None


def _summary(roles: Roles) -> dict[str, Any]:
    from headlab.gatefits import ROLES
    from headlab.heads import Head

    role, agree = roles.agreement()
    layers, heads = roles.shape
    return {
        "model": roles.fit.model,
        "task": roles.fit.task,
        "seeds": roles.fit.seeds,
        "shares": roles.shares(),
        "heads": {
            str(Head(layer, head)): {
                **{name: float(s[:, layer, head].mean()) for name, s in roles.scores.items()},
                "role": ROLES[int(role[layer, head])],
                "agree": int(agree[layer, head]),
            }
            for layer in range(layers)
            for head in range(heads)
        },
    }


_SCORE = {"facilitating": "F", "interfering": "N", "mixed": "F"}  # the role's own


def _print_roles(roles: Roles, top: int) -> None:
    from headlab.gatefits import ROLES

    found = _summary(roles)
    seeds = len(roles.fit.seeds)
    out.print(
        escape(f"{roles.fit.model}, {roles.fit.task}: gates of {count(seeds, 'seed')}"),
        highlight=False,
    )
    table = new_table("role", "mean share", "in every seed", "in any seed")
    for name in ROLES:
        share = found["shares"][name]
        table.add_row(name, *(f"{100 * share[key]:.1f} %" for key in ("mean", "always", "any")))
    print_table(table)
    out.print("(a mixed head facilitates and interferes; it counts in all three)", style="dim")
    for role in ("facilitating", "interfering", "mixed"):
        own = [(name, each) for name, each in found["heads"].items() if each["role"] == role]
        own.sort(key=lambda head: (-head[1]["agree"], -head[1][_SCORE[role]]))
        if own:
            listed = ", ".join(f"{name} ({each['agree']})" for name, each in own[:top])
            more = f" and {len(own) - top} more" if len(own) > top else ""
            said = f"{role} (seeds that agree): {listed}{more}"
            out.print(said, highlight=False, soft_wrap=True)
