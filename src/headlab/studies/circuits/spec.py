"""What the circuits study asks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic import BeforeValidator as Before

from headlab.studies.cells import Cell
from headlab.studies.circuits.pairs import expand_pairs, families, split_pair
from headlab.studies.spec import MIN_ORDERS, Models, Name, Spec, as_list, as_model, each_once, said

TASKS_OF_THE_PAPER = ["ioi", "ioi-long", "greater-than", "docstring"]
PER_PROMPT = "-per-prompt"  # of a method that ranks for each prompt by itself
Method = Literal[
    "patch",
    "attribute",
    "ablate",
    "random",
    "patch-per-prompt",
    "attribute-per-prompt",
    "ablate-per-prompt",
]


def way_of(method: str) -> str:
    """How a method scores heads, whether for each prompt by itself or not.

    >>> way_of("patch-per-prompt")
    'patch'
    """
    return method.removesuffix(PER_PROMPT)


def _measure(name: str | None) -> str | None:
    if name is not None:
        from headlab.measures import find_measure

        said(lambda: find_measure(name))
    return name


Paired = Annotated[
    list[Annotated[Name, AfterValidator(as_model)]],
    Before(split_pair),
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
    pairs: Annotated[list[Paired], Before(expand_pairs)] = Field(default=[], max_length=100)
    n: int = Field(ge=2, le=100_000)
    orders: int = Field(ge=1, le=1000)
    threshold: float = Field(default=0.9, gt=0, le=1)
    reference: Literal["counterfactual", "mean", "zero"] = "counterfactual"
    per_prompt: bool = False
    measure: Annotated[str | None, AfterValidator(_measure)] = None
    steps: int = Field(default=1, ge=1, le=1000)
    exact: int | None = Field(default=None, ge=1, le=1_000_000)

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The size's settings where none are given; without models, those of the pairs: here the
        dense ones, to which the others come when the pairs are known."""
        full = {"tasks": TASKS_OF_THE_PAPER, **super().filled(given)}
        pairs = as_list(given.get("pairs"))
        if isinstance(pairs, list) and pairs and not given.get("models"):
            with contextlib.suppress(ValueError):  # said again, with its line, when it is checked
                dense = [split_pair(pair)[0] for pair in pairs]
                full["models"] = list(dict.fromkeys(map(str, dense)))
        return full

    @model_validator(mode="after")
    def _fits(self) -> CircuitsSpec:
        paired = [name for family in families(self.pairs) for name in family.models]
        # The models of pairs are models too.
        object.__setattr__(self, "models", list(dict.fromkeys([*self.models, *paired])))
        if self.steps > 1 and "attribute" not in self._ways:
            raise ValueError("steps are of attribute, which is not among the methods")
        if self.exact and not self._ways & {"patch", "ablate"}:
            raise ValueError("exact is of patch and ablate, which are not among the methods")
        if self.exact and (each := [m for m in self.methods if self._is_exact_per_prompt(m)]):
            raise ValueError(
                f"exact picks heads for all prompts together; an order for each ({each[0]}) needs "
                "all heads run"
            )
        if self.exact and self.measure is not None:
            self._require_slopes(self.measure)
        said_twice = [method for method in self.methods if method != way_of(method)]
        if self.per_prompt and said_twice:
            raise ValueError(
                f"{said_twice[0]} is for each prompt by itself, and so is every method with "
                "per_prompt; give one of them"
            )
        for task in self.tasks:
            self._require_examples(task)
        for pair in self.pairs:
            twice = [name for number, name in enumerate(pair) if name in pair[:number]]
            if twice:
                raise ValueError(f"a pair is of different models, and {twice[0]} is there twice")
        return self

    @property
    def _ways(self) -> set[str]:
        return {way_of(method) for method in self.methods}

    def is_per_prompt(self, method: str) -> bool:
        """Whether a method ranks for each prompt by itself, and is tested on it: in-sample."""
        return self.per_prompt or method != way_of(method)

    def _is_exact_per_prompt(self, method: str) -> bool:
        return way_of(method) in ("patch", "ablate") and self.is_per_prompt(method)

    def _require_slopes(self, measure: str) -> None:
        from headlab.errors import HeadlabError
        from headlab.measures import find_measure
        from headlab.screening import require_slopes

        try:
            require_slopes(find_measure(measure))
        except HeadlabError as error:
            raise ValueError(str(error)) from None

    def _require_examples(self, task: str) -> None:
        """What can be said of a file without a tokenizer."""
        from headlab.examples import name_examples
        from headlab.tasks import takes_data
        from headlab.tasks.jsonl import read_examples

        paired = self.reference == "counterfactual" or "patch" in self._ways
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
        settings = {**self.settings(), "per_prompt": self.is_per_prompt(method)}
        way = way_of(method)
        if self.exact is None or way not in ("patch", "ablate"):
            del settings["exact"]  # every head is run, or none
        return settings if way == "attribute" else {**settings, "steps": 1}
