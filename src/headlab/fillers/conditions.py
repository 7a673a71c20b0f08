"""Conditions as data: which tokens are put where, by name or as a study file writes them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from headlab.activations.arm import Arm, parse_arm
from headlab.errors import HeadlabError

Position = Literal["before", "between", "end", "random"]
Template = Literal["raw", "chat"]
Kind = Literal["none", "filler", "gap", "random-tokens"]
PUBLISHED_COUNT = 55
_MOST = 100_000  # tokens that a condition puts in
_ALLOWED = {"position": Position, "template": Template, "kind": Kind}


@dataclass(frozen=True)
class Condition:
    """What is put around a question.

    filler: `count` times one token, that of the text `filler`, or so many of its token ids, over
    and over; random-tokens: `count` ordinary tokens, drawn anew for each prompt; gap: no tokens,
    the question's positions are `count` further on; none: nothing.
    """

    name: str
    filler: str | tuple[int, ...] = ""
    count: int = 0
    position: Position = "between"  # instruction and question; random: each by itself, anywhere
    template: Template = "raw"
    kind: Kind = "filler"
    seed: int = 0  # of random tokens and random positions
    arm: Arm | None = None  # applied to the first MLP while the condition runs
    temperature: float | None = None  # of what is written; 0: greedy; None: as the others
    top_p: float | None = None

    def __post_init__(self) -> None:
        told = f"the condition {self.name!r}"
        if not isinstance(self.name, str) or not self.name or "," in self.name:
            raise HeadlabError(f"a condition has a name without commas, not {self.name!r}")
        for field, allowed in _ALLOWED.items():
            if getattr(self, field) not in get_args(allowed):
                known = ", ".join(get_args(allowed))
                raise HeadlabError(f"{told}: {field} is {known}, not {getattr(self, field)!r}")
        if isinstance(self.filler, list):  # as a study file has it
            object.__setattr__(self, "filler", tuple(self.filler))
        for field in ("count", "seed"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise HeadlabError(f"{told}: {field} is a whole number, 0 or more, not {value!r}")
        if self.count > _MOST:
            raise HeadlabError(f"{told}: a count is {_MOST:,} at most, not {self.count:,}")
        if self.kind == "filler" and not _is_filler(self.filler):
            raise HeadlabError(
                f"{told}: the filler is a text such as '/', or token ids, not {self.filler!r}"
            )
        if self.kind != "filler" and self.filler:
            raise HeadlabError(f"{told}: a {self.kind} condition has no filler")
        if (self.kind == "none") != (self.count == 0):
            raise HeadlabError(f"{told}: {self.kind} does not go with a count of {self.count}")
        if self.kind == "gap" and self.position != "between":
            raise HeadlabError(f"{told}: a gap is between instruction and question")
        if self.temperature is not None and not _between(self.temperature, 0, 100):
            raise HeadlabError(
                f"{told}: temperature is a number from 0 (greedy), not {self.temperature!r}"
            )
        if self.top_p is not None and not (_between(self.top_p, 0, 1) and self.top_p):
            raise HeadlabError(f"{told}: top_p is above 0 and at most 1, not {self.top_p!r}")
        if self.arm is not None and not isinstance(self.arm, Arm):
            raise HeadlabError(f"{told}: arm is c=0.13,p1=99.5 or the like, not {self.arm!r}")

    @property
    def inserts(self) -> int:
        """How many tokens it adds to a prompt."""
        return 0 if self.kind == "gap" else self.count

    @property
    def is_plain(self) -> bool:
        """Whether it leaves prompt and model as they are."""
        return self.kind == "none" and self.arm is None

    @property
    def says(self) -> str:
        """What it is, in words."""
        place = {"before": "before the instruction", "end": "at the end"}.get(self.position)
        place = place or ("at random places" if self.position == "random" else "")
        place = place or "between instruction and question"
        what = {
            "none": "nothing",
            "gap": f"a gap of {self.count} positions",
            "random-tokens": f"{self.count} random ordinary tokens",
            "filler": f"{self.count} times {self.filler!r}"
            if isinstance(self.filler, str)
            else f"{self.count} tokens of {list(self.filler)}",
        }[self.kind]
        told = what if self.kind == "none" else f"{what} {place}"
        told += ", chat template" if self.template == "chat" else ""
        told += f", ARM {self.arm}" if self.arm else ""
        if self.temperature is not None:
            told += f", temperature {self.temperature:g}" if self.temperature else ", greedy"
        return told + (f", top-p {self.top_p:g}" if self.top_p is not None else "")

    def as_dict(self) -> dict[str, Any]:
        """As a study file writes it; `parse_conditions` reads it back."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["arm"] = None if self.arm is None else self.arm.as_dict()
        found["filler"] = self.filler if isinstance(self.filler, str) else list(self.filler)
        return found

    def as_written(self) -> str | dict[str, Any]:
        """The same, as short as a person would write it: a name, or what is not as usual."""
        if CONDITIONS.get(self.name) == self:
            return self.name
        usual = {field.name: field.default for field in fields(self)}
        given = {
            key: value
            for key, value in self.as_dict().items()
            if key == "name" or value != usual[key]
        }
        return given if self.count or self.kind != "filler" else {**given, "kind": self.kind}


