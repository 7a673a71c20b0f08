"""Mathematical answers: math-verify, strict equality, and a published rule that is too lenient."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from headlab.grading.answers import last_box
from headlab.grading.rows import Row
from headlab.grading.scored import Scored
from headlab.grading.workers import TIMED_OUT, run_all

_MOST_WORKERS = 4  # each takes a second to start and 100 MB; more rarely pay
_WRITTEN_AS_MATH = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")
_SENTENCE = re.compile(r"(?<!\\)\b[^\W\d_]{2,}\s+[^\W\d_]{2,}")


def math_verify(
    rows: Sequence[Row],
    seconds: float,
    workers: int | None,
    progress: Callable[[int], None] | None = None,
) -> Scored:
    """1 where math-verify finds the completion equal to the gold, which it is given first.

    A pair that takes longer than `seconds` counts as wrong and as timed out.
    """
    # The same text often comes again: under many masks, or from a model that says one thing.
    items: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        said = as_math(row.answer or "") if row.in_json else row.answer or ""
        items.setdefault((as_math(row.gold or ""), said), []).append(place)
    asked = [{"gold": gold, "prediction": said} for gold, said in items]
    count = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    replies = run_all(Path(__file__).with_name("mathworker.py"), asked, seconds, count, progress)
    if progress:
        progress(len(rows) - len(asked))
    scored = Scored([0.0] * len(rows))
    for places, reply in zip(items.values(), replies, strict=True):
        for place in places:
            if reply == TIMED_OUT:
                scored.timed_out.add(place)
            elif isinstance(reply, str):
                scored.failed.add(place)
            else:
                scored.scores[place] = float(reply["right"])
                if not reply["parsed"]:
                    scored.unparsed.add(place)
    return scored


def as_math(text: str) -> str:
    r"""An answer in a box, for math-verify reads LaTeX only where it is marked as such.

    >>> as_math(r"\frac{1}{2}"), as_math("$x$"), as_math("the sum is 36")
    ('\\boxed{\\frac{1}{2}}', '$x$', 'the sum is 36')
    """
    if not text.strip() or _WRITTEN_AS_MATH.search(text) or _SENTENCE.search(text):
        return text
    return rf"\boxed{{{text}}}"


def math_strict(row: Row) -> float | None:
    """1 if the last box holds the gold, both written plainly; None without a closed box."""
    said = _boxed(row)
    if said is None:
        return None
    gold = row.gold or ""
    right = plain_latex(gold if (box := last_box(gold)) is None else box)
    return float(bool(right) and plain_latex(said) == right)


def math_published(row: Row) -> float | None:
    """1 if the last box's content occurs in the gold: an empty box always does."""
    said = _boxed(row)
    return None if said is None else float(said.strip() in (row.gold or ""))


def _boxed(row: Row) -> str | None:
    box = last_box(row.answer or "")
    return row.answer if box is None and row.in_json else box


_DROPPED = re.compile(  # but a matrix keeps its line ends
    r"""(\\\\) | \\left(?![a-zA-Z]) | \\right(?![a-zA-Z]) | \\[,;:!\s] | \\quad | \\qquad | ~ | \s
      | \^\{?\\circ\}? | \\degree | \\?% | \\?\$ | \\displaystyle""",
    re.X,
)
_UNIT = re.compile(r"(?<=[\d})])\\(?:text|mbox|textrm|mathrm|textbf)\{[^{}]*\}(?:\^\{?\d\}?)?$")
_WORDED = re.compile(r"\\(?:text|mbox|textrm|mathrm|textbf|mathbf)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![\d.,(\[{])(\d{1,3}(?:,\d{3})+)(?![\d,)\]}])")


def plain_latex(text: str) -> str:
    r"""An answer without what is only a way of writing it; equal answers may still differ.

    >>> plain_latex(r"\left( 3, \dfrac{\pi}{2} \right)"), plain_latex(r"1{,}234\text{ cm}^2")
    ('(3,\\frac{\\pi}{2})', '1234')
    """
    text = _DROPPED.sub(r"\1", text.replace("{,}", ",")).rstrip(".")
    text = _UNIT.sub("", text)
    text = _WORDED.sub(r"\1", text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\d)(?=\{)", r"\\frac{\1}", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\w\\}])[a-zA-Z]=(?=[^=]+$)", "", text, count=1)  # x=5
    text = _THOUSANDS.sub(lambda found: found[1].replace(",", ""), text)
    text = re.sub(r"(?<![\d}])\.(?=\d)", "0.", text)
    return re.sub(r"(?<=\d)\.0+(?!\d)", "", text)
