"""The card of a model that training left: what it is, what it is worth, how it came about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlab import __version__
from headlab.wording import percent

_SPARSE = """This model has **sparse attention**: an edge from a query to a key is open only where
the attention logit and the head's own b say so, weights = softmax(s) · [s + b > 0]. The gates stand
in `config.json` (`headlab_sparse`) and in `headlab_sparse.safetensors`.

**Plain transformers knows nothing of the gates and loads a dense model**, which is another one.
Load it with Headlab:

```python
import headlab
model = headlab.load("{folder}")  # where this folder is
```
"""
_TWIN = """This is the **dense twin** of sparse models: trained on the same contexts in the same
order for as many steps, with all edges open and the text's own loss alone. It tells what the data
did without sparsity.
"""
_WORTH = """Edges: share of the causal edges open on held-out text. Losses and distance (KL from the
dense model) are nats a token, with hard gates; tasks by their own measure, with all heads."""

_OF_TWIN = ("steps", "batch", "context", "rate", "warmup", "lora", "clip", "seed")
_ADAPTED = """ Measured with the adapters beside the weights; the weights saved here have them added
in, rounded to their dtype."""


def write_card(
    folder: str,
    base: str,
    settings: Mapping[str, Any],
    data: list[str],
    rows: Mapping[str, Mapping[str, Any]],
    is_sparse: bool = True,
) -> str:
    """Markdown. `rows` are what models are worth: the dense one, and the one in the folder."""
    base = Path(base).name if Path(base).expanduser().exists() else base
    names = [name for name in ("dense", folder) if name in rows]
    shown = [key for key in rows[names[-1]] if key not in ("map", "step", "name", "in bound")]
    table = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    table += [
        f"| {_title(key)} | "
        + " | ".join(_value(key, rows[name].get(key)) for name in names)
        + " |"
        for key in shown
    ]
    told = settings if is_sparse else {name: settings[name] for name in _OF_TWIN}
    asked = "\n".join(f"- {name}: {value}" for name, value in told.items())
    within = rows[folder].get("in bound")
    kept = (
        "" if within is None else f" The bound on {settings['constraint']}, {settings['bound']:g} "
    )
    kept += {True: "nats, is kept.", False: "nats, is **not kept**.", None: ""}[within]
    sources = ", ".join(Path(each).name if Path(each).is_file() else each for each in data)
    about = _SPARSE.format(folder=folder) if is_sparse else _TWIN
    tags = ["headlab", "sparse-attention"] if is_sparse else ["headlab"]
    worth = _WORTH + kept + (_ADAPTED if settings.get("lora") else "")
    return f"""---
tags: [{", ".join(tags)}]
---

# {base}, {folder}

{about}
Trained from {base} on {sources}, {rows[folder]["step"]} steps, with Headlab {__version__}.
Its licence is that of {base}.

## What it is worth

{chr(10).join(table)}

{worth}

## How it was trained

{asked}
"""


def _title(key: str) -> str:
    return {"edges": "edges", "kl": "distance to dense"}.get(key, key)


def _value(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key == "edges":
        return percent(value, 2)
    if key.startswith("loss"):
        shown = f" (perplexity {math.exp(value):.1f})" if value < 20 else ""
        return f"{value:.4f}{shown}"
    return f"{value:.4f}"
