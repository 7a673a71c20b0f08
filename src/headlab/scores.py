"""A score for every head, with its interval: what a ranking gives and a head map shows."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from headlab.errors import HeadlabError
from headlab.files import as_json, write_whole
from headlab.heads import Head
from headlab.stats import expected_by_chance, leaves_out_zero, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIB_HEAD = re.compile(r"a\d+\.h\d+")


@dataclass(frozen=True)
class HeadScores:
    """How much of a measure each head carries, on each example.

    Where heads are taken away, a score is the measure with all heads minus the measure without
    the head: a head that helps has a positive score. Of a distance (kl), of which less is better,
    it is the other way round.
    """

    model: str
    task: str
    method: str
    measure: str
    reference: str
    examples: list[str]  # their ids
    values: Tensor  # [layer, head, example]
    clean: Tensor  # [example], the measure with all heads
    noise_floor: float | None = None  # a smaller mean says nothing; None where not measured
    scale: float = 0.0  # the gate of the head that is taken away
    is_distance: bool = False  # the measure is one: scores cannot be negative
    settings: dict[str, Any] = field(default_factory=dict)  # what else it takes to do it again
    fingerprints: list[str] = field(default_factory=list)  # of the examples; [] where unknown
    estimated: list[str] = field(default_factory=list)  # heads not run: slopes estimate their score
    checked: dict[str, float] = field(default_factory=dict)  # run by lot: what slopes had estimated

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @cached_property
    def score(self) -> Tensor:
        """[layer, head], the mean over examples."""
        return self.values.double().mean(-1)

    @cached_property
    def interval(self) -> tuple[Tensor, Tensor]:
        """95 % interval of each mean, [layer, head] twice; NaN for one example."""
        return mean_interval(self.values)

    @property
    def in_noise(self) -> Tensor:
        """[layer, head], True where the score is no larger than the run's own rounding."""
        return self.score.abs() <= (self.noise_floor or 0.0)

    @cached_property
    def is_estimated(self) -> Tensor:
        """[layer, head], True where the head was not run."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        for name in self.estimated:
            found[Head.parse(name)] = True
        return found

    @property
    def leaves_out_zero(self) -> Tensor:
        """[layer, head], True where the interval leaves out 0 and the score is above the noise.
        A distance is above 0 anyway: there only the noise counts. An estimate says neither."""
        if self.is_distance:
            return ~self.in_noise
        return leaves_out_zero(self.values) & ~self.in_noise & ~self.is_estimated

    @property
    def base(self) -> str:
        """Which run `clean` is of: putting heads back starts from the counterfactual."""
        back = self.method == "patch" and self.settings.get("direction") == "denoising"
        return "on the counterfactual" if back else "with all heads"

    @property
    def shows_change(self) -> bool:
        """Heads were switched off: a reader wants to see how the measure changes without them."""
        return self.method == "ablate"

    @property
    def shown(self) -> Tensor:
        """[layer, head], how the measure changes where heads were switched off, else the score."""
        return -self.score if self.shows_change and not self.is_distance else self.score

    @property
    def shown_interval(self) -> tuple[Tensor, Tensor]:
        low, high = self.interval
        return (-high, -low) if self.shows_change and not self.is_distance else (low, high)

    @cached_property
    def n_by_chance(self) -> float:
        """How many intervals would leave out 0 if no head did anything, signs drawn by lot."""
        return expected_by_chance(self.values[~self.is_estimated])

    def order(self, by_size: bool = False) -> list[Head]:
        """The heads from the largest score down; `by_size` without regard to the sign."""
        score = self.score.abs() if by_size else self.score
        ranks = score.flatten().argsort(descending=True, stable=True).tolist()
        return [Head(*divmod(number, self.shape[1])) for number in ranks]

    @property
    def heads(self) -> list[Head]:
        """All of them, layer by layer."""
        layers, heads = self.shape
        return [Head(layer, head) for layer in range(layers) for head in range(heads)]

    def table(self) -> pd.DataFrame:
        """A row a head and example: head, layer, number, example, score."""
        n = self.values.shape[-1]
        names = self.examples if len(self.examples) == n else [str(i) for i in range(n)]
        heads = [head for head in self.heads for _ in range(n)]
        return pd.DataFrame(
            {
                "head": [str(head) for head in heads],
                "layer": [head.layer for head in heads],
                "number": [head.head for head in heads],
                "example": names * len(self.heads),
                "score": self.values.double().reshape(-1).tolist(),
            }
        )

    def plot(self) -> Figure:
        """The head map."""
        from headlab.figures import plot_scores

        return plot_scores(self)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Per-example values are not in it."""
        low, high = self.interval
        heads = {
            str(head): {
                "score": float(self.score[head]),
                "low": float(low[head]),
                "high": float(high[head]),
            }
            for head in self.heads
        }
        return {
            "model": self.model,
            "task": self.task,
            "method": self.method,
            "measure": self.measure,
            "reference": self.reference,
            "scale": self.scale,
            "is_distance": self.is_distance,
            "settings": self.settings,
            "examples": self.examples,
            "fingerprints": self.fingerprints,
            "clean": float(torch.mean(self.clean.double())),
            "noise_floor": self.noise_floor,
            "estimated": self.estimated,
            "checked": self.checked,
            "heads": heads,
        }


