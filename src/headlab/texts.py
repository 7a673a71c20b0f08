"""Prompts and token ids: what a tokenizer alone can tell about a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = str | Tensor  # text, or token ids of shape [position]
PerPrompt = Tensor | Sequence[Tensor | None] | None  # [position] of each prompt, or of some
BosPolicy = Literal["auto", "yes", "no"]


class Texts:
    """A tokenizer with a policy about BOS. A `Model` is one, too; tasks need no more."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, name: str, bos: BosPolicy = "auto"
    ):
        self.tokenizer = tokenizer
        self.name = name
        self.bos_policy = bos
        self.prefix = _resolve_prefix(bos, tokenizer, name)

    @property
    def bos(self) -> bool:
        """Whether prompts start with BOS."""
        return self.tokenizer is not None and self.tokenizer.bos_token_id in self.prefix

    @property
    def vocabulary(self) -> int:
        return 0 if self.tokenizer is None else len(self.tokenizer)

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens, None where nothing sets one."""
        limit = None if self.tokenizer is None else self.tokenizer.model_max_length
        return limit if limit and limit < 10**9 else None

    def ids(self, prompt: Prompt) -> Tensor:
        """A prompt's token ids [position], BOS first if the policy says so, nothing else added.

        On the CPU; a batch of them (`tokens`) is on the model's device.
        """
        if isinstance(prompt, Tensor):
            ids = prompt.cpu()
            if ids.ndim != 1 or ids.is_floating_point():
                raise HeadlabError(
                    f"token ids of one prompt have shape [position], {list(prompt.shape)} was given"
                )
        else:
            if not prompt:
                raise HeadlabError("the prompt is empty; give at least one word")
            if self.tokenizer is None:
                raise HeadlabError(f"{self.name} has no tokenizer; give token ids, not text")
            _require_utf8(prompt)
            numbers = list(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])
            if numbers[: len(self.prefix)] != self.prefix:  # the text may bring its own
                numbers = [*self.prefix, *numbers]
            ids = torch.tensor(numbers, dtype=torch.long)
        if not len(ids):
            raise HeadlabError(f"the prompt {prompt!r} has no tokens")
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary:
            raise HeadlabError(
                f"token ids of {self.name} run from 0 to {self.vocabulary - 1}, "
                f"{int(ids.min())} to {int(ids.max())} were given"
            )
        limit = self.max_length
        if limit and len(ids) > limit:
            raise HeadlabError(
                f"the prompt has {len(ids)} tokens, {self.name} takes at most {limit}"
            )
        return ids

    def placed(
        self, prompts: Sequence[Tensor], position_ids: PerPrompt, hidden: PerPrompt
    ) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Positions and hidden tokens of each prompt, checked; None where all are as always."""
        if position_ids is None and hidden is None:
            return None, None
        plain = [torch.arange(len(prompt)) for prompt in prompts]
        positions = _per_prompt("position_ids", plain, position_ids)
        unseen = _per_prompt("hidden", [each < 0 for each in plain], hidden)
        for number, (own, covered) in enumerate(zip(positions, unseen, strict=True), 1):
            if int(own[0]) != 0 or (own.diff() < 1).any():
                raise HeadlabError(
                    "positions start at 0 and grow from token to token; those of prompt "
                    f"{number} are {_few(own)}"
                )
            if self.max_length and int(own[-1]) >= self.max_length:
                raise HeadlabError(
                    f"prompt {number} reaches position {int(own[-1])}; {self.name} has "
                    f"{self.max_length}, from 0"
                )
            if covered.all():
                raise HeadlabError(f"all tokens of prompt {number} are hidden; leave one to see")
        moved = any(not torch.equal(own, each) for own, each in zip(positions, plain, strict=True))
        covers = any(bool(each.any()) for each in unseen)
        return positions if moved else None, unseen if covers else None

    def chat(self, text: str) -> Tensor:
        """The ids of what a user says, in the model's own chat template, up to its answer."""
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise HeadlabError(f"{self.name} has no chat template; give the prompt as plain text")
        if not text:
            raise HeadlabError("the prompt is empty; give at least one word")
        _require_utf8(text)
        try:
            found = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
            )
        except Exception as error:  # a template is a program, and may fail in any way
            said = " ".join(str(error).split()) or type(error).__name__
            raise HeadlabError(
                f"the chat template of {self.name} does not take a single user's text: {said}; "
                "give the prompt as plain text"
            ) from error
        numbers = list(found["input_ids"])
        if not numbers:
            raise HeadlabError(f"the chat template of {self.name} makes no tokens of {text!r}")
        return self.ids(torch.tensor(numbers, dtype=torch.long))

    def join(self, prompt: Prompt, target: str) -> tuple[Tensor, int]:
        """The ids of prompt + target and how many are the prompt's.

        Refused where joining the two texts changes the prompt's own last tokens: then no token
        boundary lies between them and the target's log-prob would be of something else.
        """
        if not target:
            raise HeadlabError("the target is empty; give the text whose log-prob you want")
        if isinstance(prompt, Tensor):
            raise HeadlabError("a target in text needs a prompt in text")
        ids, joined = self.ids(prompt), self.ids(prompt + target)
        n = len(ids)
        if not torch.equal(joined[:n], ids):
            first = int((joined[:n] != ids[: len(joined)]).nonzero()[0]) if len(joined) >= n else 0
            cure = "move the space to the front of" if prompt[-1].isspace() else "start a word with"
            raise HeadlabError(
                f"prompt and target merge into other tokens: the prompt ends in "
                f"{self.token_texts(ids[first:])}, joined they give "
                f"{self.token_texts(joined[first:])}; {cure} the target"
            )
        if len(joined) == n:
            raise HeadlabError(f"the target {target!r} has no tokens")
        return joined, n

    def token_texts(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Each token as text; without a tokenizer, its id."""
        numbers = [int(number) for number in ids]
        if self.tokenizer is None:
            return [str(number) for number in numbers]
        before = self._decode(self._anchor)
        texts = [self._decode([*self._anchor, number]) for number in numbers]
        return [
            text.removeprefix(before) if text.startswith(before) else self._decode([number])
            for text, number in zip(texts, numbers, strict=True)
        ]

    def continuation(self, ids: Sequence[int]) -> str:
        """The text of tokens that follow others, a space at their start kept; no special tokens.
        Without a tokenizer, the ids."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return self._without_special([*self._anchor, *ids]).removeprefix(self._anchor_text)

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that `continuation` leaves out."""
        if self.tokenizer is None:
            return {}
        named = zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True)
        added = self.tokenizer.added_tokens_decoder.items()
        return {
            **dict(named),
            **{token.content: number for number, token in added if token.special},
        }

    @cached_property
    def _anchor(self) -> list[int]:
        """A token for others to follow: alone, some decoders drop the space a token begins with."""
        assert self.tokenizer is not None
        return list(self.tokenizer("a", add_special_tokens=False)["input_ids"])[-1:]

    @cached_property
    def _anchor_text(self) -> str:
        return self._without_special(self._anchor)

    def _without_special(self, ids: list[int]) -> str:
        assert self.tokenizer is not None
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _decode(self, ids: list[int]) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def _per_prompt(what: str, plain: list[Tensor], given: PerPrompt) -> list[Tensor]:
    """What is given for each prompt, of the shape and kind of what it has without."""
    if given is None:
        return plain
    rows = [given] if isinstance(given, Tensor) and given.ndim == 1 else list(given)
    if len(rows) != len(plain):
        raise HeadlabError(f"{what} of {len(rows)} prompts were given for {len(plain)}")
    found = []
    for number, (row, own) in enumerate(zip(rows, plain, strict=True), 1):
        row = own if row is None else torch.as_tensor(row).cpu()
        is_like = row.is_floating_point(), row.dtype == torch.bool
        if row.shape != own.shape or is_like != (False, own.dtype == torch.bool):
            kind = "true or false" if own.dtype == torch.bool else "a whole number"
            raise HeadlabError(
                f"{what} of prompt {number} are {kind} for each of its {len(own)} tokens, not "
                f"{str(row.dtype).removeprefix('torch.')} of shape {list(row.shape)}"
            )
        found.append(row.to(own.dtype))
    return found


def _few(numbers: Tensor) -> str:
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return f"{shown} ..." if len(numbers) > 8 else shown


def _require_utf8(text: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise HeadlabError(f"the prompt {text!r} is not valid UTF-8 text")


def _resolve_prefix(
    policy: BosPolicy, tokenizer: PreTrainedTokenizerBase | None, model_name: str
) -> list[int]:
    """What a prompt starts with. auto: whatever the tokenizer by itself puts before a text."""
    if policy not in ("auto", "yes", "no"):
        raise HeadlabError(f"bos is auto, yes or no, not {policy!r}")
    bos_id = None if tokenizer is None else tokenizer.bos_token_id
    if policy == "yes":
        if bos_id is None:
            raise HeadlabError(f"{model_name} has no BOS token; use bos auto or no")
        return [bos_id]
    if policy == "no" or tokenizer is None:
        return []
    own = list(tokenizer("a")["input_ids"])
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = [n for n in range(len(own)) if own[n : n + len(bare)] == bare]
    return own[: starts[0]] if starts and bare else []
