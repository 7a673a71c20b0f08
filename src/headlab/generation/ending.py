"""Where a row ends: after an EOS, after a stop string, or at its longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from transformers import GenerationConfig

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.model import Model
    from headlab.texts import Texts

End = Literal["eos", "stop", "length"]
_MARGIN = 8  # tokens, beyond its bytes, that a stop string may be spread over


@dataclass(frozen=True)
class Written:
    """What one mask wrote after one prompt."""

    text: str  # up to and with the stop string; special tokens are no text
    ids: list[int]  # the tokens that were generated, an EOS among them
    end: End


class Ends:
    """The EOS tokens of a model and the stop strings of a call."""

    def __init__(self, model: Model, stops: Sequence[str]):
        if "" in stops:
            raise HeadlabError("a stop string is empty; leave it out, or name some text")
        if stops and model.tokenizer is None:
            raise HeadlabError(f"{model.name} has no tokenizer; stop strings need one")
        self.texts: Texts = model
        self.stops = list(stops)
        self.eos = eos_ids(model)
        # A special token leaves no text that a string could be found in; its id is met instead.
        special = model.special_tokens if stops else {}
        self.stop_ids = {special[stop] for stop in stops if stop in special}

    def take(self, ids: list[int], new: Sequence[int], most: int) -> Written | None:
        """Add a row's new tokens to its `ids`, up to its end and no more than `most` in all; what
        it wrote if it has ended."""
        before = len(ids)
        end: End | None = None
        for token in new:
            ids.append(token)
            if token in self.stop_ids:
                end = "stop"
            elif token in self.eos:
                end = "eos"
            elif len(ids) == most:
                end = "length"
            if end is not None:
                break
        text = self._stopped(ids, before)
        if text is not None:
            return Written(text, ids, "stop")
        return None if end is None else Written(self.texts.continuation(ids), ids, end)

    def _stopped(self, ids: list[int], before: int) -> str | None:
        """The text up to a stop string that the tokens after the first `before` complete; `ids`
        is cut after it. None where there is none."""
        if not self.stops:
            return None
        tail = len(ids) - before + max(len(stop.encode()) for stop in self.stops) + _MARGIN
        if _stop_at(self.texts.continuation(ids[-tail:]), self.stops) is None:
            return None
        for count in range(before + 1, len(ids) + 1):
            text = self.texts.continuation(ids[:count])
            if (cut := _stop_at(text, self.stops)) is not None:
                del ids[count:]
                return text[:cut]
        return None


def eos_ids(model: Model) -> set[int]:
    """The tokens after which transformers' `generate` stops: those of the generation config, which
    is made of the model's config where a model comes without. A tokenizer's EOS is not among them
    by itself."""
    config = getattr(model.hf, "generation_config", None)
    if config is None:  # of a class that has no `generate`
        config = GenerationConfig.from_model_config(model.hf.config)
    own = config.eos_token_id
    return set() if own is None else {own} if isinstance(own, int) else set(own)


def _stop_at(text: str, stops: list[str]) -> int | None:
    """Where the first stop string ends; None where there is none."""
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return min(ends) if ends else None
