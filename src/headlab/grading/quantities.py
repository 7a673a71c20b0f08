"""Numeric match: the last number of a text, compared as a number."""

from __future__ import annotations

import re
import unicodedata
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

_TOLERANCE = Decimal("2e-6")  # relative, where one side is no whole number: 0.333333 is 1/3
_CONTEXT = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,9}(?![\w.]))?"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![\w)\]}}%])-)?                       # 3-5 has no negative number
    (?: (?<!\w)(?<!\d[./])
        (?: (?P<whole>\d+)[ ]+(?P<of>\d+)/(?P<parts>\d+)       # 1 1/2
          | (?P<number>{_DIGITS})(?:/(?P<under>\d+))?          # 1,234.5  3/4
        )
      | (?<![\w.])(?P<point>\.\d+)                             # .5
    )
    (?P<percent>\s*(?:%|percent\b|per\ cent\b))?
    """,
    re.X,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_THIN_SPACE = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!|[\u00a0\u2009\u202f])(?=,?\d{3})")
_VULGAR = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")  # 2½ is 2 1/2, not 21/2


def numeric(prediction: str, gold: str) -> float | None:
    r"""1 if the last numbers are equal, 0 if not; None where the prediction has no number.

    >>> numeric("12 + 24 = 36 apples", "36"), numeric("48", "36"), numeric("many", "36")
    (1.0, 0.0, None)
    >>> numeric("$1,234.50", "1234.5"), numeric(r"\frac{3}{4}", "0.75"), numeric("50%", "0.5")
    (1.0, 1.0, 1.0)
    """
    ours, theirs = _last_number(prediction), _last_number(gold)
    if ours is None:
        return None
    if theirs is None:
        return 0.0
    (a, a_percent), (b, b_percent) = ours, theirs
    if _equal(a, b):
        return 1.0
    if a_percent != b_percent:  # 50 % is written 50 as well as 0.5
        a, b = (_hundredth(a), b) if a_percent else (a, _hundredth(b))
        return float(_equal(a, b))
    return 0.0


def has_number(text: str) -> bool:
    return _last_number(text) is not None


def _last_number(text: str) -> tuple[Decimal, bool] | None:
    found = None
    for each in _NUMBER.finditer(_plain(text)):
        value = _value(each)
        if value.is_finite():
            found = value, each["percent"] is not None
    return found


def _plain(text: str) -> str:
    text = _VULGAR.sub(" ", _THIN_SPACE.sub("", text))
    text = unicodedata.normalize("NFKC", text).replace("⁄", "/").replace("−", "-")
    text = _FRACTION.sub(lambda each: f" {each[1] or each[2]}/{each[3] or each[4]} ", text)
    text = re.sub(r"-\s+(?=\d+/\d+ )", "-", text)  # -\frac{1}{2}
    return re.sub(r"\\[a-zA-Z]+", " ", text).replace("\\", "")


def _value(found: re.Match[str]) -> Decimal:
    if found["whole"]:
        part = _CONTEXT.divide(Decimal(found["of"]), Decimal(found["parts"]))
        value = _CONTEXT.add(Decimal(found["whole"]), part)
    elif found["point"]:
        value = Decimal(found["point"])
    else:
        value = Decimal(found["number"].replace(",", ""))
        if found["under"]:
            value = _CONTEXT.divide(value, Decimal(found["under"]))
    return value.copy_negate() if found["sign"] else value


def _hundredth(value: Decimal) -> Decimal:
    return value.scaleb(-2, _CONTEXT)


def _equal(a: Decimal, b: Decimal) -> bool:
    if a == b:
        return True
    if a == a.to_integral_value() and b == b.to_integral_value():
        return False  # 1000000 is not 1000001
    allowed = _CONTEXT.multiply(_TOLERANCE, _CONTEXT.max(a.copy_abs(), b.copy_abs()))
    return _CONTEXT.subtract(a, b).copy_abs() <= allowed
