"""headlab generate, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from commands import error_of, run
from tiny import save_tiny

import headlab
from headlab import Gates, Head


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """A model that never ends by itself."""
    folder = tmp_path_factory.mktemp("lab")
    save_tiny(folder / "m")
    for name in ("generation_config.json", "config.json"):
        path = folder / "m" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    (folder / "p.jsonl").write_text(
        '{"prompt": "the cat", "gold": "sat", "id": "a"}\n{"prompt": "a mat on the"}\n'
    )
    return folder


def write(lab: Path, *args: str):
    return run("generate", str(lab / "m"), *args, "--max-new-tokens", "6")


def rows_of(lab: Path, *args: str) -> list[dict]:
    result = write(lab, *args, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    first = [row for row in rows if row["mask"] == "all heads"]
    assert [row["prediction"] for row in first] == [
        row.get("unmasked", row["prediction"]) for row in first
    ]
    return rows[len(first) :] or rows


def test_texts_stand_beside_those_with_all_heads(lab):
    model = headlab.load(lab / "m")
    masks = [Gates.ones(model), Gates.ablate(model, [Head(0, 1), Head(1, 2)])]
    expected = headlab.generate(model, "the cat", Gates.stack(masks), max_new_tokens=6).texts
    (row,) = rows_of(lab, "--prompt", "the cat", "--heads", "L0H1,L1H2")
    assert [[row["unmasked"]], [row["prediction"]]] == expected
    assert (row["mask"], row["end"], row["tokens"]) == ("without L0H1, L1H2", "length", 6)
    told = write(lab, "--prompt", "the cat", "--heads", "L0H1,L1H2").stdout
    assert "without L0H1, L1H2 (length)" in told
    assert expected[1][0].strip() in told
    assert write(lab, "--prompt", "the cat", "-q").stdout == expected[0][0] + "\n"


def test_every_option_reaches_the_text(lab):
    model = headlab.load(lab / "m")
    everything = ",".join(f"L{n}H{h}" for n in (0, 1) for h in range(4))
    heads = headlab.parse_heads(everything)

    def text(gates=None, **options) -> str:
        return headlab.generate(model, "a mat on the", gates, max_new_tokens=6, **options).texts[
            -1
        ][0]

    def told(*args: str) -> str:
        return rows_of(lab, "--prompt", "a mat on the", *args)[-1]["prediction"]

    gone, halved = Gates.ablate(model, heads), Gates.ablate(model, heads, 0.5)
    mean = headlab.mean_reference(model, ["the cat", "a mat on the"])
    pairs = [
        (told("--heads", everything), text(gone)),
        (told("--heads", everything, "--positions", "all"), text(gone, positions="all")),
        (told("--heads", everything, "--scale", "0.5"), text(halved)),
        (told("--heads", "L0H1", "--keep"), text(Gates.keep(model, [Head(0, 1)]))),
        (told("--temperature", "2", "--seed", "3"), text(temperature=2, seed=3)),
        (told("--temperature", "2", "--top-p", "0.1"), text(temperature=2, top_p=0.1)),
        (
            told(
                *("--heads", everything, "--reference", "mean"),
                "--reference-data",
                str(lab / "p.jsonl"),
            ),
            text(gone, reference=mean),
        ),
    ]
    for ours, expected in pairs:
        assert ours == expected
    assert len({expected for _, expected in pairs}) >= 5, "they are not all one text"
    plain = text()
    (row,) = rows_of(lab, "--prompt", "a mat on the", "--stop", plain[2:4])
    assert row["prediction"] == plain[: plain.index(plain[2:4]) + 2]
    assert row["end"] == "stop"


def test_a_file_of_prompts_becomes_a_file_that_can_be_graded(lab, tmp_path):
    out = tmp_path / "texts.jsonl"
    result = write(
        *(lab, "--data", str(lab / "p.jsonl"), "--heads", "L0H1", "--heads", "L1H1"),
        *("--out", str(out)),
    )
    assert result.stdout.strip().endswith(str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["mask"], row["prompt"]) for row in rows] == [
        (mask, prompt)
        for mask in ("all heads", "without L0H1", "without L1H1")
        for prompt in ("the cat", "a mat on the")
    ]
    assert rows[0]["gold"] == "sat"
    assert {row["positions"] for row in rows} == {"generated"}
    assert rows[0]["id"] == "a"
    assert {"prediction", "unmasked", "end"} < set(rows[5])
    alone = rows_of(lab, "--prompt", "a mat on the", "--heads", "L1H1")[0]
    assert alone["prediction"] == rows[5]["prediction"]
    graded = run("grade", str(out), "--by", "mask", "--out", str(tmp_path / "g.jsonl"), "--json")
    told = json.loads(graded.stdout)["by"]
    assert list(told) == ["all heads", "without L0H1", "without L1H1"]
    assert told["all heads"]["exact"]["n"] == 1


def test_a_boost_from_a_file(lab, tmp_path):
    model = headlab.load(lab / "m")
    boost = torch.zeros(model.n_layers, model.n_heads, model.head_width)
    boost[1, 2] = 4.0
    boost[0, 0] = -4.0
    path = tmp_path / "b.safetensors"
    safetensors.torch.save_file({"boost": boost}, path)
    expected = headlab.generate(model, "a mat on the", boost=2 * boost, max_new_tokens=6).texts[0][
        0
    ]
    (row,) = rows_of(lab, "--prompt", "a mat on the", "--boost", str(path), "--alpha", "2")
    assert row["prediction"] == expected != row["unmasked"]
    only = torch.zeros_like(boost)
    only[1, 2] = 4.0
    expected = headlab.generate(model, "a mat on the", boost=only, max_new_tokens=6).texts[0][0]
    (row,) = rows_of(lab, "--prompt", "a mat on the", "--boost", str(path), "--heads", "L1H2")
    assert row["prediction"] == expected
    assert row["mask"] == "boosted: L1H2"
    safetensors.torch.save_file({"boost": boost[:1]}, path)
    assert "directions of shape" in error_of(write(lab, "--prompt", "a", "--boost", str(path)))
    safetensors.torch.save_file({"other": boost}, path)
    assert "no safetensors file" in error_of(write(lab, "--prompt", "a", "--boost", str(path)))
    path.write_bytes(b"nothing")
    assert "no safetensors file" in error_of(write(lab, "--prompt", "a", "--boost", str(path)))


def test_chat_uses_the_models_template(lab, tmp_path):
    assert "no chat template" in error_of(write(lab, "--prompt", "the cat", "--chat"))
    model = headlab.load(lab / "m")
    said = "{% for m in messages %}cat {{ m['content'] }}{% endfor %}"
    model.tokenizer.chat_template = said + "{% if add_generation_prompt %} sat{% endif %}"
    assert torch.equal(model.chat("the mat"), model.ids("cat the mat sat"))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('Conversations need\na system prompt') }}", "need a system prompt;"),
        ("{{ messages[1]['content'] }}", "does not take a single user's text"),
        ("{% for %}", "does not take a single user's text"),
        ("{{ messages[0]['content'] + 1 }}", "does not take a single user's text"),
        ("{% if false %}{% endif %}", "makes no tokens of 'the mat'"),
    ],
)
def test_a_chat_template_that_fails_is_one_sentence(lab, template, says):
    model = headlab.load(lab / "m")
    model.tokenizer.chat_template = template
    with pytest.raises(headlab.HeadlabError) as caught:
        model.chat("the mat")
    assert says in str(caught.value)
    assert str(caught.value).startswith("the chat template of ")
    assert "\n" not in str(caught.value)


def test_chat_refuses_what_is_no_text(lab):
    model = headlab.load(lab / "m")
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(headlab.HeadlabError, match="not valid UTF-8 text"):
        model.chat("a\ud800")


@pytest.mark.parametrize(("count", "said"), [(6, "1 more prompt;"), (8, "3 more prompts;")])
def test_prompts_that_are_not_shown_are_counted(lab, tmp_path, count, said):
    (tmp_path / "p.txt").write_text("the cat\n" * count)
    assert said in write(lab, "--data", str(tmp_path / "p.txt")).stdout


def test_bad_input_is_answered_in_a_sentence(lab, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for args, says in (
        ((), "--prompt TEXT, or --data FILE"),
        (("--prompt", "a", "--data", "b.jsonl"), "--prompt TEXT, or --data FILE"),
        (("--prompt", ""), "the prompt is empty"),
        (("--data", str(tmp_path / "none.jsonl")), "no file"),
        (("--data", str(tmp_path / "empty.jsonl")), "is empty"),
        (("--prompt", "a", "--heads", "L9H1"), "L9H1"),
        (("--prompt", "a", "--heads", "first"), "first"),
        (("--prompt", "a", "--scale", "0.5"), "go with --heads"),
        (("--prompt", "a", "--keep"), "go with --heads"),
        (("--prompt", "a", "--heads", "L0H1", "--scale", "nan"), "finite"),
        (("--prompt", "a", "--positions", "prompt"), "generated or on all"),
        (("--prompt", "a", "--temperature", "-1"), "temperature is above 0"),
        (("--prompt", "a", "--top-p", "0.5"), "needs a temperature"),
        (("--prompt", "a", "--stop", ""), "stop string is empty"),
        (("--prompt", "a", "--reference", "mean"), "together with --reference-data"),
        (("--prompt", "a", "--boost", str(tmp_path / "none")), "no file"),
        (("--prompt", "a", "--out", str(tmp_path / "empty.jsonl" / "x")), "empty.jsonl"),
        (("--prompt", "a", "--out", str(tmp_path)), "is a folder"),
        (("--data", str(lab / "p.jsonl"), "--out", str(lab / "p.jsonl")), "file of prompts"),
        (("--prompt", "a", "--alpha", "2"), "goes with --boost"),
        (("--prompt", "a", "--temperature", "1", "--seed", "-1"), "a seed is 0 or more"),
    ):
        assert says in error_of(write(lab, *args, "--quiet")), args
