"""A causal language model whose heads can be gated: tokens in, logits out, one seam in between."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError
from headlab.gates import ZERO, Gates, Reference, gate_heads
from headlab.restart import Forms, ended_at
from headlab.seam import Seam, find_seam
from headlab.sparse.gating import Gating, find_gating
from headlab.standins import GatedMlp, Norm, Rotary
from headlab.texts import BosPolicy, PerPrompt, Prompt, Texts
from headlab.tokens import Forgetful, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Model(Texts):
    """A transformers model with its seam found. `headlab.load` makes one and checks it.

    >>> model = headlab.load("smollm2")                                       # doctest: +SKIP
    >>> with model.gated(Gates.ablate(model, [Head(5, 1)])):                  # doctest: +SKIP
    ...     logits = model("The capital of France is")     # [example, position, vocabulary]
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str | None = None,
        bos: BosPolicy = "auto",
    ):
        super().__init__(tokenizer, name or hf.config.name_or_path or type(hf).__name__, bos)
        if hf.get_output_embeddings() is None:
            raise HeadlabError(
                f"{self.name} is {type(hf).__name__}, which has no language-model head; "
                "load it with AutoModelForCausalLM"
            )
        hf.eval()  # dropout would make every number random
        self.hf = hf
        self.seam: Seam = find_seam(hf, self.name)
        self.notes: list[str] = []  # what a user should know about how it was loaded
        self.restart: Forms | None = None  # until headlab.check proves it
        self.causal = False  # until headlab.check proves it
        self.bare = False  # until headlab.check proves that ids alone are enough
        self.cuts_logits = False  # until headlab.check proves it
        self.norms: list[Norm] = []  # that may run in one kernel, once headlab.check proves it
        self.mlps: list[GatedMlp] = []  # likewise, their elementwise part
        self.records = True  # False: its steps turned out not to be recordable on a GPU
        self.replayed: set[Hashable] = set()  # kinds of steps whose replays were seen to be right
        self.rotary: Rotary | None = None  # its own function, once headlab.check proves ours
        self.budget: int | None = None  # tokens in a pass, once the engine has found it
        self.back_offs = 0  # how often memory ran out and a pass was made smaller
        self._heeds_positions: bool | None = None  # until somebody gives some
        self._gates: Gates | None = None
        self._positional = False  # the active gates or their reference differ between positions
        inner = hf.get_base_model() if hasattr(hf, "get_base_model") else hf  # PEFT wraps
        self.takes_positions = "position_ids" in inspect.signature(inner.forward).parameters

    # --- what it is ---

    @property
    def n_layers(self) -> int:
        return len(self.seam.projections)

    @property
    def n_heads(self) -> int:
        return self.seam.heads

    @property
    def head_width(self) -> int:
        return self.seam.width

    @property
    def restartable(self) -> bool:
        """Whether a pass may begin at a layer, as `headlab.check` has proved."""
        return self.restart is not None

    @property
    def sparse(self) -> Gating | None:
        """The gates of its attention's edges; None of a dense model."""
        return find_gating(self.seam)

    @property
    def vocabulary(self) -> int:
        return self.hf.get_input_embeddings().weight.shape[0]

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.hf.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def device(self) -> torch.device:
        return self.hf.get_input_embeddings().weight.device

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens, None where neither model nor tokenizer sets one."""
        config = self.hf.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        if limit is None and self.tokenizer is not None:
            limit = self.tokenizer.model_max_length
        return limit if limit and limit < 10**9 else None

    def describe(self) -> dict[str, Any]:
        """What a report says about the model."""
        return {
            "model": self.name,
            "architecture": type(self.hf).__name__,
            "layers": self.n_layers,
            "heads": self.n_heads,
            "kv_heads": self.seam.kv_heads,
            "head_width": self.head_width,
            "parameters": self.n_parameters,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attention": self.hf.config._attn_implementation,
            "bos": f"{'yes' if self.bos else 'no'} ({self.bos_policy})",
            "max_length": self.max_length,
            "seam": self.seam.paths[0],
            "seam_found_by": self.seam.found,
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}, {self.n_layers} layers x {self.n_heads} heads, "
            f"{self.dtype}, {self.device})".replace("torch.", "")
        )

    # --- tokens ---

    def tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        padding: Literal["right", "left"] = "right",
        *,
        position_ids: PerPrompt = None,
        hidden: PerPrompt = None,
    ) -> Tokens:
        """One padded batch. A tensor of shape [example, position] is taken as it is.

        `position_ids` are the positions of a prompt's tokens where they are not 0, 1, 2 ...;
        `hidden` marks tokens that keep their positions and that nobody may look at.
        """
        if isinstance(prompts, Tensor) and prompts.ndim == 2:
            prompts = list(prompts)
        if isinstance(prompts, (str, Tensor)):
            prompts = [prompts]
        if not len(prompts):
            raise HeadlabError("no prompts were given")
        rows = [self.ids(prompt) for prompt in prompts]
        given, unseen = self.placed(rows, position_ids, hidden)
        longest = max(len(row) for row in rows)

        def padded(parts: Sequence[Tensor], pad: int, dtype: torch.dtype) -> Tensor:
            found = torch.full((len(rows), longest), pad, dtype=dtype)
            for row, part in zip(found, parts, strict=True):
                start = 0 if padding == "right" else longest - len(part)
                row[start : start + len(part)] = part
            return found.to(self.device)

        return Tokens(
            padded(rows, self.pad_id, torch.long),
            padded([torch.ones(len(row)) for row in rows], 0, torch.bool),
            right=padding == "right",
            given=None if given is None else padded(given, 0, torch.long),
            hidden=None if unseen is None else padded(unseen, 0, torch.bool),
        )

    def placed(
        self, prompts: Sequence[Tensor], position_ids: PerPrompt, hidden: PerPrompt
    ) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Positions and hidden tokens of each prompt, checked; None where all are as always."""
        given, unseen = super().placed(prompts, position_ids, hidden)
        if not (given is None and unseen is None) and not self.heeds_positions:
            raise HeadlabError(
                f"{self.name} does not heed positions that it is given, so its prompts can have "
                "no gaps and no hidden tokens"
            )
        return given, unseen

    @property
    def heeds_positions(self) -> bool:
        """Whether positions that are given change its logits, as two passes show, once: with ALiBi
        they need not, even where they are taken."""
        if self._heeds_positions is None:
            if self._gates is not None:
                raise HeadlabError(
                    f"whether {self.name} heeds positions is seen in a clean run; make the tokens "
                    "before the gated block"
                )
            ids = torch.arange(1, 7, device=self.device)[None] * self.vocabulary // 7
            near = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
            gap = min(16, (self.max_length or 22) - ids.shape[1])
            far = near._replace(given=near.positions + gap * (near.positions > 2))
            with torch.no_grad():
                here, there = (self.hf(**self.inputs(each)).logits for each in (near, far))
            # Where they are not heeded the two passes are the same.
            moved = (here - there).abs().max() > 1e-4 * here.abs().max()
            self._heeds_positions = self.takes_positions and bool(moved)
        return self._heeds_positions

    @property
    def pad_id(self) -> int:
        """Any valid id: pads are masked."""
        own = self.tokenizer.pad_token_id if self.tokenizer is not None else None
        return own if own is not None and own < self.vocabulary else 0

    # --- passes ---

    def __call__(
        self,
        prompts: Prompt | Sequence[Prompt] | Tokens,
        padding: Literal["right", "left"] = "right",
    ) -> Tensor:
        """Logits [row, position, vocabulary]. Under `gated` with several masks, every mask is run
        on every prompt: row = mask · prompts + prompt."""
        tokens = prompts if isinstance(prompts, Tokens) else self.tokens(prompts, padding)
        if self._positional and not tokens.mask[:, 0].all():
            raise HeadlabError(
                "gates or a reference that differ between positions need padding on the right"
            )
        if self._gates is not None and self._gates.n_masks > 1:
            tokens = tokens.repeated(self._gates.n_masks)
        learning = self._gates is not None and self._gates.values.requires_grad
        with torch.set_grad_enabled(torch.is_grad_enabled() and learning):
            return self.hf(**self.inputs(tokens)).logits

    def logits_at(self, tokens: Tokens, rows: Tensor, positions: Tensor) -> Tensor:
        """Logits at the given places only, [place, vocabulary]; the rest is never computed.

        The model's own last steps run (a cap or a scale on the logits is elementwise); only their
        input is cut to the places: after the last layer's attention where that is proved, else
        before the vocabulary. Where neither is proved, all logits are computed.
        """
        if not self.cuts_logits:
            logits = self.hf(**self.inputs(tokens)).logits
            return logits[rows.to(logits.device), positions.to(logits.device)]
        early = self.restart is not None and self.restart.ends_early

        def cut(_: nn.Module, args: tuple[Any, ...]) -> Any:
            hidden = args[0]  # [row, position, hidden]
            if early:
                return (hidden.flatten(0, 1)[None, : len(rows)], *args[1:])
            places = rows.to(hidden.device), positions.to(hidden.device)
            return (hidden[places][None], *args[1:])

        with ExitStack() as stack:
            vocabulary = self.hf.get_output_embeddings()
            stack.callback(vocabulary.register_forward_pre_hook(cut).remove)
            if early:
                stack.enter_context(ended_at(self, rows, positions))
            return self.hf(**self.inputs(tokens)).logits[0]

    def inputs(self, tokens: Tokens) -> dict[str, Any]:
        """What the transformers model is called with.

        Pads on the right come after all that is read, and a causal model does not look ahead: there
        they are taken for tokens, and attention needs no mask, which makes it a good deal faster.
        Such ids are given alone: at a mask or at positions transformers looks, and waits for a GPU;
        at its own positions as well, but for a cache.
        """
        cache = tokens.cache
        if tokens.right and self.causal:
            if self.bare and tokens.given is None and tokens.hidden is None:
                return {
                    "input_ids": tokens.ids,
                    "past_key_values": Forgetful() if cache is None else cache,
                    "use_cache": False,
                }
            tokens = tokens._replace(mask=torch.ones_like(tokens.mask))
        inputs: dict[str, Any] = {
            "input_ids": tokens.ids,
            # With positions never None: where they jump, transformers would see packed texts.
            "attention_mask": tokens.keys.long(),
            "use_cache": False,
        }
        if cache is not None:
            inputs["past_key_values"] = cache
        if self.takes_positions:
            inputs["position_ids"] = tokens.positions
        return inputs

    @contextmanager
    def gated(
        self,
        gates: Gates | Tensor,
        reference: Reference = ZERO,
        layers: Sequence[int] | None = None,
        boost: Tensor | None = None,
        rows_of_a_mask: int | None = None,
    ) -> Iterator[Gates]:
        """Within the block every pass of the model has its heads gated: in every layer, or only in
        `layers`, where the caller knows that the gates of all others are 1. `boost` is added to
        the gated heads: directions [mask|1, example|1, layer, head, width]. With `rows_of_a_mask` a
        layer may have the rows of the first masks only, the others joining later."""
        gates = gates if isinstance(gates, Gates) else Gates(gates)
        self.require_shape(gates)
        if self._gates is not None:
            raise HeadlabError("gates are already active; leave the first gated block")
        if not isinstance(reference, Reference):
            raise HeadlabError(
                f"{reference!r} is not a reference; headlab.mean_reference and "
                "headlab.counterfactual_reference make one"
            )

        shape = None if reference.values is None else reference.values.shape
        if shape and (shape[0], *shape[-2:]) != (self.n_layers, self.n_heads, self.head_width):
            raise HeadlabError(
                f"a reference of {shape[0]} layers x {shape[-2]} heads of width {shape[-1]} is of "
                f"another model than {self.name}"
            )

        def gate(layer: int, z: Tensor) -> Tensor:
            rows, positions = z.shape[:2]
            masks = rows // rows_of_a_mask if rows_of_a_mask else gates.n_masks
            g = gates.for_rows(layer, rows, positions, masks)
            gated = gate_heads(z, g, reference.for_rows(layer, rows, masks, positions))
            if boost is None:
                return gated
            pushed = boost[:, :, layer].expand(gates.n_masks, rows // gates.n_masks, -1, -1)
            pushed = pushed.reshape(rows, 1, *pushed.shape[2:]).to(z.device)
            wide = torch.promote_types(z.dtype, torch.float32)
            return (gated.to(wide) + pushed.to(wide)).to(z.dtype)

        self._gates = gates
        self._positional = gates.values.shape[-1] > 1 or bool(shape and shape[2] > 1)
        try:
            with self._hooked(gate, layers):
                yield gates
        finally:
            self._gates, self._positional = None, False

    def require_shape(self, gates: Gates) -> None:
        """Refuse gates of another model's shape."""
        n_layers, n_heads = gates.values.shape[2:4]
        if (n_layers, n_heads) != (self.n_layers, self.n_heads):
            raise HeadlabError(
                f"gates for {n_layers} layers x {n_heads} heads do not fit {self.name}, "
                f"which has {self.n_layers} x {self.n_heads}"
            )

    def require_clean(self) -> None:
        """Refuse to take a gated run for a clean one."""
        if self._gates is not None:
            raise HeadlabError("references come from clean runs; leave the gated block first")

    def observe(self, tokens: Tokens, visit: Callable[[int, Tensor], None]) -> None:
        """One clean pass that shows `visit` each layer's z, [example, position, head, width]."""
        self.require_clean()

        def cut(_: nn.Module, args: tuple[Any, ...]) -> Any:
            return (args[0][:1, :1], *args[1:])  # nobody reads the logits

        with ExitStack() as stack:
            stack.enter_context(self._hooked(visit))
            stack.enter_context(torch.no_grad())
            if self.cuts_logits:
                vocabulary = self.hf.get_output_embeddings()
                stack.callback(vocabulary.register_forward_pre_hook(cut).remove)
            self.hf(**self.inputs(tokens))

    def head_outputs(self, prompts: Prompt | Sequence[Prompt] | Tokens) -> Tensor:
        """z of every head in a clean run: [layer, example, position, head, width]."""
        tokens = prompts if isinstance(prompts, Tokens) else self.tokens(prompts)
        seen: list[Tensor] = []
        self.observe(tokens, lambda _, z: seen.append(z.detach().to(self.device, copy=True)))
        return torch.stack(seen)

    @contextmanager
    def _hooked(
        self,
        change: Callable[[int, Tensor], Tensor | None],
        layers: Sequence[int] | None = None,
    ) -> Iterator[None]:
        """The seam: `change(layer, z)` sees each projection's input by head and may replace it."""

        def hook_for(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
            def hook(_: nn.Module, args: tuple[Any, ...]) -> Any:
                z = args[0]  # [row, position, head · width]
                changed = change(layer, z.unflatten(-1, (self.n_heads, self.head_width)))
                return None if changed is None else (changed.flatten(-2), *args[1:])

            return hook

        with ExitStack() as stack:
            for layer in range(self.n_layers) if layers is None else layers:
                projection = self.seam.projections[layer]
                handle = projection.register_forward_pre_hook(hook_for(layer))
                stack.callback(handle.remove)
            yield