def _between(value: object, low: float, high: float) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and low <= value <= high  # type: ignore[operator]


def _is_filler(filler: object) -> bool:
    if isinstance(filler, str):
        return bool(filler.strip())
    return (
        isinstance(filler, tuple)
        and bool(filler)
        and all(type(n) is int and 0 <= n < 2**31 for n in filler)
    )


CONDITIONS: dict[str, Condition] = {
    condition.name: condition
    for condition in (
        Condition("none", kind="none"),
        Condition("mless", "/", PUBLISHED_COUNT),
        Condition("mful", "he", PUBLISHED_COUNT),
        Condition("gap", count=PUBLISHED_COUNT, kind="gap"),
        Condition("random", count=PUBLISHED_COUNT, kind="random-tokens"),
        Condition("arm", kind="none", arm=Arm(c=0.13, p1=99.5)),  # published for a 1.5B model
    )
}


def parse_conditions(
    given: str | Sequence[str | Mapping[str, Any] | Condition],
) -> list[Condition]:
    """Conditions by name, "none,mless,mful", or as mappings of a study file.

    A mapping with `like` starts from a named condition.

    >>> [condition.count for condition in parse_conditions("none,mless")]
    [0, 55]
    >>> parse_conditions([{"name": "dots", "filler": ".", "count": 20}])[0].says
    "20 times '.' between instruction and question"
    >>> parse_conditions([{"name": "long", "like": "mless", "count": 70}])[0].filler
    '/'
    """
    parts = given.split(",") if isinstance(given, str) else list(given)
    found = [_parse_one(part) for part in parts]
    if not found:
        raise HeadlabError("no conditions were given, e.g. none,mless,mful")
    names = [condition.name for condition in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise HeadlabError(f"two conditions are called {twice[0]!r}; give each a name of its own")
    return found


def _parse_one(given: str | Mapping[str, Any] | Condition) -> Condition:
    if isinstance(given, Condition):
        return given
    if isinstance(given, str):
        return _named(given.strip())
    if not isinstance(given, Mapping):
        raise HeadlabError(f"a condition is a name or a mapping with a name, not {given!r}")
    values = dict(given)
    known = [field.name for field in fields(Condition)]
    if wrong := [key for key in values if key not in (*known, "like")]:
        near = difflib.get_close_matches(str(wrong[0]), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise HeadlabError(f"a condition has {', '.join(known)} and like, not {wrong[0]!r}{hint}")
    if "name" not in values:
        raise HeadlabError(f"the condition {dict(given)!r} has no name")
    if values.get("arm") is not None:
        values["arm"] = parse_arm(values["arm"])
    if "like" in values:
        return replace(_named(str(values.pop("like"))), **values)
    if "kind" not in values and not values.get("filler") and not values.get("count"):
        values["kind"] = "none"
    return Condition(**values)


def _named(name: str) -> Condition:
    if name in CONDITIONS:
        return CONDITIONS[name]
    near = difflib.get_close_matches(name, CONDITIONS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CONDITIONS)}"
    raise HeadlabError(f"no condition {name!r}; {hint}")
