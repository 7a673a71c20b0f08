"""What the contrastive study asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic import BeforeValidator as Before

from headlab.studies.cells import Cell
from headlab.studies.spec import Bos, Folder, Models, Spec, as_list, each_once, names
from headlab.tasks.word_pairs import FORMATS, INSTRUCTIONS

WordTask = Literal[
    "antonym", "capitalize", "country-capital", "english-french", "present-past", "singular-plural"
]
Format = Literal["icl", "instruction"]


class ContrastiveSpec(Spec):
    """Models x word tasks left out x formats kept; in each cell, gates of all seeds together."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            "seeds": [0, 1],
            "updates": 10,
            "batch": 4,
            "train": 50,
            "n": 8,
            "tasks": ["present-past", "singular-plural"],
            "models": ["smollm2"],
        },
        "small": {
            "seeds": [0, 1, 2],
            "updates": 100,
            "batch": 32,
            "train": 200,
            "n": 50,
            "models": ["smollm2"],
        },
        "paper": {
            "seeds": list(range(5)),
            "updates": 500,
            "batch": 64,
            "train": 500,
            "n": 200,
            "models": ["llama-3.2-3b-instruct"],
        },
    }

    study: Literal["contrastive"]
    bos: Bos = "no"  # the paper's prompts have none
    models: Models
    tasks: Annotated[  # type: ignore[assignment]
        list[WordTask], Before(as_list), AfterValidator(each_once), Field(max_length=6)
    ]
    keep: Annotated[list[Format], Before(as_list), AfterValidator(each_once), Field(min_length=1)]
    data: Folder = None
    train: int = Field(ge=2, le=1_000_000)
    n: int = Field(ge=2, le=100_000)
    updates: int = Field(ge=1, le=100_000)
    batch: int = Field(ge=1, le=10_000)
    strength: float = Field(default=0.1, gt=0, le=100, validation_alias=names("strength"))
    clip: float = Field(default=1.0, gt=0, le=1000)
    rates: tuple[float, float] = (0.1, 0.01)
    reference: Literal["zero", "mean"] = "zero"

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"tasks": list(INSTRUCTIONS), "keep": list(FORMATS), **super().filled(given)}

    @model_validator(mode="after")
    def _fits(self) -> ContrastiveSpec:
        if len(self.tasks) < 2:
            raise ValueError("two tasks at least: one is left out, the gates are fitted on others")
        if min(self.rates) <= 0:
            raise ValueError("learning rates are above 0")
        if self.data == "hub":
            raise ValueError("the word pairs are on no hub; data is a folder of antonym.json ...")
        return self

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "seeds": self.seeds, "tasks": self.tasks}

    def cells(self) -> list[Cell]:
        """One for each model, task left out and format kept."""
        return [
            Cell("contrastive", model, task, f"keep-{keep}", self.seeds[0], self.settings())
            for model in self.models
            for keep in self.keep
            for task in self.tasks
        ]
