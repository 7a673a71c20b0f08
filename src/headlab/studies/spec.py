"""What a study asks: read from a file or from options, checked before anything runs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic import BeforeValidator as Before

from headlab.aliases import ALIASES, cached_models
from headlab.errors import HeadlabError
from headlab.studies.yamls import Document

MIN_ORDERS = 20  # random orders behind a baseline; that of curves, which would bring torch
OTHER_NAMES = {"strength": "lambda"}  # as the option is called, and the paper's letter
Size = Literal["smoke", "small", "paper"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]


def as_model(name: str, info: ValidationInfo) -> str:
    """A model's name; a folder or file by its absolute path, whatever the study lies beside."""
    if name in ALIASES or is_stored(info):
        return name
    from headlab.loading import resolve

    beside = as_path(name, info)
    if beside.exists():
        name = str(beside)
    bare, _ = split_revision(name)
    said(lambda: resolve(bare))
    close = difflib.get_close_matches(bare, ALIASES, n=1, cutoff=0.8)
    if close and bare not in ALIASES and "/" not in bare and bare not in cached_models():
        raise ValueError(f"no model {bare!r}; did you mean {close[0]!r}?")
    return name


def _task(name: str, info: ValidationInfo) -> str:
    """A task's name; a file by its absolute path, its lines read and found right."""
    if is_stored(info):
        return name
    from headlab.tasks import TASKS, Task, find_task
    from headlab.tasks.jsonl import read_examples

    if name in TASKS:
        return name
    path = as_path(name, info)
    if not path.is_file() and isinstance(said(lambda: find_task(name)), Task):  # or the nearest
        return name
    said(lambda: read_examples(path))
    return str(path)


def as_path(name: str, info: ValidationInfo) -> Path:
    """Beside the study file, whole. Links stay: the hub's cache is made of them."""
    try:
        given = Path(name).expanduser()
    except RuntimeError as error:  # ~ of a user who is not known here
        raise ValueError(f"{name!r}: {error}") from None
    return Path(os.path.abspath((info.context or {}).get("folder", Path()) / given))


def _folder(name: str | None, info: ValidationInfo) -> str | None:
    """A folder of data by its absolute path, or the hub."""
    if name in (None, "hub") or is_stored(info):
        return name
    path = as_path(name, info)
    if not name.strip() or not path.is_dir():
        raise ValueError(f"no folder {path if name.strip() else repr(name)}")
    return str(path)


def is_stored(info: ValidationInfo) -> bool:
    """Of a run that is only looked at, the models and files need not be here."""
    return bool((info.context or {}).get("stored"))


def said(look: Any) -> Any:
    try:
        return look()
    except HeadlabError as error:
        raise ValueError(str(error)) from None


def as_list(value: Any) -> Any:
    """A word where a list is expected is a list of one."""
    return [value] if isinstance(value, (str, int)) and not isinstance(value, bool) else value


def _yes_or_no(value: Any) -> Any:
    """YAML reads no and yes as truth values."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def each_once(values: list[Any]) -> list[Any]:
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise ValueError(f"{twice[0]!r} is there twice")
    return values


def names(setting: str) -> AliasChoices:
    """A setting's name and the other one it goes by."""
    return AliasChoices(setting, OTHER_NAMES[setting])


Name = Annotated[str, Field(min_length=1, max_length=500)]
Models = Annotated[
    list[Annotated[Name, AfterValidator(as_model)]],
    Before(as_list),
    AfterValidator(each_once),
    Field(min_length=1, max_length=100),
]
Tasks = Annotated[
    list[Annotated[Name, AfterValidator(_task)]],
    Before(as_list),
    AfterValidator(each_once),
    Field(min_length=1, max_length=100),
]
Seeds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]],
    Before(as_list),
    AfterValidator(each_once),
    Field(min_length=1, max_length=1000),
]
Bos = Annotated[Literal["auto", "yes", "no"], Before(_yes_or_no)]
Folder = Annotated[str | None, AfterValidator(_folder)]


