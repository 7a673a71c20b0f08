"""The answer in a text: values as text, `[ {"answer": "..."} ]`, boxes."""

from __future__ import annotations

import itertools
import json
import re
from decimal import Decimal
from typing import Any

_TRIED = 20  # places of "answer":, and objects before each; with more, a text is no answer
_ANSWER = re.compile(r'"answer"\s*:')
_OBJECT = re.compile(r'\{\s*"')  # a brace inside a text has no key after it
# A backslash that begins a JSON escape, or one that begins LaTeX: "\frac" is not a form feed.
_BACKSLASH = re.compile(
    r"""\\( ["\\/] | u[0-9a-fA-F]{4} | n(?!(?:eq|u|abla|otin)\b) | [bfrt](?![a-zA-Z]) )?""", re.X
)
_BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.S)


def as_text(value: Any) -> str | None:
    """A field's value as text; None for what is not there.

    >>> as_text(36), as_text(36.0), as_text(0.5), as_text(True), as_text(["a"]), as_text(None)
    ('36', '36', '0.5', 'true', '["a"]', None)
    """
    if value is None or value != value:  # NaN is a missing value in every table
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a character is none
    if isinstance(value, int) and not isinstance(value, bool):
        return str(Decimal(value))  # str of an int refuses more than 4,300 digits
    if isinstance(value, float) and value.is_integer():
        return str(Decimal(value))
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()


def find_answer(text: str) -> str | None:
    r"""The first `{"answer": ...}` of a text that is JSON; None where there is none.

    LaTeX inside it may stand as it is, with single backslashes.

    >>> find_answer('Sure: [ {"answer": "Paris"} ]'), find_answer('[ {"answer": 36} ]')
    ('Paris', '36')
    >>> find_answer(r'[{"answer": "\frac{1}{2}"}]')
    '\\frac{1}{2}'
    >>> find_answer('[ {"answer": "Par') is None
    True
    """
    text = _BACKSLASH.sub(lambda each: each[0] if each[1] else r"\\", text)
    decoder = json.JSONDecoder(strict=False)
    for found in itertools.islice(_ANSWER.finditer(text), _TRIED):
        # The nearest object may be another: {"sum": {"a": 1}, "answer": ...}
        objects = [each.start() for each in _OBJECT.finditer(text, 0, found.end())]
        for start in objects[: -_TRIED - 1 : -1]:
            try:
                record, _ = decoder.raw_decode(text, start)
                if "answer" in record:
                    return as_text(record["answer"]) or ""
            except (ValueError, RecursionError):
                continue
    return None


def last_box(text: str) -> str | None:
    r"""What stands in the last closed \boxed{...}; None where no box is closed.

    >>> last_box(r"so \boxed{\frac{1}{2}}, and not \boxed{3")
    '\\frac{1}{2}'
    >>> last_box(r"\boxed{}"), last_box("5") is None
    ('', True)
    """
    open_braces: list[int | None] = []  # where a box's content begins; None for another brace
    last: tuple[int, int] | None = None
    for found in _BOXES.finditer(text):
        if found[0] == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (last is None or start > last[0]):
                last = start, found.start()
        elif found[0].endswith("{") and found[0] != r"\{":
            open_braces.append(found.end() if found[0] != "{" else None)
    return text[slice(*last)].strip() if last else None
