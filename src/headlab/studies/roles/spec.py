"""What the roles study asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from headlab.studies.cells import Cell
from headlab.studies.spec import MIN_ORDERS, Bos, Folder, Models, Spec, Tasks, names
from headlab.tasks import takes_data

SETS = ["syntax", "commonsense", "math"]


class RolesSpec(Spec):
    """Models x tasks; in each cell, gates of all seeds are fitted together."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            "seeds": [0, 1],
            "updates": 6,
            "batch": 4,
            "n": 3,
            "ks": [0, 2, 5, 20],
            "random_orders": 2,
            "models": ["smollm2"],
        },
        "small": {
            "seeds": list(range(5)),
            "updates": 200,
            "batch": 32,
            "n": 64,
            "ks": list(range(51)),
            "random_orders": MIN_ORDERS,
            "models": ["smollm2"],
        },
        "paper": {
            "seeds": list(range(10)),
            "updates": 500,
            "batch": 64,
            "n": 200,
            "ks": list(range(51)),
            "random_orders": MIN_ORDERS,
            "models": ["llama-3.2-1b", "llama-3.2-3b", "llama-3.2-3b-instruct", "llama-3.1-8b"],
        },
    }

    study: Literal["roles"]
    bos: Bos = "no"  # the paper's prompts have none
    models: Models
    tasks: Tasks = SETS
    data: Folder = None
    train: int | None = Field(default=None, ge=2, le=1_000_000)
    n: int = Field(ge=2, le=100_000)
    updates: int = Field(ge=1, le=100_000)
    batch: int = Field(ge=1, le=10_000)
    strength: float = Field(default=0.1, gt=0, le=100, validation_alias=names("strength"))
    clip: float = Field(default=1.0, gt=0, le=1000)
    free_rates: tuple[float, float] = (0.1, 0.01)
    rates: tuple[float, float] = (0.5, 0.1)
    reference: Literal["zero", "mean"] = "zero"
    base: Literal["plus", "ones", "raw"] = "plus"
    aggregated: bool = False
    ks: list[Annotated[int, Field(ge=0, le=100_000)]] = Field(min_length=1, max_length=2000)
    random_orders: int = Field(ge=1, le=1000)

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"tasks": SETS, **super().filled(given)}

    @model_validator(mode="after")
    def _fits(self) -> RolesSpec:
        if min(*self.free_rates, *self.rates) <= 0:
            raise ValueError("learning rates are above 0")
        if self.data is not None and not any(map(takes_data, self.tasks)):
            raise ValueError(f"data is for question sets: {', '.join(SETS)}, word tasks")
        return self

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "seeds": self.seeds}

    def cells(self) -> list[Cell]:
        return [
            Cell("roles", model, task, "gates", self.seeds[0], self.settings())
            for model in self.models
            for task in self.tasks
        ]