class Spec(BaseModel):
    """What all studies have in common. Each study's own spec adds its settings.

    Nothing in it names a place to write to or code to run: a study file from a stranger is data.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # what a size stands for

    study: str
    size: Size = "small"
    models: Models
    tasks: Tasks
    seeds: Seeds = [0]
    dtype: Dtype | None = None
    bos: Bos = "auto"

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, and what its size stands for where nothing is."""
        size = given.get("size")
        known = size if isinstance(size, str) and size in cls.SIZES else "small"
        return {**cls.SIZES.get(known, {}), **given}

    def settings(self) -> dict[str, Any]:
        """All that bears on a cell's numbers, beside model, task, method and seed."""
        return self.model_dump(exclude={"study", "size", "models", "tasks", "seeds"})

    def as_yaml(self) -> str:
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=100))


def split_revision(name: str) -> tuple[str, str | None]:
    """A model's name and the revision after an @, if there is one.

    >>> split_revision("EleutherAI/pythia-160m@step1000")
    ('EleutherAI/pythia-160m', 'step1000')
    """
    bare, _, revision = name.rpartition("@")
    if not bare or not revision or Path(name).exists():
        return name, None
    return bare, revision


def read_spec(
    path: str | Path, changes: Mapping[str, Any] | None = None, stored: bool = False
) -> Spec:
    """A study file's spec; `changes` stand in for what the file says.

    `stored` is for a finished run's own file: its models and data need not be here any more.
    """
    from headlab.studies import find_study

    path = Path(path).expanduser()
    document = Document.read(path)
    changes = changes or {}
    both = {**OTHER_NAMES, **{other: name for name, other in OTHER_NAMES.items()}}
    gone = {both[key] for key in changes if key in both}  # the same setting by its other name
    data = {key: value for key, value in document.data.items() if key not in gone}
    if "size" in changes:  # what the file says of the size it had does not count
        study = find_study(data.get("study"))
        of_size = set(study.Spec.SIZES["small"]) - {"models"}
        data = {key: value for key, value in data.items() if key not in of_size}
    return make_spec({**data, **changes}, document.without(changes), path.parent, stored)


def make_spec(
    given: Mapping[str, Any],
    document: Document | None = None,
    folder: Path = Path(),
    stored: bool = False,
) -> Spec:
    """A checked spec. Errors name the line of the document and the nearest valid word."""
    from headlab.studies import find_study

    document = document or Document.empty()
    if "study" not in given:
        raise HeadlabError(document.at((), "no study is named; study: circuits, for example"))
    with document.errors(("study",)):
        kind = find_study(given["study"])
    context = {"folder": folder, "stored": stored}
    try:
        return kind.Spec.model_validate(kind.Spec.filled(given), context=context)
    except ValidationError as error:
        wrong = [_sentence(each, kind.Spec, document) for each in error.errors()]
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise HeadlabError("; ".join(wrong[:3]) + more) from None


def _sentence(error: Any, spec: type[Spec], document: Document) -> str:
    """One of pydantic's errors, in Headlab's words."""
    place, kind, value = error["loc"], error["type"], error.get("input")
    name = ".".join(str(part) for part in place if isinstance(part, str))
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."
    details = error.get("ctx", {})
    if kind == "extra_forbidden" and name in _other_names(spec):
        text = f"{name} and {_other_names(spec)[name]} are one setting; give one of them"
    elif kind == "extra_forbidden":
        words = list(spec.model_fields)
        text = f"no setting {name!r}{nearest(name, words)} (there are {', '.join(words)})"
    elif kind == "missing":
        text = f"{name} is missing"
    elif kind == "literal_error":
        words = [word.strip("'") for word in details["expected"].replace(" or ", ", ").split(", ")]
        text = f"{name} is {details['expected'].replace(chr(39), '')}, not {shown}"
        text += nearest(str(value), words)
    elif kind == "value_error":
        text = f"{name}: {details['error']}" if name else str(details["error"])
    elif kind == "too_short" or (kind == "list_type" and value is None):
        text = f"{name} is empty; leave it out or name some"
    else:
        text = f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}, not {shown}"
    return document.at(place, text)


def _other_names(spec: type[Spec]) -> dict[str, str]:
    return {other: name for name, other in OTHER_NAMES.items() if name in spec.model_fields}


def nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
