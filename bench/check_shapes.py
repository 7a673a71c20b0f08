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
from common import SHAPES

from headlab import Model, check
from headlab.loading import DTYPES


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
