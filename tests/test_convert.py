"""Converted nanoGPT checkpoints compute what they computed; what cannot be read is one sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from commands import error_of, run
from safetensors.torch import save_file
from tiny import VOCABULARY, random_ids, tiny, tiny_tokenizer
from torch import nn

import headlab
from headlab import HeadlabError
from headlab.sparse.convert import convert_nanogpt

LAYERS, HEADS, WIDTH, POSITIONS = 3, 4, 32, 64
Layout = dict[str, object]


class Norm(nn.Module):
    """nanoGPT's LayerNorm, whose bias may be absent."""

    def __init__(self, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, positions: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.register_buffer("bias", torch.ones(positions, positions).tril()[None, None])
        self.b = None

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, 2)
        )
        s = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        s = s.masked_fill(self.bias[:, :, :length, :length] == 0, -torch.inf)
        weights = s.softmax(-1)
        if self.b is not None:
            weights = weights * (s + self.b[:, None, None] > 0)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, positions: int, bias: bool):
        super().__init__()
        self.ln_1, self.ln_2 = Norm(width, bias), Norm(width, bias)
        self.attn = Attention(width, heads, positions, bias)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(width, 4 * width, bias=bias),
                "c_proj": nn.Linear(4 * width, width, bias=bias),
            }
        )
        self.approximate = "none"

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        inner = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate=self.approximate)
        return x + self.mlp["c_proj"](inner)


class NanoGPT(nn.Module):
    """A GPT as nanoGPT writes it, with the gates of the sparse ones."""

    def __init__(
        self,
        bias: bool = True,
        tied: bool = True,
        vocabulary: int = VOCABULARY,
        layers: int = LAYERS,
        heads: int = HEADS,
        width: int = WIDTH,
        positions: int = POSITIONS,
    ):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(positions, width),
                "h": nn.ModuleList(Block(width, heads, positions, bias) for _ in range(layers)),
                "ln_f": Norm(width, bias),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.transformer["wte"].weight = self.lm_head.weight
        random = torch.Generator().manual_seed(1)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                parameter.add_(0.25 * noise)
        self.requires_grad_(False)

    def forward(self, ids):
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x))

    def gate(self, bias: torch.Tensor) -> NanoGPT:
        for block, own in zip(self.transformer["h"], bias, strict=True):
            block.attn.b = own.double()
        return self


def gates(layers: int = LAYERS, heads: int = HEADS) -> torch.Tensor:
    """Around 0, where logits are: some edges open, some closed."""
    return torch.randn(layers, heads, generator=torch.Generator().manual_seed(2)) / 4


def saved(tmp_path: Path, state: object) -> Path:
    torch.save(state, tmp_path / "final.pth")
    return tmp_path / "final.pth"


def convert(file: Path, **options):
    options = {"tokenizer": "none", "heads": HEADS, **options}
    return convert_nanogpt(file, file.parent / "out", **options)


def same_logits(folder: Path, model: NanoGPT) -> None:
    loaded = headlab.load(folder, dtype="float64", device="cpu")
    ids = random_ids(2, 12) % loaded.vocabulary
    found = loaded(ids)
    expected = model(ids)[:, :, : found.shape[2]]
    assert (found - expected).abs().max() < 1e-10
    assert expected.std() > 0.1


def leftovers(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.iterdir()} - {"final.pth"}


