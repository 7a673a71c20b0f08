"""A YAML file as plain data that knows the line of each of its parts. Nothing in it can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from headlab.errors import HeadlabError

_LARGEST = 2**20  # a study file is a page of text
_DEEPEST = 20


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain data: neither aliases (which can swell a page to gigabytes) nor a key twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not read", problem_mark=event.start_mark
            )
        self.depth += 1
        if self.depth > _DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


@dataclass(frozen=True)
class Document:
    """The mapping of a file, and on which line each part stands."""

    name: str
    data: dict[str, Any]
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Document:
        return cls("", {})

    @classmethod
    def read(cls, path: Path) -> Document:
        try:
            if path.stat().st_size > _LARGEST:
                raise HeadlabError(f"{path} is larger than a study file can be (1 MB)")
            text = path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            raise HeadlabError(
                f"no file {path}; headlab new circuits > {path} writes one to start from"
            ) from None
        except IsADirectoryError:
            raise HeadlabError(
                f"{path} is a folder; a run goes on with: headlab resume {path}"
            ) from None
        except UnicodeDecodeError:
            raise HeadlabError(f"{path} is not UTF-8 text") from None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            lines = dict(_lines(node, ())) if node is not None else {}
            data = loader.construct_document(node) if node is not None else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f", line {mark.line + 1}" if mark else ""
            raise HeadlabError(f"{path}{line}: {_plainly(error.problem or '')}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a wrong date
            raise HeadlabError(f"{path} cannot be read as YAML: {error}") from None
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise HeadlabError(f"{path} is not a study: it has no settings like 'study: circuits'")
        return cls(str(path), data, lines)

    def without(self, keys: Iterable[str]) -> Document:
        """The same, not knowing the lines of some keys: what stands there does not count."""
        gone = set(keys)
        lines = {p: line for p, line in self.lines.items() if not p or p[0] not in gone}
        return replace(self, lines=lines)

    def at(self, place: tuple[str | int, ...], text: str) -> str:
        """A sentence with the file and the line of the nearest part that the file has."""
        if not self.name:
            return text
        while place and place not in self.lines:
            place = place[:-1]
        line = f", line {self.lines[place]}" if place else ""
        return f"{self.name}{line}: {text}"

    @contextmanager
    def errors(self, place: tuple[str | int, ...]) -> Iterator[None]:
        try:
            yield
        except HeadlabError as error:
            raise HeadlabError(self.at(place, str(error))) from None


def _plainly(problem: str) -> str:
    """What the parser means, for people."""
    for said, meant in {
        "'\\t'": "a tab; indent with spaces",
        "mapping values are not allowed": "a colon too many, or a wrong indent",
        "<block end>": "this line is not indented like its neighbours",
        "end of stream": "a quote or a bracket before is not closed",
        "',' or": "a bracket is not closed, or a comma is missing",
    }.items():
        if said in problem:
            return meant
    return problem


def _lines(node: yaml.Node, place: tuple[str | int, ...]) -> Iterator[tuple[Any, int]]:
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a setting's name is a word", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
            inner = (*place, key.value)
            yield from _lines(value, inner)
            yield inner, key.start_mark.line + 1  # the key's line, also of a list below it
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _lines(value, (*place, number))
