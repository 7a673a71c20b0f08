"""headlab rank --method probe"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from headlab.cli.app import err, out
from headlab.cli.beside import remove_old
from headlab.cli.options import load_model, progress
from headlab.cli.printing import new_table, print_json, print_table
from headlab.errors import HeadlabError
from headlab.wording import count

if TYPE_CHECKING:
    from headlab.probing import Probed

_NEW = 128  # tokens of an answer, at most


def rank_probe(
    model: str,
    loading: dict[str, Any],
    task: str | None,
    data: str | None,
    n: int | None,
    seed: int,
    probes: int,
    epochs: int | None,
    path: Path,
    top: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Answer the questions, train probes on what the heads gave, and score heads for functions."""
    from headlab.tasks.cogqa import FUNCTIONS, load, pick

    asked = _functions(task)
    found = load(data)
    items = {
        "train": pick(found.train, list(FUNCTIONS), n, seed),
        "test": pick(found.test, list(FUNCTIONS), n, seed),
    }
    classes = [name for name in FUNCTIONS if any(i.function == name for i in items["train"])]
    asked = [name for name in asked if name in classes or len(asked) == 1]
    _require(asked, classes, [item.function for item in items["test"]])
    from headlab.probing import Training

    training = Training(**({} if epochs is None else {"epochs": epochs}))
    loaded = load_model(model, loading, quiet)
    from headlab.probing.figures import save_maps
    from headlab.probing.files import pooled_answers
    from headlab.scores import write_scores

    texts = sum(map(len, items.values()))
    with progress(f"answering {count(texts, 'question')}", texts * (_NEW + 1), quiet) as advance:
        pooled = {
            split: pooled_answers(
                loaded, own, path.with_name(f"{path.stem}-pooled-{split}"), _NEW, advance
            )
            for split, own in items.items()
        }
    from headlab.probing import fit_probe

    tested = [item.function in classes for item in items["test"]]
    with progress("training the probe", 2 * probes * training.epochs, quiet) as advance:
        probed = fit_probe(
            (pooled["train"].z, [item.function for item in items["train"]]),
            (
                pooled["test"].z[tested],
                [i.function for i in items["test"] if i.function in classes],
            ),
            classes,
            training,
            seeds=range(seed, seed + probes),
            device=loaded.device,
            progress=advance,
        )
    drawn = {"n": n, "seed": seed, "data": data, "probes": probes, "epochs": training.epochs}
    for name in asked:
        own = path if len(asked) == 1 else path.with_name(f"{path.stem}-{name}.json")
        remove_old(own, "probe")
        write_scores(probed.scores(loaded, name, items["train"], drawn), own)
    save_maps(probed, loaded.name, asked, path.parent, f"{path.stem}-probe")
    if as_json:
        print_json({"model": loaded.name, **probed.summary(), "functions": _summary(probed, asked)})
        return
    if not quiet:
        for reason, rows in found.left_out.items():
            err.print(f"left out: {rows} {reason}", highlight=False)
        unread = 1 - float(pooled["train"].in_json.double().mean())
        if unread > 0:
            told = f"{100 * unread:.0f} % of the training answers are no JSON; all of their tokens"
            err.print(f"{told} were pooled", highlight=False)
        _print(probed, loaded.name, asked, top)
    print(path.with_name(f"{path.stem}-probe.png").resolve())


def _functions(task: str | None) -> list[str]:
    """The functions that are asked for: of cogqa all, of cogqa-retrieval that one."""
    from headlab.tasks import find_task
    from headlab.tasks.cogqa import FUNCTIONS

    if task == "cogqa":
        return list(FUNCTIONS)
    name = (task or "").removeprefix("cogqa-")
    if task is not None:
        find_task(task)  # says which is nearest
    if task is None or name == task or name not in FUNCTIONS:
        raise HeadlabError(
            "a probe tells cognitive functions apart; name cogqa, or one of cogqa-retrieval, "
            "cogqa-math-calculation ... (headlab tasks)"
        )
    return [name]


def _require(asked: list[str], classes: list[str], tested: list[str]) -> None:
    """A probe can be trained and tested; said before anything is answered."""
    if missing := [name for name in asked if name not in classes]:
        raise HeadlabError(f"no question of {missing[0]} is there to train a probe on")
    if len(classes) < 2:
        raise HeadlabError(
            f"a probe tells functions apart; all questions to train it on are of {classes[0]}"
        )
    if not set(tested) & set(classes):
        raise HeadlabError("no question is there to test the probe on")


def _summary(probed: Probed, asked: list[str]) -> dict[str, Any]:
    return {
        name: {
            "elbow": probed.elbow(name),
            "recall": probed.recalls.get(name),
            "n": probed.each[name].shape[-1],
            "heads": [str(head) for head in probed.top(name, 10)],
        }
        for name in asked
    }


def _print(probed: Probed, model: str, asked: list[str], top: int) -> None:
    from headlab.tasks.cogqa import FUNCTIONS

    told = (
        f"{model}: a probe names the function of {100 * probed.accuracy:.0f} % of "
        f"{probed.n_test} answers it has not seen; always the most frequent one: "
        f"{100 * probed.majority:.0f} %, trained on shuffled labels: {100 * probed.shuffled:.0f} %"
    )
    out.print(escape(told), highlight=False, soft_wrap=True)
    table = new_table("function", "answers", "recall", "elbow", "heads")
    for name in asked:
        recall = probed.recalls.get(name)
        table.add_row(
            FUNCTIONS[name],
            str(probed.each[name].shape[-1]),
            "-" if recall is None else f"{100 * recall:.0f} %",
            str(probed.elbow(name)),
            " ".join(str(head) for head in probed.top(name, min(top, 6))),
        )
    print_table(table)
