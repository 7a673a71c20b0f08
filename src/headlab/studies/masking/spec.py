"""What the masking study asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic import BeforeValidator as Before

from headlab.studies.cells import Cell
from headlab.studies.spec import (
    MIN_ORDERS,
    Bos,
    Folder,
    Models,
    Spec,
    as_list,
    each_once,
    is_stored,
    nearest,
    said,
)

Function = Literal[
    "retrieval",
    "knowledge-recall",
    "semantic-understanding",
    "syntactic-understanding",
    "math-calculation",
    "inference",
    "logical-reasoning",
    "decision-making",
]
Ranking = Literal["probe", "gates", "ablate", "attribute"]
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8)  # of all heads: 16, 32, 64, 128 of the paper's 1,024
PANELS: list[Function] = [
    "retrieval",
    "knowledge-recall",
    "math-calculation",
    "inference",
]  # the paper's


def _ks(value: Any) -> Any:
    """shares, or numbers of heads, elbow among them."""
    if value == "shares":
        return value
    given = as_list(value)
    if not isinstance(given, list) or not given:
        raise ValueError(f"numbers of heads, elbow, or shares alone, not {value!r}")
    return each_once([_k(each) for each in given])


def _k(value: Any) -> Any:
    if value == "elbow":
        return value
    whole = isinstance(value, (int, str)) and not isinstance(value, bool)
    try:
        k = int(value) if whole else 0
    except ValueError:
        k = 0
    if not 1 <= k <= 1_000_000:
        close = nearest(str(value), ["elbow", "shares"])
        raise ValueError(f"a number of heads from 1, elbow, or shares alone, not {value!r}{close}")
    return k


class MaskingSpec(Spec):
    """Models x rankings; in each cell, the heads of every function, masked on its questions."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            "functions": ["retrieval", "math-calculation"],
            "ks": [8, 34],
            "train": 4,
            "n": 3,
            "draws": 2,
            "epochs": 20,
            "updates": 10,
            "max_new_tokens": 24,
            "models": ["smollm2"],
        },
        "small": {
            "train": 40,
            "n": 20,
            "draws": 5,
            "epochs": 100,
            "updates": 100,
            "max_new_tokens": 64,
            "models": ["smollm2"],
        },
        "paper": {
            "draws": MIN_ORDERS,
            "epochs": 100,
            "updates": 500,
            "max_new_tokens": 128,
            "models": ["llama-3.1-8b-instruct"],
        },
    }

    study: Literal["masking"]
    models: Models
    tasks: list[Literal["cogqa"]] = Field(default=["cogqa"])  # type: ignore[assignment]
    bos: Bos = "auto"
    functions: Annotated[
        list[Function], Before(as_list), AfterValidator(each_once), Field(min_length=1)
    ] = Field(default=PANELS)
    rank_by: Annotated[
        list[Ranking], Before(as_list), AfterValidator(each_once), Field(min_length=1)
    ] = Field(default=["probe"])
    data: Folder = None
    train: int | None = Field(default=None, ge=2, le=1_000_000)
    n: int | None = Field(default=None, ge=2, le=1_000_000)
    ks: Annotated[Literal["shares"] | list[int | Literal["elbow"]], Before(_ks)] = "shares"
    draws: int = Field(ge=2, le=1000)
    positions: Literal["generated", "all"] = "generated"
    scale: float = Field(default=1e-4, ge=0, lt=1)
    boost: float | None = Field(default=None, gt=0, le=1000)
    cross: bool = True
    max_new_tokens: int = Field(ge=1, le=10_000)
    epochs: int = Field(ge=1, le=100_000)
    updates: int = Field(ge=1, le=100_000)

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> MaskingSpec:
        if self.data == "hub":
            raise ValueError("cogqa is on no hub; data is a folder with train.json and test.json")
        if self.data is not None and not is_stored(info):
            from headlab.tasks.cogqa import load

            said(lambda: load(self.data))  # what cannot be read is said before anything runs
        return self

    def cells(self) -> list[Cell]:
        return [
            Cell("masking", model, "cogqa", ranking, seed, self.settings())
            for model in self.models
            for ranking in self.rank_by
            for seed in self.seeds
        ]

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if key != "rank_by"}