# --- the same numbers ---


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_dense_checkpoint_computes_what_it_computed(tmp_path, bias, tied):
    model = NanoGPT(bias, tied)
    done = convert(saved(tmp_path, model.state_dict()), dense=True)
    same_logits(done.folder, model)
    config = json.loads((done.folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied
    assert "headlab_sparse" not in config
    assert any("zeros" in note for note in done.notes) is not bias


@pytest.mark.parametrize("b", [-0.5, 0.0, 3.0])
def test_one_number_gates_all_heads(tmp_path, b):
    model = NanoGPT()
    done = convert(saved(tmp_path, model.state_dict()), bias=b)
    same_logits(done.folder, model.gate(torch.full((LAYERS, HEADS), b)))
    ids = random_ids(2, 12)
    sparse = done.model(ids)
    with done.model.sparse.dense():
        assert not torch.allclose(sparse, done.model(ids)), "the gates do something"


def layouts(state: dict[str, torch.Tensor]) -> dict[str, Layout]:
    arguments = {"n_head": HEADS, "n_layer": LAYERS, "bias": True}
    return {
        "bare": dict(state),
        "nanogpt": {"model": state, "model_args": arguments, "iter_num": 3, "config": {"lr": 1e-4}},
        "state_dict": {"state_dict": state, "config": arguments},
        "compiled": {"model": {f"_orig_mod.{key}": value for key, value in state.items()}},
        "both": {f"module._orig_mod.{key}": value for key, value in state.items()},
    }


@pytest.mark.parametrize("layout", ["bare", "nanogpt", "state_dict", "compiled", "both"])
@pytest.mark.parametrize("name", ["attn.gate_bias", "attn.b", "sparse.b"])
def test_gates_are_found_in_every_layout(tmp_path, layout, name):
    model = NanoGPT()
    state = model.state_dict()
    state |= {f"transformer.h.{layer}.{name}": own for layer, own in enumerate(gates())}
    stored = layout in ("nanogpt", "state_dict")
    heads = None if stored else HEADS
    done = convert(saved(tmp_path, layouts(state)[layout]), heads=heads)
    same_logits(done.folder, model.gate(gates()))
    told = "as the checkpoint says" if stored else "as --heads says"
    assert f"4 heads in a layer, {told}" in done.notes
    assert any(f"b is each layer's {name}" in note for note in done.notes)
    assert not any("not used" in note for note in done.notes)


def test_a_gate_of_one_element_is_for_all_heads_of_its_layer(tmp_path):
    model, own = NanoGPT(), torch.tensor([-0.1, 0.0, 0.2])
    state = model.state_dict()
    state |= {f"transformer.h.{layer}.attn.gate": each for layer, each in enumerate(own)}
    done = convert(saved(tmp_path, state))
    same_logits(done.folder, model.gate(own[:, None].expand(LAYERS, HEADS)))


def test_more_than_nine_layers_keep_their_order(tmp_path):
    model = NanoGPT(layers=11, width=16)
    state = model.state_dict()
    own = gates(11)
    state |= {f"transformer.h.{layer}.attn.gate": own[layer] for layer in reversed(range(11))}
    same_logits(convert(saved(tmp_path, state)).folder, model.gate(own))


def test_gelu_new_is_the_users_and_gelu_the_default(tmp_path):
    model = NanoGPT()
    done = convert(saved(tmp_path, model.state_dict()), dense=True, activation="gelu_new")
    for block in model.transformer["h"]:
        block.approximate = "tanh"
    same_logits(done.folder, model)
    assert "activation gelu_new: by tanh, as OpenAI's GPT-2 computes it" in done.notes


def test_causal_masks_are_neither_gates_nor_listed(tmp_path):
    model = NanoGPT(positions=16, heads=256, width=256, layers=1)  # 16 x 16 numbers, as heads
    state = model.state_dict()
    state["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    file = saved(tmp_path, state)
    with pytest.raises(
        HeadlabError, match=r"no gates that can be told by their names; give --bias"
    ):
        convert(file, heads=256)
    done = convert(file, heads=256, dense=True)
    assert not any("not used" in note for note in done.notes)
    same_logits(done.folder, model)


def test_without_word_heads_are_64_wide(tmp_path):
    model = NanoGPT(width=128, heads=2, layers=1)
    done = convert(saved(tmp_path, model.state_dict()), heads=None, dense=True)
    assert done.model.n_heads == 2
    assert any("each 64 wide" in note for note in done.notes)
    same_logits(done.folder, model)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["float16", "bfloat16", "float32"]
)
def test_weights_keep_their_dtype(tmp_path, dtype):
    model = NanoGPT(bias=False).to(dtype)
    done = convert(saved(tmp_path, model.state_dict()), dense=True)
    assert json.loads((done.folder / "config.json").read_text())["dtype"] == str(dtype)[6:]
    same_logits(done.folder, model.double())


def test_files_of_old_pytorch_are_read(tmp_path):
    model = NanoGPT()
    file = tmp_path / "final.pth"
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    same_logits(convert(file, dense=True).folder, model)


# --- vocabulary and tokenizer ---


def test_the_padded_vocabulary_of_gpt2_is_cut(tmp_path):
    model = NanoGPT(vocabulary=50304, layers=1, heads=2, width=8, positions=16)
    done = convert(saved(tmp_path, model.state_dict()), heads=2, bias=0.0)
    assert done.model.hf.config.vocab_size == 50257
    assert done.model.hf.get_input_embeddings().weight.shape == (50257, 8)
    assert any("50,257 tokens, cut from 50,304 rows" in note for note in done.notes)
    assert done.model.hf.config.eos_token_id == 50256
    same_logits(done.folder, model.gate(torch.zeros(1, 2)))


def test_padding_that_differs_unties_nothing(tmp_path):
    state = NanoGPT(vocabulary=50304, layers=1, heads=2, width=8, positions=16).state_dict()
    state["lm_head.weight"] = state["lm_head.weight"].clone()
    state["lm_head.weight"][50257:] = 0
    done = convert(saved(tmp_path, state), heads=2, dense=True)
    assert done.model.hf.config.tie_word_embeddings


def test_a_vocabulary_of_another_size_is_left_as_it_is(tmp_path):
    done = convert(saved(tmp_path, NanoGPT(vocabulary=100).state_dict()), dense=True)
    assert done.model.hf.config.vocab_size == 100
    assert "vocabulary of 100 tokens" in done.notes
    assert done.model.tokenizer is None


def test_a_tokenizer_from_a_folder_goes_along_and_cuts_the_padding(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path / "words")
    tokens = len(tiny_tokenizer())
    model = NanoGPT(vocabulary=128)
    file = saved(tmp_path, model.state_dict())
    done = convert(file, dense=True, tokenizer=tmp_path / "words")
    assert done.model.hf.config.vocab_size == tokens
    assert done.model.token_texts(done.model.ids("the cat")) == ["the", " cat"]
    assert done.model.hf.config.eos_token_id == tiny_tokenizer().eos_token_id
    same_logits(done.folder, model)


def convert_offline(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The command with a hub cache of its own and no network."""
    file = saved(tmp_path, NanoGPT().state_dict())
    command = ["convert", str(file), "--out", str(tmp_path / "out"), "--heads", "4", "--dense"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "headlab", *command, "--quiet"],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_the_gpt2_tokenizer_comes_from_the_hub_cache_offline(tmp_path):
    repo = tmp_path / "home" / "hub" / "models--openai-community--gpt2"
    tiny_tokenizer().save_pretrained(repo / "snapshots" / ("0" * 40))
    tiny("gpt2").config.save_pretrained(repo / "snapshots" / ("0" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    done = convert_offline(tmp_path)
    assert done.stdout == f"{tmp_path / 'out'}\n", done.stderr
    model = headlab.load(tmp_path / "out", device="cpu")
    assert model.token_texts(model.ids("the cat")) == ["the", " cat"]


def test_without_the_gpt2_tokenizer_a_sentence_says_what_to_do(tmp_path):
    done = convert_offline(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the tokenizer gpt2 is not in the local hub cache and the hub cannot be reached; "
        "give --tokenizer FOLDER, or --tokenizer none to do without\n"
    )
    assert not (tmp_path / "out").exists()


# --- the folder ---


def test_the_card_says_what_was_converted(tmp_path):
    file = saved(tmp_path, {**NanoGPT().state_dict(), "transformer.extra": torch.zeros(2, 3)})
    done = convert(file, bias=1.5)
    card = (done.folder / "README.md").read_text()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"SHA-256 of final.pth: {digest}" in card
    assert "Plain transformers knows none of them and would load a dense model." in card
    assert "gates: open where s + b > 0, b = 1.5 for all heads" in card
    assert "activation gelu: exact" in card
    assert "1 tensor not used" in card
    assert "transformer.extra [2, 3]" in card
    assert str(tmp_path) not in card
    told = json.loads((done.folder / "config.json").read_text())["headlab_sparse"]
    assert told["source"] == "final.pth"
    assert told["sha256"] == digest
    assert leftovers(tmp_path) == {"out"}


def test_bias_stands_for_the_checkpoints_own_gates(tmp_path):
    model = NanoGPT()
    state = model.state_dict()
    state |= {f"transformer.h.{layer}.attn.b": own for layer, own in enumerate(gates())}
    done = convert(saved(tmp_path, state), bias=0.5)
    assert any("3 tensors not used" in note for note in done.notes)
    same_logits(done.folder, model.gate(torch.full((LAYERS, HEADS), 0.5)))


# --- one sentence each ---


def refusal(file: Path, **options) -> str:
    """What is said, and nothing is left."""
    before = leftovers(file.parent)
    with pytest.raises(HeadlabError) as caught:
        convert(file, **{"dense": True, **options})
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert leftovers(file.parent) == before
    return sentence


def test_a_pickle_with_code_is_refused_and_the_code_not_run(tmp_path):
    mark = tmp_path / "run"

    class Malicious:
        def __reduce__(self):
            return (os.system, (f"touch {mark}",))

    state = {**NanoGPT().state_dict(), "more": Malicious()}
    file = saved(tmp_path, state)
    assert "holds more than tensors" in refusal(file)
    torch.save(state, file, _use_new_zipfile_serialization=False)
    assert "and code in it is not run" in refusal(file)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps(Malicious(), protocol))
        refusal(file)
    assert not mark.exists()


def test_a_pickled_module_is_refused_with_its_name(tmp_path):
    file = saved(tmp_path, nn.Linear(2, 2))
    assert "torch.nn.modules.linear.Linear" in refusal(file)


def test_files_of_other_kinds_say_what_to_do(tmp_path):
    file = tmp_path / "final.pth"
    assert refusal(file) == f"no file {file}"
    assert f"give the checkpoint in it, e.g. {tmp_path}/final.pth" in refusal_of_folder(tmp_path)
    file.write_bytes(b"")
    assert refusal(file) == f"{file} is empty"
    file.write_bytes(b"GGUF" + bytes(100))
    assert "is a GGUF file" in refusal(file)
    save_file({"a": torch.zeros(3)}, file)
    assert "is a safetensors file" in refusal(file)
    for other in (b"hello, world\n", bytes(1000), b"PK\x03\x04" + bytes(100)):
        file.write_bytes(other)
        assert "cut short, damaged or of another kind" in refusal(file)
    saved(tmp_path, [1, 2])
    assert refusal(file) == "final.pth holds list, not a dict of tensors"


def refusal_of_folder(folder: Path) -> str:
    with pytest.raises(HeadlabError) as caught:
        convert_nanogpt(folder, folder / "out")
    return str(caught.value)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_truncated_file_is_one_sentence(tmp_path, new_format, share):
    file = tmp_path / "final.pth"
    state = NanoGPT().state_dict()
    torch.save(state, file, _use_new_zipfile_serialization=new_format)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert "cut short, damaged or of another kind" in refusal(file)


@pytest.mark.parametrize(
    "key",
    [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.h.1.ln_1.weight",
        "transformer.h.2.attn.c_attn.weight",
        "transformer.h.1.attn.c_proj.bias",
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.ln_f.weight",
        "lm_head.weight",
    ],
)
def test_a_missing_key_is_named(tmp_path, key):
    state = NanoGPT().state_dict()
    del state[key]
    assert f"final.pth lacks {key}" in refusal(saved(tmp_path, state))


def test_a_missing_layer_is_named_by_its_first_key(tmp_path):
    state = NanoGPT().state_dict()
    gap = {key: value for key, value in state.items() if ".h.1." not in key}
    assert "lacks transformer.h.1.ln_1.weight" in refusal(saved(tmp_path, gap))


def test_shapes_that_do_not_agree_are_named(tmp_path):
    state = NanoGPT().state_dict()
    key = "transformer.h.1.mlp.c_proj.weight"
    file = saved(tmp_path, {**state, key: torch.zeros(32, 100)})
    assert refusal(file) == f"final.pth: {key} has shape [32, 100], expected [32, 128]"
    saved(tmp_path, {**state, "transformer.wpe.weight": torch.zeros(9)})
    assert "transformer.wpe.weight has shape [9], expected a matrix" in refusal(file)


def test_weights_as_transformers_has_them_are_told(tmp_path):
    file = saved(tmp_path, tiny("gpt2").state_dict())
    sentence = refusal(file)
    assert "transformer.h.0.attn.c_attn.weight has shape [32, 96]" in sentence
    assert "transformers' layout" in sentence


def test_weights_that_are_no_numbers_are_named(tmp_path):
    key = "transformer.h.2.attn.c_attn.bias"
    state = NanoGPT().state_dict()
    for bad in (torch.nan, torch.inf):
        state[key] = state[key].clone().fill_(bad)
        told = f"final.pth has NaN or infinite weights, first in {key}"  # before it is written
        assert refusal(saved(tmp_path, state)) == told
    state[key] = torch.ones(96, dtype=torch.int8)
    assert f"{key} is torch.int8" in refusal(saved(tmp_path, state))
    state[key] = torch.ones(96).to_sparse()
    assert f"{key} is not a plain tensor" in refusal(saved(tmp_path, state))


def test_gates_that_cannot_be_told_ask_for_a_number(tmp_path):
    state = NanoGPT().state_dict()

    def said(**more: torch.Tensor) -> str:
        extra = {f"transformer.h.{key}": value for key, value in more.items()}
        return refusal(saved(tmp_path, {**state, **extra}), dense=False)

    one, four = torch.zeros(1), torch.zeros(4)
    assert "give --bias X, one b for all heads" in said()
    assert "or --dense to convert it without gates" in said()
    every = {f"{layer}.attn.gate": four for layer in range(LAYERS)}
    assert "it has transformer.h.0.attn.gate [4]" in said(**{"0.attn.gate": four})
    assert "--bias X" in said(**every, **{"1.attn.sparse": one}), "two in a layer"
    thresholds = {f"{layer}.attn.gate_threshold": four for layer in range(LAYERS)}
    assert "--bias X" in said(**thresholds), "of unknown sign"
    assert "--bias X" in said(**{**every, "1.attn.gate": torch.zeros(3)}), "a wrong size"
    assert "--bias X" in said(**{f"{layer}.mlp.gate": four for layer in range(LAYERS)})
    names = {0: "gate", 1: "gate", 2: "sparse"}
    assert "--bias X" in said(**{f"{layer}.attn.{name}": four for layer, name in names.items()})
    assert "NaN or infinite gates" in said(**{**every, "0.attn.gate": four * torch.nan})


def test_options_that_do_not_fit_are_told(tmp_path):
    file = saved(tmp_path, {"model": NanoGPT().state_dict(), "model_args": {"n_head": 4}})
    assert "says that it has 4 heads, and --heads says 8" in refusal(file, heads=8)
    assert "activation is one of gelu, gelu_new, not 'relu'" in refusal(file, activation="relu")
    assert "give one of the two" in refusal(file, bias=0.0)
    assert "finite number, not nan" in refusal(file, bias=float("nan"), dense=False)
    saved(tmp_path, NanoGPT().state_dict())
    assert "give --heads N" in refusal(file, heads=None)
    assert "32 wide, which 5 heads do not divide" in refusal(file, heads=5)


def test_tokenizers_that_do_not_fit_are_told(tmp_path):
    file = saved(tmp_path, NanoGPT(vocabulary=400).state_dict())
    sentence = refusal(file, tokenizer=tmp_path / "nowhere")
    assert sentence.startswith("--tokenizer is gpt2, a folder or none, and there is no folder")
    (tmp_path / "empty").mkdir()
    assert "no tokenizer can be read from" in refusal(file, tokenizer=tmp_path / "empty")
    tiny_tokenizer().save_pretrained(tmp_path / "words")
    assert "has a vocabulary of 400, and the tokenizer" in refusal(
        file, tokenizer=tmp_path / "words"
    )
    saved(tmp_path, NanoGPT(vocabulary=40).state_dict())
    assert "so it is another model's" in refusal(file, tokenizer=tmp_path / "words")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    file = saved(tmp_path, NanoGPT().state_dict())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "is not empty; give a new folder" in refusal(file)
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    (tmp_path / "out" / "mine.txt").unlink()
    convert(file, dense=True)
    (tmp_path / "file").write_text("mine")
    for place, told in (("file", "is a file"), ("file/out", "cannot write")):
        with pytest.raises(HeadlabError, match=told):
            convert_nanogpt(
                file, tmp_path / place, tokenizer="none", heads=HEADS, activation="gelu", dense=True
            )


def test_a_folder_that_fails_its_check_is_not_left(tmp_path):
    file = saved(tmp_path, NanoGPT(positions=2).state_dict())
    assert "takes at most 2" in refusal(file)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    file = saved(tmp_path, NanoGPT().state_dict())
    script = (
        "import resource, signal, headlab.sparse.convert as c\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        f"try: c.convert_nanogpt({str(file)!r}, {str(tmp_path / 'out')!r}, tokenizer='none',"
        " heads=4, dense=True)\n"
        "except c.HeadlabError as error: print(error)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert told.startswith(f"cannot write {tmp_path / 'out'}: ")
    assert os.strerror(errno.EFBIG) in told
    assert leftovers(tmp_path) == set()


# --- the command ---


def test_the_command_ends_with_the_folder(tmp_path):
    model = NanoGPT(bias=False)
    file, out = saved(tmp_path, model.state_dict()), tmp_path / "out"
    options = ["--tokenizer", "none", "--heads", "4", "--bias", "-0.25"]
    done = run("convert", str(file), "--out", str(out), *options)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[-1] == str(out)
    assert "4 heads in a layer, as --heads says" in lines
    assert "gates: open where s + b > 0, b = -0.25 for all heads" in lines
    for name, value in (("layers", "3"), ("heads", "4"), ("parameters", "43,")):
        assert any(line.split()[:1] == [name] and value in line for line in lines)
    same_logits(out, model.gate(torch.full((LAYERS, HEADS), -0.25)))
    assert "not empty" in error_of(run("convert", str(file), "--out", str(out), "--dense"))


def test_the_quiet_command_prints_the_folder_alone(tmp_path):
    file, out = saved(tmp_path, NanoGPT().state_dict()), tmp_path / "out"
    options = ["--tokenizer", "none", "--heads", "4", "--dense", "--quiet"]
    assert run("convert", str(file), "--out", str(out), *options).stdout == f"{out}\n"


def test_the_command_ends_failures_with_one_sentence(tmp_path):
    missing = run("convert", str(tmp_path / "final.pth"), "--out", str(tmp_path / "out"))
    assert "no file" in error_of(missing)
    file = saved(tmp_path, NanoGPT().state_dict())
    asked = run("convert", str(file), "--out", str(tmp_path / "out"), "--heads", "4")
    assert "give --bias X" in error_of(asked)
    assert leftovers(tmp_path) == set()


def test_help_has_an_example():
    told = run("convert", "--help").stdout
    assert "Example: headlab convert final.pth --out sparse-gpt2" in told
