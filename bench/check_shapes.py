"""Run `headlab.check` on models of real size with random weights and print the largest differences.

    python bench/check_shapes.py --shapes llama-3.1-8b,gemma-2-2b --dtypes float32,bfloat16

The shapes are the published ones; no weights are downloaded. Differences are absolute; every proof
has its own allowance (`headlab check --help`), and a model that exceeds one is refused.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers as hf

from headlab import Model, check
from headlab.loading import DTYPES

SHAPES = {
    "gpt2": lambda: hf.GPT2Config(),
    "pythia-410m": lambda: hf.GPTNeoXConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    "smollm2-135m": lambda: hf.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
    "llama-3.2-1b": lambda: hf.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    "llama-3.2-3b": lambda: hf.LlamaConfig(
        vocab_size=128256,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "llama-3.1-8b": lambda: hf.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
    "qwen3-0.6b": lambda: hf.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    ),
    "gemma-2-2b": lambda: hf.Gemma2Config(),
    "olmo-7b": lambda: hf.OlmoConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008
    ),
    "falcon-7b": lambda: hf.FalconConfig(),
    "bloom-560m": lambda: hf.BloomConfig(
        vocab_size=250880, hidden_size=1024, n_layer=24, n_head=16
    ),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shapes", default=",".join(SHAPES))
    options.add_argument("--dtypes", default="float32,bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = options.parse_args()
    print(f"torch {torch.__version__}, transformers {hf.__version__}, {asked.device}")
    for name in asked.shapes.split(","):
        for dtype in asked.dtypes.split(","):
            torch.manual_seed(0)
            with torch.device(asked.device):
                network = hf.AutoModelForCausalLM.from_config(SHAPES[name](), dtype=DTYPES[dtype])
            model = Model(network.requires_grad_(False), name=name)
            check(model)  # the first pass on a device sets things up
            start = time.perf_counter()
            result = check(model)
            seconds = time.perf_counter() - start
            proofs = " ".join(
                f"{proof.name}={proof.difference:.1e}" if proof.difference else f"{proof.name}=0"
                for proof in result.proofs
            )
            shape = f"{model.n_layers}x{model.n_heads} heads ({model.seam.kv_heads} kv)"
            verdict = "passed" if result.passed else "FAILED"
            print(
                f"{name} {dtype}: {verdict}, {shape}, width {model.head_width}, "
                f"{model.n_parameters / 1e6:.0f} M parameters, {seconds:.2f} s, "
                f"restart {'on' if model.restartable else 'OFF'}; {proofs}",
                flush=True,
            )
            del model, network
            if asked.device.startswith("cuda"):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
