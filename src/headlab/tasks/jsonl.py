"""Examples from a user's JSONL file; every wrong line is named before a model is loaded."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError
from headlab.examples import Example

LONGEST_LINE = 2**20  # bytes; what is longer is no prompt
_SHOWN = 5  # wrong lines named in the message
_FIELDS = ("prompt", "target", "counterfactual", "wrong", "also_right", "category", "id")


def read_examples(path: str | Path) -> list[Example]:
    """The examples of a JSONL file: `{"prompt", "target", "counterfactual"?, "wrong"?: [...],
    "also_right"?: [...], "category"?, "id"?}` a line. Without an id, the line's number is it."""
    path = Path(path).expanduser()
    examples: list[Example] = []
    wrong: list[str] = []
    homes: dict[str, int] = {}  # id -> line
    for number, line in _lines(path):
        try:
            example = _example(line, number)
            if example.id in homes:
                raise ValueError(f"has the id {example.id!r} of line {homes[example.id]}")
        except ValueError as error:
            wrong.append(f"line {number} {error}")
        else:
            homes[example.id] = number
            examples.append(example)
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise HeadlabError(f"{path}: {'; '.join(wrong[:_SHOWN])}{more}")
    if not examples:
        raise HeadlabError(f'{path} is empty; give one {{"prompt": ..., "target": ...}} a line')
    return examples


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, by number; a line too long comes cut, one byte over the limit."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                whole = line
                while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE + 1)):
                    pass  # the rest of a line too long
                whole = whole.removeprefix(b"\xef\xbb\xbf") if number == 1 else whole
                if whole.strip():
                    yield number, whole
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except IsADirectoryError:
        raise HeadlabError(f"{path} is a folder; give a JSONL file") from None


def _example(line: bytes, number: int) -> Example:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"is longer than {LONGEST_LINE:,} bytes")
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {getattr(error, 'msg', 'nested too deep')}") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    for field in record:
        close = difflib.get_close_matches(field, _FIELDS, n=1, cutoff=0.75)
        if close and field not in _FIELDS and close[0] not in record:
            raise ValueError(f"has a field {field!r}; did you mean {close[0]!r}?")
    made = Example(
        _text(record, "prompt"),
        _text(record, "target"),
        counterfactual=_text(record, "counterfactual")
        if _given(record, "counterfactual")
        else None,
        wrong=_texts(record, "wrong"),
        also_right=_texts(record, "also_right"),
        id=_label(record, "id") if _given(record, "id") else str(number),
        category=_label(record, "category") if _given(record, "category") else "",
    )
    twice = [answer for answer in made.answers if made.answers.count(answer) > 1]
    if twice:
        raise ValueError(f"has the answer {twice[0]!r} twice")
    return made


def _given(record: dict[str, Any], field: str) -> bool:
    return record.get(field) not in (None, "")


def _text(record: dict[str, Any], field: str) -> str:
    if field not in record:
        raise ValueError(f"has no {field!r}")
    value = record[field]
    if not isinstance(value, str) or not value:
        raise ValueError(f"has no text in {field!r}")
    _require_unicode(value, field)
    return value


def _label(record: dict[str, Any], field: str) -> str:
    value = record[field]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"has neither a text nor a number in {field!r}")
    _require_unicode(str(value), field)
    return str(value)


def _texts(record: dict[str, Any], field: str) -> tuple[str, ...]:
    value = record.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"has something else than a list of texts in {field!r}")
    for each in value:
        _require_unicode(each, field)
    return tuple(value)


def _require_unicode(value: str, field: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"has half a character (a surrogate) in {field!r}")
