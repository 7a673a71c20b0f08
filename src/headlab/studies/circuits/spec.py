"""What the circuits study asks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic import BeforeValidator as Before

from headlab.studies.cells import Cell
from headlab.studies.spec import MIN_ORDERS, Models, Name, Spec, as_list, as_model, each_once, said

TASKS_OF_THE_PAPER = ["ioi", "ioi-long", "greater-than", "docstring"]
Method = Literal["patch", "attribute", "ablate", "random"]


def _split(value: Any) -> Any:
    """A:B is a pair."""
    pair = value.split(":") if isinstance(value, str) else value
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ValueError(f"a pair is two models, written 'dense:sparse' in quotes, not {value!r}")
    return pair


def _measure(name: str | None) -> str | None:
    if name is not None:
        from headlab.measures import find_measure

        said(lambda: find_measure(name))
    return name


Paired = Annotated[
    list[Annotated[Name, AfterValidator(as_model)]],
    Before(_split),
]


class CircuitsSpec(Spec):
    """Models x tasks x methods x seeds; heads ranked on n prompts, the order tested on n others."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {"n": 16, "orders": 5, "models": ["smollm2"]},
        "small": {"n": 200, "orders": MIN_ORDERS, "models": ["smollm2"]},
        "paper": {"n": 500, "orders": MIN_ORDERS, "models": ["gpt2", "olmo-7b"]},
    }

    study: Literal["circuits"]
    models: Models
    methods: Annotated[list[Method], Before(as_list), AfterValidator(each_once)] = Field(
        default=["patch"], min_length=1
    )
    pairs: Annotated[list[Paired], Before(as_list)] = Field(default=[], max_length=100)
    n: int = Field(ge=2, le=100_000)
    orders: int = Field(ge=1, le=1000)
    threshold: float = Field(default=0.9, gt=0, le=1)
    reference: Literal["counterfactual", "mean", "zero"] = "counterfactual"
    per_prompt: bool = False
    measure: Annotated[str | None, AfterValidator(_measure)] = None
    steps: int = Field(default=1, ge=1, le=1000)

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The size's settings where none are given; without models, those of the pairs."""
        full = {"tasks": TASKS_OF_THE_PAPER, **super().filled(given)}
        pairs = as_list(given.get("pairs"))
        if isinstance(pairs, list) and pairs and not given.get("models"):
            with contextlib.suppress(ValueError):  # said again, with its line, when it is checked
                named = [name for pair in pairs for name in _split(pair)]
                full["models"] = list(dict.fromkeys(map(str, named)))
        return full

    @model_validator(mode="after")
    def _fits(self) -> CircuitsSpec:
        paired = dict.fromkeys([*self.models, *(name for pair in self.pairs for name in pair)])
        object.__setattr__(self, "models", list(paired))  # the models of pairs are models too
        if self.steps > 1 and "attribute" not in self.methods:
            raise ValueError("steps are of attribute, which is not among the methods")
        for task in self.tasks:
            self._require_examples(task)
        for dense, sparse in self.pairs:
            if dense == sparse:
                raise ValueError(f"a pair is of two models, and {dense} is there twice")
        return self

    def _require_examples(self, task: str) -> None:
        """What can be said of a file without a tokenizer."""
        from headlab.examples import name_examples
        from headlab.tasks import takes_data
        from headlab.tasks.jsonl import read_examples

        paired = self.reference == "counterfactual" or "patch" in self.methods
        if not Path(task).is_file():
            if paired and Path(task).suffix != ".jsonl" and takes_data(task):
                raise ValueError(
                    f"{task} has no counterfactuals; take other methods than patch and another "
                    "reference"
                )
            return
        examples = said(lambda: name_examples(read_examples(task)))
        if len(examples) < 4:
            raise ValueError(
                f"{task} has too few examples, {len(examples)}: some rank the heads, others test "
                "the order, and either needs two"
            )
        bare = [each.name for each in examples if each.counterfactual is None]
        if paired and bare:
            raise ValueError(
                f"{bare[0]} of {task} has no counterfactual; take other methods than patch and "
                "another reference, or add one"
            )

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        for other in ("methods", "pairs"):  # which cells there are, not what is in them
            del settings[other]
        return settings

    def cells(self) -> list[Cell]:
        return [
            Cell("circuits", model, task, method, seed, self._settings_of(method))
            for model in self.models
            for task in self.tasks
            for method in self.methods
            for seed in self.seeds
        ]

    def _settings_of(self, method: str) -> dict[str, Any]:
        settings = self.settings()
        return settings if method == "attribute" else {**settings, "steps": 1}