# --- files ---


def write_scores(scores: HeadScores, path: str | Path, mib: bool = False) -> None:
    """scores.json, and beside it scores.parquet with a row a head and example.

    With `mib` the JSON is a circuit in the form of the MIB benchmark: `nodes: {"a5.h1": {"score",
    "in_graph"}}`, in the graph being the heads whose score is above 0 and above the noise.
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    record = _as_mib(scores) if mib else scores.as_dict()
    table = io.BytesIO()
    scores.table().to_parquet(table, index=False)
    write_whole(path.with_suffix(".parquet"), table.getvalue())
    write_whole(path, as_json(record) + "\n")


def read_scores(path: str | Path) -> HeadScores:
    """Scores as `write_scores` leaves them, or any circuit in MIB's form.

    Without the Parquet file beside it each head has its mean alone.
    """
    path = Path(path).expanduser()
    try:
        record = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}; headlab rank --out {path} makes one") from None
    except IsADirectoryError:
        raise HeadlabError(f"{path} is a folder; give the scores' JSON file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HeadlabError(f"{path} is not a JSON file: {error}") from None
    try:
        return _from_mib(record) if "nodes" in record else _from_record(record, path)
    except KeyError as error:
        raise HeadlabError(f"{path} does not hold scores of heads: no {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise HeadlabError(f"{path} does not hold scores of heads: {error}") from None


def _from_record(record: dict[str, Any], path: Path) -> HeadScores:
    means = {Head.parse(name): _score(name, each) for name, each in record["heads"].items()}
    values = _grid(means)[..., None]
    beside = path.with_suffix(".parquet")
    if beside.is_file():
        table = pd.read_parquet(beside)
        wide = table.pivot(index=["layer", "number"], columns="example", values="score")
        each = torch.tensor(wide[record["examples"]].to_numpy()).view(*values.shape[:2], -1)
        if not torch.allclose(each.mean(-1), values[..., 0], rtol=1e-6, atol=1e-9):
            raise ValueError(f"{beside.name} beside it holds other scores; rank again")
        values = each
    return HeadScores(
        model=str(record["model"]),
        task=str(record["task"]),
        method=str(record["method"]),
        measure=str(record["measure"]),
        reference=str(record["reference"]),
        examples=[str(name) for name in record["examples"]],
        values=values,
        clean=torch.tensor([float("nan" if record["clean"] is None else record["clean"])]),
        noise_floor=record["noise_floor"],
        scale=float(record["scale"]),
        is_distance=bool(record["is_distance"]),
        settings=dict(record["settings"]),
        fingerprints=[str(each) for each in record["fingerprints"]],
        estimated=[str(name) for name in record.get("estimated", ())],
        checked={str(name): float(each) for name, each in record.get("checked", {}).items()},
    )


def _as_mib(scores: HeadScores) -> dict[str, Any]:
    layers, heads = scores.shape
    kept = (scores.score > 0) & ~scores.in_noise & ~scores.is_estimated
    return {
        "cfg": {
            "model": scores.model,
            "n_layers": layers,
            "n_heads": heads,
            "d_model": scores.settings.get("d_model"),
            "parallel_attn_mlp": scores.settings.get("parallel_attn_mlp", False),
            "task": scores.task,
            "measure": scores.measure,
            "reference": scores.reference,
            "fingerprints": scores.fingerprints,
            **({"estimated": scores.estimated} if scores.estimated else {}),
        },
        "edges": {},
        "nodes": {
            f"a{head.layer}.h{head.head}": {
                "score": float(scores.score[head]),
                "in_graph": bool(kept[head]),
            }
            for head in scores.heads
        },
    }


def _from_mib(record: dict[str, Any]) -> HeadScores:
    nodes = {name: node for name, node in record["nodes"].items() if _MIB_HEAD.fullmatch(name)}
    if not nodes:
        raise ValueError("no node is a head, a5.h1")
    means = {Head.parse(name): _score(name, node) for name, node in nodes.items()}
    settings = record.get("cfg") or {}
    model = settings.get("model") or settings.get("model_name") or ""
    return HeadScores(
        model=str(model),
        task=str(settings.get("task") or ""),
        method="mib",
        measure=str(settings.get("measure") or ""),
        reference=str(settings.get("reference") or ""),
        examples=[],
        values=_grid(means)[..., None],
        clean=torch.tensor([torch.nan]),
        fingerprints=list(settings.get("fingerprints") or []),
        estimated=[str(name) for name in settings.get("estimated") or ()],
    )


def _score(name: str, record: Any) -> float:
    score = record.get("score") if isinstance(record, dict) else None
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        raise ValueError(f"{name} has no score")
    return float(score)


def _grid(means: dict[Head, float]) -> Tensor:
    layers = 1 + max(head.layer for head in means)
    heads = 1 + max(head.head for head in means)
    if len(means) != layers * heads:
        raise ValueError(f"{len(means)} heads are not {layers} layers of {heads}")
    grid = torch.zeros(layers, heads, dtype=torch.float64)
    for head, mean in means.items():
        grid[head] = mean
    return grid
