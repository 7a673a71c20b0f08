"""The whole masking study of one model at size paper, timed: random weights of a published shape.

    python bench/masking.py --shape llama-3.1-8b

Tokens are those of the embedded model's tokenizer, of which every shape has enough. Random weights
write no "]": every answer runs to its last token, as long as an answer can take.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import transformers as hf
from common import SHAPES

import headlab
from headlab import Model
from headlab.loading import DTYPES, load_texts
from headlab.studies.masking.cell import from_record, run_cell, work
from headlab.studies.spec import make_spec


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    options.add_argument("--rank-by", default="probe")
    options.add_argument("--size", default="paper")
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = options.parse_args()
    torch.manual_seed(0)
    with torch.device(asked.device):
        network = hf.AutoModelForCausalLM.from_config(
            SHAPES[asked.shape](), dtype=DTYPES[asked.dtype]
        )
    network.requires_grad_(False)
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    model = Model(network, load_texts("smollm2").tokenizer, name=asked.shape)
    headlab.check(model).require()
    spec = make_spec(
        {"study": "masking", "size": asked.size, "models": ["smollm2"], "rank_by": [asked.rank_by]}
    )
    (cell,) = spec.cells()  # type: ignore[attr-defined]
    if asked.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    done = [0]

    def progress(pairs: int) -> None:
        done[0] += pairs

    with tempfile.TemporaryDirectory() as folder:
        found = from_record(run_cell(cell, model, progress, Path(folder)))
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if asked.device == "cuda" else float("nan")
    heads = model.n_layers * model.n_heads
    print(
        f"{asked.shape} {asked.dtype}, {heads} heads, ranked by {asked.rank_by}, size "
        f"{asked.size}: {len(found.texts):,} texts of masks and questions in {seconds / 60:.1f} "
        f"min, peak {peak:.1f} GiB; progress counted {done[0]:,} of {work(cell, heads).pairs:,}; "
        f"passes made smaller: {found.backed_off}",
        flush=True,
    )


if __name__ == "__main__":
    main()
