"""What all benchmarks share: models of published shapes with random weights, clocks, ceilings."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import headlab
from headlab import HeadlabError, Model
from headlab.files import require_folder, write_whole
from headlab.loading import DTYPES, usable_device
from headlab.studies.provenance import machine, versions


class Kept:
    """Results as JSON, added to those that a file has; whole at every moment."""

    def __init__(self, path: Path | None):
        self._path = path
        self.found: dict[str, Any] = {}
        if path is None:
            return
        require_folder(path.parent)
        if path.is_dir():
            raise HeadlabError(f"{path} is a folder; give a file")
        if path.exists():
            try:
                self.found = json.loads(path.read_text())
            except ValueError as error:
                raise HeadlabError(f"{path} is no JSON ({error}); give another --out") from error
            if not isinstance(self.found, dict):
                raise HeadlabError(f"{path} has no results by name; give another --out")

    def write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self.found, indent=1))


def plainly(main: Callable[[], None]) -> None:
    """Run it; what is wrong, or an interruption, is one sentence."""
    try:
        main()
    except HeadlabError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; what was finished is in --out, if that was given")


SHAPES: dict[str, Callable[[], hf.PretrainedConfig]] = {
    "small": lambda: hf.LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
    ),
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
GIB = 2**30


def words(size: int) -> hf.PreTrainedTokenizerFast:
    """A tokenizer whose n-th token is the word "w<n>"."""
    core = Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=core)


def text(ids: list[int]) -> str:
    """A prompt of these tokens."""
    return " ".join(f"w{n}" for n in ids)


def random_model(shape: str, dtype: str, device: str) -> Model:
    """A published shape with random weights."""
    return model_of(SHAPES[shape](), shape, dtype, device)


def model_of(config: hf.PretrainedConfig, name: str, dtype: str, device: str) -> Model:
    """Random, frozen weights, checked; no token ends its texts."""
    usable_device(device)
    _require_room(config, name, dtype, device)
    torch.manual_seed(0)
    with torch.device(device):
        network = hf.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    network.requires_grad_(False)
    network.config.eos_token_id = network.generation_config.eos_token_id = None
    model = Model(network, words(network.config.vocab_size), name=name)
    headlab.check(model).require()
    return model


def _require_room(config: hf.PretrainedConfig, name: str, dtype: str, device: str) -> None:
    """For weights; passes take more."""
    with torch.device("meta"):
        network = hf.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    needed = sum(each.numel() * each.element_size() for each in network.parameters())
    if device == "cpu":
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        room, _ = torch.cuda.mem_get_info()
    if needed > room:
        raise HeadlabError(
            f"the weights of {name} take {needed / GIB:.0f} GiB in {dtype}, and there are "
            f"{room / GIB:.0f}; take another shape, or on a CPU --small"
        )


def here() -> dict[str, Any]:
    """What speed depends on: the machine, its processor by the name it gives itself, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else "unknown"
    today = datetime.date.today().isoformat()
    return {**machine(), "processor": processor, "versions": versions(), "day": today}


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds, and what the work gives."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def matrix_rate(dtype: torch.dtype, device: str, least: float = 2.0) -> float:
    """Operations a second of a large matrix product, again and again for some seconds: works last
    as long, and a chip that gets warm is slower than in its first milliseconds."""
    n = 8192 if device == "cuda" else 1536
    a, b = torch.randn(2, n, n, device=device).to(dtype)

    def several() -> None:
        for _ in range(8):
            a @ b

    seconds: list[float] = []
    while sum(seconds) < least:
        seconds.append(timed(several, device)[0])
    late = seconds[len(seconds) // 2 :]
    return 8 * 2 * n**3 / statistics.median(late)


def bandwidth(device: str) -> float:
    """Bytes a second that are read in a large sum."""
    n = 2**30 if device == "cuda" else 2**26
    numbers = torch.ones(n, device=device, dtype=torch.bfloat16)
    seconds = [timed(numbers.sum, device)[0] for _ in range(8)]
    return 2 * n / statistics.median(seconds[2:])


def block_weights(model: Model) -> int:
    """Weights of all layers, which every token passes."""
    return sum(p.numel() for block in model.seam.blocks for p in block.parameters())
