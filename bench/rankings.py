"""Rankings against each other, and their curves, on a model's tasks: the numbers of docs/results.

    python bench/rankings.py --model smollm2 --tasks ioi,greater-than --n 200 --out results

For each task: exact patching, exact ablation, attribution (plain and integrated), with seconds,
rank correlation and top-10 overlap with exact patching; then the curve of exact patching on as many
other prompts, with random orders. The time of one hooked pass a head, scaled from 32 heads, stands
beside the exact sweep's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from common import timed
from scipy.stats import spearmanr

import headlab
from headlab import Gates, HeadScores, Model
from headlab.curves import NoEffect
from headlab.figures import save, save_head_map
from headlab.files import as_json, write_whole
from headlab.tasks import TASKS

WAYS = {
    "patch": ("patch", {}),
    "attribute": ("attribute", {}),
    "attribute, 5 steps": ("attribute", {"steps": 5}),
    "attribute, 10 steps": ("attribute", {"steps": 10}),
    "ablate": ("ablate", {}),
    "patch, denoising": ("patch", {"direction": "denoising"}),
}


@contextmanager
def hooked_off(model: Model, number: int) -> Iterator[None]:
    """A head off by a plain hook."""
    layer, head = divmod(number, model.n_heads)
    width = model.head_width

    def ablate(_, args):
        z = args[0].clone()
        z[..., head * width : (head + 1) * width] = 0
        return (z, *args[1:])

    handle = model.seam.projections[layer].register_forward_pre_hook(ablate)
    try:
        yield
    finally:
        handle.remove()


def hooked_pass(model: Model, examples: list[headlab.Example], heads: list[int]) -> None:
    """What a user would write: one pass a head over all prompts in one batch, full logits."""
    inputs = model.inputs(model.tokens([example.prompt for example in examples]))
    for number in heads:
        with hooked_off(model, number), torch.no_grad():
            model.hf(**inputs).logits[:, -1].float().cpu()


def race(model: Model, examples: list[headlab.Example], by: str) -> tuple[float, float]:
    """Seconds of the exact sweep and of a hooked pass a head: interleaved, medians of 3."""
    total = model.n_layers * model.n_heads
    heads = list(range(0, total, total // 32))  # the plain way is scaled from these
    gates, device = Gates.each_head(model), model.device.type
    ours, theirs = [], []
    hooked_pass(model, examples, heads[:2])  # warm; ours is warm from the rankings
    for _ in range(3):
        ours.append(timed(lambda: headlab.measure(model, examples, gates, by), device)[0])
        theirs.append(timed(lambda: hooked_pass(model, examples, heads), device)[0])
    return median(ours), median(theirs) * total / len(heads)


def compare(scores: dict[str, HeadScores], times: dict[str, float]) -> list[dict]:
    exact = scores["patch"]
    best = set(exact.order()[:10])
    return [
        {
            "method": name,
            "seconds": times[name],
            "spearman": float(spearmanr(exact.score.flatten(), each.score.flatten()).statistic),
            "top10": len(best & set(each.order()[:10])),
            "noise_floor": each.noise_floor,
            "first": [str(head) for head in each.order()[:10]],
        }
        for name, each in scores.items()
    ]


def study(model: Model, task: str, n: int, folder: Path) -> dict:
    by = TASKS[task].measure
    examples = headlab.make_examples(model, task, n)
    others = headlab.make_examples(model, task, n, without={e.fingerprint for e in examples})
    headlab.measure(model, examples[:4], Gates.each_head(model), by)  # warm
    scores, times = {}, {}
    for name, (method, options) in WAYS.items():
        times[name], scores[name] = timed(
            lambda method=method, options=options: headlab.rank(
                model, examples, method, by, task=task, **options
            ),
            model.device.type,
        )
    sweep, plain = race(model, examples, by)
    record = {
        "task": task,
        "n": n,
        "rankings": compare(scores, times),
        "sweep_seconds": sweep,
        "hooked_seconds": plain,
    }
    save_head_map(scores["patch"], folder, f"{task}-head-map")
    try:
        spent, made = timed(
            lambda: headlab.curve(model, others, scores["patch"], measure_by=by), model.device.type
        )
    except NoEffect as error:
        return {**record, "curve": str(error)}
    save(made.plot(), folder, f"{task}-curve", made.table().to_dict("records"))
    return {**record, "curve": made.as_dict(), "curve_seconds": spent}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2")
    options.add_argument("--tasks", default=",".join(TASKS))
    options.add_argument("--n", type=int, default=200)
    options.add_argument("--out", type=Path, default=Path("results"))
    asked = options.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    model = headlab.load(asked.model)
    for task in asked.tasks.split(","):
        record = study(model, task, asked.n, asked.out)
        write_whole(asked.out / f"{task}.json", as_json(record) + "\n")
        curve = record.pop("curve")
        if isinstance(curve, dict):
            curve = {k: curve[k] for k in ("effect", "crossings", "cpr", "cmd", "beats_random")}
        print(json.dumps({**record, "curve": curve}, indent=1), flush=True)


if __name__ == "__main__":
    main()
