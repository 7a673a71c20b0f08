"""Short names for models, and which models are loadable here without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headlab.embedded import HUB_ID, embedded_gguf

# The models of the studies.
ALIASES = {
    "smollm2": HUB_ID,
    "gpt2": "openai-community/gpt2",
    "olmo-7b": "allenai/OLMo-7B-hf",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "llama-3.2-3b-instruct": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "qwen2.5-math-1.5b": "Qwen/Qwen2.5-Math-1.5B",
    "qwen2.5-math-7b": "Qwen/Qwen2.5-Math-7B",
}


@dataclass(frozen=True)
class Known:
    """One model a user can name."""

    name: str
    hub_id: str
    here: bool  # loads without a network
    where: str


def known_models() -> list[Known]:
    """The aliases first, then what else lies in the hub cache."""
    cached = cached_models()
    models = []
    for alias, hub_id in ALIASES.items():
        if alias == "smollm2" and embedded_gguf() is not None:
            models.append(Known(alias, hub_id, True, "embedded"))
        elif hub_id in cached:
            models.append(Known(alias, hub_id, True, "hub cache"))
        else:
            models.append(Known(alias, hub_id, False, "download"))
    for hub_id in sorted(cached - set(ALIASES.values())):
        models.append(Known(hub_id, hub_id, True, "hub cache"))
    return models


def cached_models() -> set[str]:
    """Hub ids whose config and safetensors weights are in the hub cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    found = set()
    for folder in Path(HF_HUB_CACHE).glob("models--*"):
        for snapshot in folder.glob("snapshots/*"):
            if (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors")):
                found.add(folder.name.removeprefix("models--").replace("--", "/"))
    return found
