"""Rows to grade: a prediction, what is right, and what the untouched model said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError
from headlab.grading.answers import as_text, find_answer

LONGEST_LINE = 2**24  # bytes; what is longer is no answer
_SHOWN = 5  # wrong lines named in the message


@dataclass(frozen=True)
class Row:
    """One prediction as the graders see it. None: the row has no such field."""

    text: str | None  # the whole completion, without the prompt
    answer: str | None  # the answer in it, or all of it
    gold: str | None
    unmasked: str | None = None  # the whole text of the model without gates
    unmasked_answer: str | None = None
    in_json: bool = False  # the answer stood in JSON
    prompt_cut: bool = False  # the prediction began with the prompt

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Row:
        text, gold = as_text(record.get("prediction")), as_text(record.get("gold"))
        unmasked, prompt = as_text(record.get("unmasked")), as_text(record.get("prompt"))
        if record.get("completion") is True:  # known to be without the prompt
            prompt = None
        echoed = bool(text and prompt and text.startswith(prompt))
        if text and prompt and echoed:
            text = text[len(prompt) :]
        if unmasked and prompt and unmasked.startswith(prompt):
            unmasked = unmasked[len(prompt) :]
        found = None if text is None else find_answer(text)
        also = None if unmasked is None else find_answer(unmasked)
        return cls(
            text=text,
            answer=text if found is None else found,
            gold=gold,
            unmasked=unmasked,
            unmasked_answer=unmasked if also is None else also,
            in_json=found is not None,
            prompt_cut=echoed,
        )


def read_rows(path: str | Path) -> tuple[list[dict[str, Any]], str | None]:
    """The objects of a JSONL file, and one sentence about the lines that are none."""
    path = Path(path).expanduser()
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                whole = len(line) <= LONGEST_LINE
                while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE + 1)  # the rest of a line too long
                    if not line:
                        break
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if whole and not line.strip():
                    continue
                try:
                    rows.append(_record(line if whole else None))
                except ValueError as error:
                    wrong.append(f"line {number} {error}")
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except IsADirectoryError:
        raise HeadlabError(f"{path} is a folder; give a JSONL file") from None
    more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
    named = "; ".join(wrong[:_SHOWN]) + more
    if not rows:
        what = named or "it is empty"
        raise HeadlabError(
            f'{path}: {what}; give one {{"prediction": ..., "gold": ...}} a line'
        ) from None
    if not wrong:
        return rows, None
    were = "was" if len(wrong) == 1 else "were"
    return rows, f"{len(wrong):,} of {len(wrong) + len(rows):,} lines {were} left out: {named}"


def _record(line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise ValueError(f"is longer than {LONGEST_LINE:,} bytes")
    try:
        record = json.loads(line.decode(), parse_constant=lambda _: None)  # NaN is not JSON
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {getattr(error, 'msg', 'too deep or too long')}") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    return record


def write_lines(rows: list[dict[str, Any]]) -> bytes:
    """The rows as JSONL, every script readable; half a character stays the escape it was."""
    lines = []
    for row in rows:
        try:
            lines.append(json.dumps(row, ensure_ascii=False, default=str).encode())
        except UnicodeEncodeError:
            lines.append(json.dumps(row, default=str).encode())
    return b"".join(line + b"\n" for line in lines)
