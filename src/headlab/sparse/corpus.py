"""Text to train on: files or a data set on the hub, as contexts of token ids."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from headlab.errors import HeadlabError
from headlab.wording import count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HUB = "HuggingFaceFW/fineweb-edu:sample-10BT"  # what `hub` alone stands for
_MOST = 200_000_000  # tokens read of all sources
_CHUNK = 2_000_000  # characters that are made tokens at once
_HELD = 64  # contexts kept from training, to measure on; no more than a tenth


@dataclass(frozen=True)
class Corpus:
    """Contexts of one length, some of them held out."""

    contexts: np.ndarray  # [context, position]
    held: np.ndarray  # numbers of those that are never trained on, evenly spread
    trained: np.ndarray  # numbers of the others

    @property
    def tokens(self) -> int:
        return self.contexts.size

    def batch(self, step: int, size: int, seed: int) -> np.ndarray:
        """The contexts of a step, [row, position]: every one once before any comes again."""
        n = len(self.trained)
        places = np.arange(step * size, (step + 1) * size)
        rows = [
            self.trained[_order(n, seed, int(epoch))[places[places // n == epoch] % n]]
            for epoch in np.unique(places // n)
        ]
        return self.contexts[np.concatenate(rows)]

    @property
    def held_out(self) -> np.ndarray:
        return self.contexts[self.held]


def _order(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)


def make_corpus(
    sources: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    told: Callable[[str], None] = lambda _: None,
    needed: int = _MOST,
) -> Corpus:
    """Contexts of these texts; after each stands EOS, if the tokenizer has one.

    Files are read whole, of the hub no more than is `needed` (tokens); sources share the room.
    """
    sources = list(sources)
    room = _MOST // max(1, len(sources))
    parts = []
    for source in sources:
        most = min(room, max(needed, 1000 * context)) if _is_hub(source) else room
        found = _tokens(source, tokenizer, most)
        told(f"{Path(source).name}: {count(len(found), 'token')}")
        parts.append(found)
    return cut(np.concatenate(parts) if parts else np.zeros(0, np.int32), context)


def cut(ids: np.ndarray, context: int) -> Corpus:
    """Token ids in contexts, what is left over at the end dropped."""
    n = len(ids) // context
    if n < 2:
        raise HeadlabError(
            f"the text has {len(ids)} tokens, and two contexts of {context} are the least to train "
            "and to measure on; give more text or a shorter --context"
        )
    contexts = ids[: n * context].reshape(n, context)
    size = max(1, min(_HELD, n // 10))
    held = (np.arange(size) * n + n // 2) // size
    return Corpus(contexts, held, np.setdiff1d(np.arange(n), held))


def _tokens(source: str, tokenizer: PreTrainedTokenizerBase, most: int) -> np.ndarray:
    """Of one source, chunk by chunk."""
    # A .txt file is one text, whose pieces follow each other.
    end = [] if tokenizer.eos_token_id is None or _is_one(source) else [tokenizer.eos_token_id]
    parts: list[np.ndarray] = []
    for texts in _chunks(read_texts(source)):
        ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        flat = np.fromiter(itertools.chain.from_iterable([*one, *end] for one in ids), np.int32)
        parts.append(flat)
        if sum(map(len, parts)) >= most:
            break
    return np.concatenate(parts)[:most]


def _is_hub(source: str) -> bool:
    return source == "hub" or source.startswith("hub:")


def _is_one(source: str) -> bool:
    return source.removesuffix(".gz").endswith(".txt")


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_texts(source: str) -> Iterator[str]:
    """Texts of a file (.txt, .jsonl with a text in each line; .gz of either) or of the hub
    (hub, hub:NAME or hub:NAME:CONFIG). A .txt file is one text, in pieces of many lines."""
    if _is_hub(source):
        yield from _from_hub(source.partition(":")[2] or HUB)
        return
    require_source(source)
    path = Path(source).expanduser()
    with _opened(path) as file:
        found = _pieces(file) if _is_one(source) else _lines(file, path.name)
        empty = True
        for text in found:
            empty = False
            yield text
        if empty:
            raise HeadlabError(f"{path.name} has no text")


def require_source(source: str) -> None:
    """Refuse a file that is not there, or of a kind that is not read."""
    if _is_hub(source):
        return
    path = Path(source).expanduser()
    if not path.is_file():
        raise HeadlabError(f"no file {source} (or hub, or hub:NAME for a data set there)")
    if not path.name.removesuffix(".gz").endswith((".txt", ".jsonl")):
        raise HeadlabError(f"{path.name} is neither .txt nor .jsonl (.gz of either)")
    if not path.stat().st_size:
        raise HeadlabError(f"{path.name} has no text")


def _pieces(file: IO[str]) -> Iterator[str]:
    while lines := file.readlines(50_000):  # about so many characters, never within a line
        text = "".join(lines)
        if text.strip():
            yield text


def _lines(file: IO[str], name: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise HeadlabError(f"{name}, line {number} is not JSON: {error}") from None
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise HeadlabError(f'{name}, line {number} has no text, as in {{"text": "..."}}')
        if text:
            yield text


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    opener: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            yield file
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise HeadlabError(f"{path.name} cannot be read as text: {error}") from None


def _from_hub(name: str) -> Iterator[str]:
    from headlab.tasks.questions import load_rows

    path, _, config = name.partition(":")
    for row in load_rows(path, config or None, "train", streaming=True):
        text = row.get("text")
        if not isinstance(text, str):
            raise HeadlabError(f"{path} on the hub has no column 'text'")
        if text:
            yield text
