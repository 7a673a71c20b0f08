"""Prompts from a user's file: plain text, one a line, or JSONL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError


def read_prompts(path: Path) -> list[str]:
    """The prompts of a .jsonl file (its `prompt` fields) or of a text file (its lines)."""
    return [question["prompt"] for question in read_questions(path)]


def read_questions(path: Path) -> list[dict[str, Any]]:
    """The same with what else stands on each line: an `id`, the right answer (`gold`) ..."""
    if path.suffix not in ("", ".txt", ".jsonl"):
        raise HeadlabError(f"{path} is neither .txt (one prompt a line) nor .jsonl")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise HeadlabError(f"no file {path}") from None
    except IsADirectoryError:
        raise HeadlabError(f"{path} is a folder; give a file with one prompt a line") from None
    except UnicodeDecodeError as error:
        raise HeadlabError(f"{path} is not UTF-8 text (byte {error.start})") from None
    numbered = [(n, line.removesuffix("\r")) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise HeadlabError(f"{path} is empty; give one prompt a line")
    if path.suffix == ".jsonl":
        return [_question_of(line, f"{path} line {number}") for number, line in numbered]
    if numbered[0][1].lstrip().startswith("{"):
        raise HeadlabError(f"{path} looks like JSONL; name it .jsonl, or its lines are the prompts")
    return [{"prompt": line} for _, line in numbered]


def _question_of(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise HeadlabError(f"{place} is not JSON: {error.msg}") from None
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise HeadlabError(f'{place} has no "prompt" with text in it')
    return dict(record)
