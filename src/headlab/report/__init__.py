"""Pages that explain a study: one HTML file each, which needs no network and asks for none."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, data: dict[str, Any], pictures: str = "data:", **facts: Any) -> str:
    """The page `template` ("circuits") as HTML: facts go in as text, data as JSON for its charts.

    Numbers in `data` must be finite (None where there is none): NaN is not JSON. `pictures` says
    where those may come from, in the words of a content security policy.
    """
    folder = files("headlab") / "report"
    names = ["page.js", f"{template}.js"]
    scripts = [(folder / name).read_text("utf-8") for name in names if (folder / name).is_file()]
    environment = Environment(
        loader=PackageLoader("headlab", "report"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(f"{template}.html.j2").render(
        **facts,
        data=data,
        data_json=embed(data),
        css=Markup((folder / "page.css").read_text("utf-8")),
        scripts=[Markup(script) for script in scripts],
        policy=Markup(policy(scripts, pictures)),
    )


def rounded(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Numbers as a screen can show them, None where they are not finite. The CSV files have all
    digits.

    >>> rounded([0.123456789, float("nan")])
    [0.12346, None]
    """
    found = values.tolist() if hasattr(values, "tolist") else values
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in found]


def embed(data: Any) -> Markup:
    """`data` as JSON that cannot end the script element it stands in.

    >>> print(embed({"name": "</b>"}))
    {"name":"\\u003c/b\\u003e"}
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def policy(scripts: list[str], pictures: str = "data:") -> str:
    """The page's content security policy: its own styles and exactly these scripts."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src {pictures}; script-src {allowed}"
    )
