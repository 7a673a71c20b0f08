"""The masking study: every setting reaches its cells, and data that is wrong is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from commands import error_of, run
from copying import BOTH, QUICK, cell_of, find, make_lab, spec_of, unmasked
from planted import asked_of_copier, question, save_questions
from tiny import lettered, tiny

import headlab
from headlab import HeadlabError
from headlab.studies.masking import cell as cells
from headlab.studies.masking.cell import Found, work
from headlab.studies.masking.panels import read_panels
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec, read_spec


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    return make_lab(tmp_path_factory.mktemp("lab"))


# --- settings ---


def test_every_setting_reaches_the_cell(lab, tmp_path):
    def of(name: str, **changes) -> Found:
        return find(lab, tmp_path / name, **changes)

    plain = of("plain")
    assert (plain.texts["kind"] == "random").sum() == 2 * 3 * 2
    assert plain.probe["n_train"] == 12

    for scale, copies in ((0.0, False), (0.95, True)):
        texts = of(f"{scale}", scale=scale, rank_by="ablate", functions="retrieval").texts
        top = texts[texts["kind"] == "top"]
        assert (top["text"] == top["item"].map(unmasked(texts))).all() == copies
    assert (of("draws", draws=5).texts["kind"] == "random").sum() == 2 * 3 * 5
    short = of("short", max_new_tokens=3).texts
    assert set(short["text"]) == {'[{"answer'}
    assert set(short["end"]) == {"length"}
    assert not torch.equal(of("epochs", epochs=4).scores["retrieval"], plain.scores["retrieval"])
    assert len(of("n", n=5).items) == 2 * 5
    assert of("train", train=4).probe["n_train"] == 2 * 4
    other = of("seed", seeds=[1])
    assert set(other.items) != set(plain.items)
    assert "top" in set(plain.texts.loc[plain.texts["heads_of"] != plain.texts["asked"], "kind"])
    alone = of("cross", cross=False).texts
    assert alone["heads_of"].isin(["", *BOTH]).all()
    assert ((alone["heads_of"] == alone["asked"]) | (alone["kind"] == "none")).all()
    assert of("ks", ks=[2, 1, "elbow"]).ks["retrieval"][:2] == [1, 2]
    everything = of("all", n=None, train=None)
    assert (len(everything.items), everything.probe["n_train"]) == (2 * 12, 2 * 24)
    one, two = (
        of(f"u{updates}", rank_by="gates", updates=updates, train=2, n=2, functions="retrieval")
        for updates in (1, 2)
    )
    assert not torch.equal(one.scores["retrieval"], two.scores["retrieval"])


def test_heads_are_ranked_on_train_alone(lab, tmp_path):
    """Other test questions leave every score as it was."""
    rows = asked_of_copier(24, 12)
    rows["test"] = rows["test"][6:]
    other = save_questions(tmp_path / "data", rows)
    one, two = find(lab, tmp_path / "a"), find(lab, tmp_path / "b", data=str(other))
    assert set(one.items) != set(two.items)
    for name in BOTH:
        assert torch.equal(one.scores[name], two.scores[name])


@pytest.mark.parametrize(
    ("rows", "changes", "says"),
    [
        ("test", {}, "no question of math-calculation is there to test on"),
        ("train", {}, "no question of math-calculation is there to rank heads on"),
        ("train", {"functions": "retrieval"}, "the training questions have only one"),
    ],
)
def test_functions_without_questions_are_named(lab, tmp_path, rows, changes, says):
    asked = asked_of_copier(4, 3)
    asked[rows] = [row for row in asked[rows] if "met" in row["question"]]
    data = save_questions(tmp_path / "data", asked)
    with pytest.raises(HeadlabError, match=says):
        find(lab, tmp_path / "s", data=str(data), **changes)


def test_size_paper_is_the_papers_model_and_shares():
    spec = make_spec({"study": "masking", "size": "paper"})
    assert spec.models == ["llama-3.1-8b-instruct"]
    assert headlab.aliases.ALIASES[spec.models[0]] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (spec.max_new_tokens, spec.epochs, spec.scale, spec.ks) == (128, 100, 1e-4, "shares")
    assert (spec.n, spec.train, spec.positions) == (None, None, "generated")
    assert spec.draws >= 20
    assert spec.functions == ["retrieval", "knowledge-recall", "math-calculation", "inference"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("functions: retreival", "line 2: functions is retrieval,"),
        ("functions: retreival", "did you mean 'retrieval'?"),
        ("functions: [retrieval, retrieval]", "'retrieval' is there twice"),
        ("functions: []", "functions is empty"),
        ("ks: [0]", "line 2: ks: a number of heads from 1, elbow, or shares alone, not 0"),
        ("ks: many", "a number of heads from 1, elbow, or shares alone, not 'many'"),
        ("ks: [16, elbo]", "not 'elbo'; did you mean 'elbow'?"),
        ("ks: share", "did you mean 'shares'?"),
        ("ks: [shares, 8]", "shares alone"),
        ("ks: [8, 8]", "8 is there twice"),
        ("ks: [2.5]", "not 2.5"),
        ("ks: []", "numbers of heads"),
        ("ks: {a: 1}", "numbers of heads"),
        ("rank_by: prob", "did you mean 'probe'?"),
        ("rank_by: [probe, probe]", "'probe' is there twice"),
        ("positions: prompt", "positions is generated or all, not 'prompt'"),
        ("scale: 1", "less than 1"),
        ("scale: .nan", "scale"),
        ("draws: 1", "draws"),
        ("boost: 0", "boost"),
        ("data: hub", "cogqa is on no hub"),
        ("data: ./nowhere", "data: no folder"),
        ("tasks: [ioi]", "tasks is cogqa, not 'ioi'"),
        ("epoch: 3", "no setting 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_wrong_settings_are_one_sentence_with_the_nearest_word(tmp_path, text, says):
    path = tmp_path / "study.yaml"
    path.write_text(f"study: masking\n{text}\n")
    with pytest.raises(HeadlabError) as caught:
        read_spec(path)
    assert says in str(caught.value)
    assert "line 2" in str(caught.value) or "hub" in text
    assert ";" not in str(caught.value).replace("; did you mean", "").replace(
        "; leave", ""
    ).replace("; data is", ""), "one sentence"


def test_the_command_line_reads_lists_and_words(lab, tmp_path):
    def asked(*options: str):
        result = run(
            *("run", "masking", "--models", str(lab / "m"), "--data", str(lab / "data"), "-q"),
            *("--functions", "retrieval", "--dry-run", "--out", str(tmp_path / "r"), *options),
        )
        return result

    assert asked("--ks", "2,elbow").exit_code == 0
    assert asked("--ks", "shares").exit_code == 0
    assert "did you mean 'elbow'?" in error_of(asked("--ks", "elbo"))
    assert "did you mean 'attribute'?" in error_of(asked("--rank-by", "atribute"))
    assert "no folder" in error_of(asked("--data", str(tmp_path / "nowhere")))
    assert not (tmp_path / "r").exists()


def test_more_is_planned_for_more_draws_functions_and_boosts(lab):
    plain = work(cell_of(lab), 8).pairs
    assert work(cell_of(lab, draws=8), 8).pairs > plain
    assert work(cell_of(lab, cross=False), 8).pairs < plain
    assert work(cell_of(lab, boost=5), 8).pairs > plain
    assert work(cell_of(lab, functions="retrieval"), 8).pairs < plain
    assert work(cell_of(lab, rank_by="ablate"), 80).passes > work(cell_of(lab), 80).passes


# --- data that is not as it should be ---


def test_a_question_too_long_for_the_model_is_left_out_and_counted(lab, tmp_path):
    rows = asked_of_copier(24, 12)
    rows["test"][0]["question"] += " long" * 600
    data = save_questions(tmp_path / "data", rows)
    found = find(lab, tmp_path / "s", data=str(data), n=None)
    assert found.left_out[cells.TOO_LONG] == 1
    assert "test-1-1" not in found.items


def test_malformed_questions_are_counted_and_never_a_crash(lab, tmp_path):
    rows = asked_of_copier(6, 3)
    rows["train"] += [
        {"question": "No list of steps"},
        {"generated": []},
        "no object",
        question("Day 98.", ("What is 3 and 4?", 7, "Math Calculation")),  # a number
        question("Day 99.", ("Whom?", "", "Retrieval"), ("Who?", "n1", "Induction")),
        {"question": "Day 100.", "generated": [{"answer": "n2", "cognitive_skill": "Retrieval"}]},
    ]
    data = save_questions(tmp_path / "data", rows)
    finished = run_study(spec_of(lab, data=str(data), train=7), tmp_path / "r")
    assert [finished.status(cell) for cell in finished.cells] == ["done"]
    (said,) = (each for each in finished.study.warnings(finished) if "left out" in each)
    for part in (
        "1 questions without a list of sub-questions",
        "1 questions without text",
        "1 questions that are no object",
        "1 sub-questions without an answer",
        "1 sub-questions with a label that is none of the eight",
        "1 sub-questions without text",
        "1 answers that were numbers",
    ):
        assert part in said
    page = (finished.folder / "report.html").read_text()
    assert "1 sub-questions with a label that is none of the eight" in page
    (panel,) = read_panels(finished)
    assert panel.found.probe["n_train"] == 6 + 7


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3", "olmo"])
def test_the_study_runs_through_on_other_architectures(tmp_path, name):
    """Random models write no JSON, which is counted."""
    config = {**tiny(name).config.to_dict(), "vocab_size": len(lettered().tokenizer)}
    config |= {"n_positions": 2048} if name == "gpt2" else {"max_position_embeddings": 2048}
    torch.manual_seed(0)
    network = hf.AutoModelForCausalLM.from_config(type(tiny(name).config)(**config))
    network.save_pretrained(tmp_path / name)
    lettered().tokenizer.save_pretrained(tmp_path / name)
    rows = asked_of_copier(2, 2)
    given = {**QUICK, "n": 2, "train": 2, "max_new_tokens": 2, "epochs": 1}
    given |= {"models": [str(tmp_path / name)]}
    given |= {"data": str(save_questions(tmp_path / "data", rows))}
    finished = run_study(make_spec({"study": "masking", **given}), tmp_path / "r")
    assert [finished.status(cell) for cell in finished.cells] == ["done"]
    (panel,) = read_panels(finished)
    assert not panel.grades.table["in_json"].any()
    said = " ".join(finished.study.warnings(finished))
    assert "100 % of the unmasked answers are no JSON" in said
    assert "Right on less than 20 % even with all heads" in said
    assert (finished.folder / "report.html").exists()
