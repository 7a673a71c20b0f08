"""What the fillers study asks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic import BeforeValidator as Before

from headlab.studies.cells import Cell
from headlab.studies.spec import (
    Bos,
    Folder,
    Models,
    Spec,
    as_list,
    each_once,
    is_stored,
    said,
)

if TYPE_CHECKING:
    from headlab.fillers import Condition

ProblemName = Literal["math500", "gsm8k", "arithmetic"]
CONTROLLED = ["none", "mless", "mful", "gap", "random"]
MOST_CONDITIONS = 12  # as many colours as eyes can tell apart, and then some


def _conditions(value: Any) -> Any:
    """Names and mappings, each as short as it can be written."""
    from headlab.fillers import parse_conditions

    given = [value] if isinstance(value, Mapping) else as_list(value)
    if not isinstance(given, list):
        raise ValueError(f"names of conditions, or mappings with a name, not {value!r}")
    found = said(lambda: parse_conditions(given))
    if len(found) > MOST_CONDITIONS:
        raise ValueError(f"{MOST_CONDITIONS} conditions at most, not {len(found)}")
    if len(found) < 2:
        raise ValueError("two conditions at least: there is nothing to compare")
    return [condition.as_written() for condition in found]


def _head(name: str) -> str:
    if not re.fullmatch(r"L\d{1,4}(H\d{1,4})?", name):
        raise ValueError(f"a head is L0H13, all heads of a layer are L0, not {name!r}")
    return name


def _temperature(value: Any) -> Any:
    """Above 0, model, or None: greedy, which 0 is, too."""
    if value in (None, "greedy", "model") or (value == 0 and not isinstance(value, bool)):
        return value if value == "model" else None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 100:
        raise ValueError(f"a number above 0, greedy, or model (the model's own), not {value!r}")
    return value


class FillersSpec(Spec):
    """Models x problem sets x seeds; in each cell, every condition on the same problems."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            "tasks": ["arithmetic"],
            "conditions": ["none", "mless", "mful"],
            "n": 6,
            "attention_n": 4,
            "max_new_tokens": 32,
            "models": ["smollm2"],
        },
        "small": {
            "tasks": ["arithmetic"],
            "conditions": CONTROLLED,
            "n": 60,
            "attention_n": 50,
            "max_new_tokens": 256,
            "models": ["smollm2"],
        },
        "paper": {
            "tasks": ["math500"],
            "conditions": CONTROLLED,
            "attention_n": 100,
            "max_new_tokens": 2048,
            "models": ["qwen2.5-math-1.5b", "qwen2.5-math-7b", "llama-3.1-8b-instruct"],
        },
    }

    study: Literal["fillers"]
    models: Models
    tasks: Annotated[  # type: ignore[assignment]
        list[ProblemName], Before(as_list), AfterValidator(each_once), Field(min_length=1)
    ]
    bos: Bos = "auto"
    conditions: Annotated[list[str | dict[str, Any]], Before(_conditions)]
    chat: bool = False
    data: Folder = None
    n: int | None = Field(default=None, ge=2, le=1_000_000)
    max_new_tokens: int = Field(ge=1, le=100_000)
    temperature: Annotated[float | Literal["model"] | None, Before(_temperature)] = None
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Before(as_list)] = (
        Field(default=[])
    )
    heads: Annotated[
        list[Annotated[str, AfterValidator(_head)]],
        Before(as_list),
        AfterValidator(each_once),
        Field(min_length=1, max_length=1000),
    ] = Field(default=["L0"])
    attention_n: int = Field(ge=0, le=100_000)

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found = super().filled(given)
        if found.get("size") == "paper" and "data" not in given and "tasks" not in given:
            found["data"] = "hub"
        return found

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> FillersSpec:
        from headlab.tasks.problems import load_problems, needs_data

        if self.top_p < 1 and self.temperature is None:
            raise ValueError("top_p needs a temperature; without one the likeliest token is taken")
        if self.top_p < 1 and self.temperature == "model":
            raise ValueError("top_p: the model's own settings have theirs; give a temperature")
        for condition in said(self._in_full):
            greedy = not condition.temperature and self.temperature is None
            if condition.top_p is not None and (condition.temperature == 0 or greedy):
                raise ValueError(f"conditions: {condition.name} has a top_p and no temperature")
        if self.data is not None and not any(needs_data(task) for task in self.tasks):
            raise ValueError(f"data: {' and '.join(self.tasks)} is built in and reads no files")
        if self.chat and any(
            isinstance(each, dict) and each.get("template") == "chat" for each in self.conditions
        ):
            raise ValueError("chat adds a chat arm to every condition, and one is chat already")
        if not is_stored(info) and self.data != "hub":
            for task in self.tasks:  # what cannot be read is said before anything runs
                data = self.data if needs_data(task) else None
                said(lambda task=task, data=data: load_problems(task, data, self.n))
        return self

    def cells(self) -> list[Cell]:
        method = "greedy" if self.temperature is None else "sampled"
        return [
            Cell("fillers", model, task, method, seed, self.settings())
            for model in self.models
            for task in self.tasks
            for seed in self.seeds
        ]

    def _in_full(self) -> list[Condition]:
        """All of them, those in a chat template too."""
        from headlab.fillers import parse_conditions

        found = parse_conditions(self.conditions)
        if self.chat:
            found += [replace(each, name=f"{each.name}-chat", template="chat") for each in found]
        return parse_conditions(found)  # no two of one name

    def settings(self) -> dict[str, Any]:
        """Conditions in full: what a name stands for bears on the numbers."""
        found = self._in_full()
        settings = {key: value for key, value in super().settings().items() if key != "chat"}
        return {**settings, "conditions": [condition.as_dict() for condition in found]}
