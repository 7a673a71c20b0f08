"""Tiny random models of many architectures, and a tiny tokenizer: exactness needs no meaning."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headlab import Model
from headlab.tasks import ioi
from headlab.tasks.words import NAMES

VOCABULARY = 96
# Llama-like sizes, grouped queries, and heads wider than hidden / heads: 4 x 12 into 32.
_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WIDE = {**_LLAMA, "head_dim": 12}
_GPT = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}

CONFIGS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "gpt2": lambda: hf.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=64, **_GPT),
    "gpt-neox": lambda: hf.GPTNeoXConfig(
        **{key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"}
    ),
    "gptj": lambda: hf.GPTJConfig(
        n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_positions=64, **_GPT
    ),
    "opt": lambda: hf.OPTConfig(
        hidden_size=32,
        ffn_dim=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        pad_token_id=0,
        **_GPT,
    ),
    "llama": lambda: hf.LlamaConfig(**_LLAMA),
    "llama-wide": lambda: hf.LlamaConfig(**_WIDE),
    "llama-mqa": lambda: hf.LlamaConfig(**{**_LLAMA, "num_key_value_heads": 1}),
    "mistral": lambda: hf.MistralConfig(**_WIDE, sliding_window=4),
    "mixtral": lambda: hf.MixtralConfig(**_LLAMA, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": lambda: hf.Qwen2Config(**_LLAMA),
    "qwen3": lambda: hf.Qwen3Config(**_WIDE),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(
        **_WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
    "gemma2": lambda: hf.Gemma2Config(**_WIDE, query_pre_attn_scalar=12, sliding_window=4),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **_WIDE,
        query_pre_attn_scalar=12,
        sliding_window=4,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "olmo": lambda: hf.OlmoConfig(**_LLAMA),
    "olmo2": lambda: hf.Olmo2Config(**_LLAMA),
    "phi3": lambda: hf.Phi3Config(**_LLAMA),
    "falcon": lambda: hf.FalconConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        new_decoder_architecture=True,
        num_kv_heads=2,
        **_GPT,
    ),
    "falcon-mqa": lambda: hf.FalconConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, multi_query=True, **_GPT
    ),
    "falcon-alibi": lambda: hf.FalconConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        multi_query=False,
        alibi=True,
        parallel_attn=False,
        bias=True,
        **_GPT,
    ),
    "bloom": lambda: hf.BloomConfig(hidden_size=32, n_layer=3, n_head=4, **_GPT),
    "starcoder2": lambda: hf.Starcoder2Config(**_LLAMA, use_bias=True),
    "granite": lambda: hf.GraniteConfig(
        **_LLAMA, residual_multiplier=0.5, attention_multiplier=0.2
    ),
    "cohere": lambda: hf.CohereConfig(**_LLAMA),
}
ARCHITECTURES = list(CONFIGS)
# Not in the table of module paths: found by structure alone.
STRANGERS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "gpt-neo": lambda: hf.GPTNeoConfig(
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        **_GPT,
    ),
    "stablelm": lambda: hf.StableLmConfig(**_LLAMA),
    "glm": lambda: hf.GlmConfig(**_WIDE),
    "gpt-oss": lambda: hf.GptOssConfig(**_WIDE, num_local_experts=4, num_experts_per_tok=2),
    "gpt-bigcode": lambda: hf.GPTBigCodeConfig(
        n_embd=32, n_layer=3, n_head=4, n_positions=64, multi_query=True, **_GPT
    ),
    "mpt": lambda: hf.MptConfig(d_model=32, n_heads=4, n_layers=3, **_GPT),
}


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32) -> hf.PreTrainedModel:
    """The same random weights every time; large enough that every head has an effect."""
    config = (CONFIGS.get(name) or STRANGERS[name])()
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random).to(parameter.dtype)
            parameter.add_(0.15 * noise)  # biases and norms too: zeros would hide mistakes
    return model.eval()


def random_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, length), generator=random)


@cache
def tiny_tokenizer() -> hf.PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges, so that spaces, joins and merges behave as in real life."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    letters = sorted({c for c, _ in _byte_level("the cat sat on mary john an apple é")})
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=letters,
        show_progress=False,
    )
    core.train_from_iterator(["the cat sat on the mat, mary gave john the apple"] * 20, trainer)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def _byte_level(text: str) -> list[tuple[str, tuple[int, int]]]:
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [(letter, where) for piece, where in pieces for letter in piece]


def save_tiny(folder: Path, name: str = "llama") -> Path:
    """A model folder as a user would have it."""
    tiny(name).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_tiny_gguf(path: Path) -> Path:
    """tiny("llama") and the tiny tokenizer as one GGUF file, in float32."""
    import gguf

    config, weights = tiny("llama").config, tiny("llama").state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(VOCABULARY)
    core = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(core["vocab"], key=core["vocab"].get))
    writer.add_token_merges([" ".join(pair) for pair in core["merges"]])
    writer.add_token_types([3, 3, 3] + [1] * (len(core["vocab"]) - 3))  # control tokens first
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, tensor in weights.items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads:  # the format keeps the two halves of a rotary pair side by side
            width = tensor.shape[0] // heads
            halves = tensor.view(heads, 2, width // 2, -1)
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def worded() -> Model:
    """A tiny model whose tokens are whole words: those of the generated tasks."""
    words = {*NAMES, *ioi.PLACES, *ioi.OBJECTS}
    words |= {word for template in ioi.TEMPLATES for word in template.replace(",", " ,").split()}
    numbers = {word: number for number, word in enumerate(sorted(words))}
    core = Tokenizer(models.WordLevel(numbers, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = hf.LlamaConfig(**{**tiny("llama").config.to_dict(), "vocab_size": len(numbers)})
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=core)
    return Model(hf.LlamaForCausalLM(config), tokenizer, name="worded")


@cache
def lettered(positions: int = 2048) -> Model:
    """A tiny model that can read and write any text, byte by byte."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["what is the answer? the answer is in the question"] * 20, trainer)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    config = {**tiny("llama").config.to_dict(), "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    network = hf.LlamaForCausalLM(
        hf.LlamaConfig(**{**config, "max_position_embeddings": positions})
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape))
    return Model(network.eval(), tokenizer, name="lettered")


def save_lettered(folder: Path) -> Path:
    lettered().hf.save_pretrained(folder)
    lettered().tokenizer.save_pretrained(folder)
    return folder
