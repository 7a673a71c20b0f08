"""Problems: the built-in ones are right and various, and files are read line by line."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from headlab import HeadlabError
from headlab.grading.mathematics import math_strict, math_verify
from headlab.grading.rows import Row
from headlab.studies.provenance import data_files
from headlab.tasks import TASKS, problems
from headlab.tasks.problems import PROBLEM_SETS, Problem, load_problems, needs_data
from headlab.tasks.questions import packaged

BUILTIN = load_problems("arithmetic")
CHECKS = [line.split(" | ")[3] for line in packaged("arithmetic.txt").splitlines() if " | " in line]


# --- the built-in problems ---


def number(text: str) -> Fraction:
    r"""-\frac{2}{3}, 24.5, 12"""
    return Fraction(re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text))


def value(formula: str, x: Fraction | None = None) -> Fraction:
    """A formula worked out without rounding."""
    assert re.fullmatch(r"[\d.x()+*/ -]+", formula), formula
    exact = re.sub(r"\d+(\.\d+)?", lambda found: f"Fraction('{found[0]}')", formula)
    return eval(exact, {"Fraction": Fraction, "x": x})


def holds(equation: str, x: Fraction) -> bool:
    left, right = equation.split("=")
    return value(left, x) == value(right, x)


def as_code(written: str) -> str:
    """3(x + 5)^2 ÷ 4 as Python writes it."""
    code = written.replace("×", "*").replace("÷", "/").replace("^", "**")
    return re.sub(r"(?<=\d)(?=[x(])", "*", code)


def formulas(question: str) -> list[str]:
    """What is written in signs in a question: at least two terms, or an equation."""
    runs = re.findall(r"(?<![\w%])[\dx(][\dx()+\-×÷^=/. ]*[\dx)](?![\w%])", question)
    return [run for run in runs if re.search(r"[-+×÷^=]", run)]


def test_there_are_240_of_ten_subjects_and_four_levels_as_many_of_each():
    assert len(BUILTIN) == len(CHECKS) == PROBLEM_SETS["arithmetic"].size == 240
    assert len({problem.id for problem in BUILTIN}) == 240
    assert len({problem.question for problem in BUILTIN}) == 240
    cells = Counter((problem.subject, problem.level) for problem in BUILTIN)
    assert len(cells) == 10 * 4
    assert set(cells.values()) == {6}
    assert {level for _, level in cells} == set("1234")


def test_the_answer_is_what_its_sum_gives_or_solves_its_equation():
    tried = [Fraction(whole, parts) for whole in range(60) for parts in (1, 2, 3)]
    for problem, check in zip(BUILTIN, CHECKS, strict=True):
        answer = number(problem.answer)
        if "=" in check:
            assert holds(check, answer), problem
            assert {x for x in tried if holds(check, x)} <= {answer}, f"{problem}: or another"
        else:
            assert value(check) == answer, problem


def test_sums_are_of_the_numbers_in_the_question():
    for problem, check in zip(BUILTIN, CHECKS, strict=True):
        told = {"100", *re.findall(r"\d+(?:\.\d+)?", problem.question)}
        if problem.subject == "word problems":
            told |= {"1", "2", "1.2", "0.75"}  # the whole, two sides each, 20 % more, 25 % less
        assert {*re.findall(r"\d+(?:\.\d+)?", check.replace("x ** 2", ""))} <= told, problem


def test_what_a_question_writes_in_signs_gives_the_answer_by_itself():
    told = Counter()
    for problem in BUILTIN:
        for formula in formulas(problem.question):
            code = as_code(formula)
            if "=" in code:
                assert holds(code, number(problem.answer)), problem
            else:
                assert value(code) == number(problem.answer), problem
            told[problem.subject] += 1
    assert told["equations"] == told["order of operations"] == 24
    assert told["fractions"] == 8
    assert told["powers"] == 8
    assert sum(told.values()) >= 80


def wording(question: str) -> str:
    """A question with its formulas, numbers and names replaced."""
    question = re.sub(r"[\dx(][\dx()+\-×÷^=/.% ]*[\dx)%]|\d|-?#", "#", question)
    question = re.sub(r"(-|\()?#+", "#", question)
    return re.sub(r"(?<=[a-z] )[A-Z][a-z]+|^(Mia|Tom|Omar|Ravi|Lena|Nora)\b", "N", question)


def test_no_wording_is_more_than_a_twentieth():
    assert wording("What is 12 + (3 - 4)^2?") == wording("What is 5 × 7?") == "What is #?"
    assert wording("Mia has 50% of 8.") == "N has # of #."
    found = Counter(wording(problem.question) for problem in BUILTIN)
    assert found.most_common(1)[0][1] <= 0.05 * len(BUILTIN), found.most_common(3)
    assert len(found) >= 75


def test_questions_start_with_a_word_and_end_as_sentences_do():
    for problem in BUILTIN:
        assert re.match(r"[A-Z][a-z]* ", problem.question), "a filler stands before it"
        assert problem.question[-1] in ".?"
        assert "  " not in problem.question


def test_levels_grow_harder():
    """In how many digits there are to work with, of the subjects that write numbers alone."""
    plain = ("addition", "subtraction", "multiplication", "division")
    digits = {
        level: sum(
            len(re.findall(r"\d", each.question + each.answer))
            for each in BUILTIN
            if each.level == level and each.subject in plain
        )
        for level in "1234"
    }
    assert digits["1"] * 1.4 < digits["2"]
    assert digits["2"] * 1.3 < digits["3"]
    assert digits["3"] * 1.2 < digits["4"]


def rows(said: list[str]) -> list[Row]:
    return [
        Row(text=text, answer=text, gold=each.answer)
        for each, text in zip(BUILTIN, said, strict=True)
    ]


def test_both_graders_take_every_answer_and_no_other():
    pytest.importorskip("math_verify")
    right = rows([rf"So it is \boxed{{{each.answer}}}." for each in BUILTIN])
    wrong = rows([rf"So it is \boxed{{{number(each.answer) + 1}}}." for each in BUILTIN])
    scored = math_verify([*right, *wrong], seconds=5, workers=1)
    assert scored.scores == [1.0] * 240 + [0.0] * 240
    assert not scored.unparsed
    assert [math_strict(row) for row in right] == [1.0] * 240
    percent = rows([rf"\boxed{{{each.answer}\%}}" for each in BUILTIN])
    asked = [k for k, each in enumerate(BUILTIN) if "percentage of" in each.question]
    assert len(asked) == 4
    assert math_verify([percent[k] for k in asked], seconds=5, workers=1).scores == [1.0] * 4


# --- choosing some ---


def test_a_sample_is_the_start_of_the_seeds_order():
    for seed in range(30):
        ten, forty = (load_problems("arithmetic", n=n, seed=seed) for n in (10, 40))
        assert forty[:10] == ten, seed
    ten, forty = (load_problems("arithmetic", n=n, seed=3) for n in (10, 40))
    assert len(set(forty)) == 40
    assert ten != load_problems("arithmetic", n=10, seed=4)
    assert {each.level for each in forty} == set("1234")
    whole = load_problems("arithmetic", n=240, seed=3)
    assert whole != BUILTIN
    assert sorted(whole, key=BUILTIN.index) == BUILTIN
    assert load_problems("arithmetic", seed=3) == BUILTIN, "all are in the order of the file"


@pytest.mark.parametrize(
    ("name", "data", "n", "says"),
    [
        ("math500", None, None, "math500 needs data: a folder with math500/test.jsonl"),
        ("gsm8k", None, None, "--data FOLDER), or the hub (--data hub)"),
        ("arithmetic", "folder", None, "arithmetic is built in; data is for gsm8k, math500"),
        ("arithmetic", "hub", None, "arithmetic is built in"),
        ("arithmetic", None, 0, "at least one problem is needed, not 0"),
        ("arithmetic", None, 241, "arithmetic has 240 problems, 241 were asked for"),
        ("math-500", None, None, "no problems 'math-500'; did you mean 'math500'?"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(name, data, n, says):
    with pytest.raises(HeadlabError) as error:
        load_problems(name, data, n)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_problems_are_no_tasks_and_say_whether_they_need_data():
    assert {name: needs_data(name) for name in PROBLEM_SETS} == {
        "arithmetic": False,
        "gsm8k": True,
        "math500": True,
    }
    assert not set(PROBLEM_SETS) & set(TASKS)


# --- files ---

MATH = {
    "problem": " Find $x$ if $2x = 3$. ",
    "solution": r"\boxed{\frac{3}{2}}",
    "answer": r"\frac{3}{2}",
    "subject": "Algebra",
    "level": 2,
    "unique_id": "test/algebra/1.json",
}
GSM = {"question": "How much are 600 and 700?", "answer": "<<600+700=1300>>1,300\n#### 1,300"}


def save(folder: Path, *lines: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "test.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def test_math500_is_read_from_its_folder_or_the_one_above(tmp_path):
    bare = {"problem": "1 + 1?", "answer": "2", "level": "Level 5"}
    folder = save(tmp_path / "math500", MATH, "", bare)
    expected = [
        Problem("test/algebra/1.json", "Find $x$ if $2x = 3$.", r"\frac{3}{2}", "2", "Algebra"),
        Problem("math500-3", "1 + 1?", "2", "5", ""),  # its line
    ]
    assert load_problems("math500", tmp_path) == expected
    assert load_problems("math500", str(folder)) == expected
    assert data_files(tmp_path) == [folder / "test.jsonl"], "a run notes what it has read"


def test_gsm8k_has_the_number_after_the_marks_and_the_test_split_alone(tmp_path):
    more = [{**GSM, "answer": f"so\n#### {said}"} for said in ("-7", "$3", "2.5")]
    folder = save(tmp_path / "gsm8k", GSM, more[0], more[2])
    (folder / "train.jsonl").write_text("not read\n")
    found = load_problems("gsm8k", tmp_path)
    assert [each.answer for each in found] == ["1300", "-7", "2.5"]
    assert [each.id for each in found] == ["gsm8k-1", "gsm8k-2", "gsm8k-3"]
    assert found[0].question == GSM["question"]
    save(tmp_path / "gsm8k", GSM, more[1])
    with pytest.raises(HeadlabError, match=r"test\.jsonl: line 2 has no '#### number'"):
        load_problems("gsm8k", tmp_path)


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("math500", "{", "line 3 is not JSON: Expecting property name"),
        ("math500", "[" * 100_000, "line 3 is not JSON: nested too deep"),
        ("math500", '{"level": ' + "1" * 5000 + "}", "line 3 is not JSON: "),
        ("math500", "[1]", "line 3 has no text in 'problem'"),
        ("math500", {**MATH, "unique_id": "b", "answer": 5}, "line 3 has no text in 'answer'"),
        ("math500", {**MATH, "unique_id": "b", "answer": " "}, "line 3 has no text in 'answer'"),
        ("math500", {**MATH, "unique_id": "b", "level": [2]}, "line 3 has no text in 'level'"),
        ("math500", {**MATH, "problem": "\ud800"}, "line 3 has half a character"),
        ("math500", MATH, "line 3 has the id 'test/algebra/1.json' of line 1"),
        ("math500", GSM, "line 3 has no text in 'problem'"),
        ("gsm8k", MATH, "line 3 has no text in 'question'"),
        ("gsm8k", {**GSM, "answer": "1300"}, "line 3 has no '#### number' at the end of 'answer'"),
        ("gsm8k", {**GSM, "answer": "#### five"}, "line 3 has no '#### number'"),
        ("gsm8k", {**GSM, "answer": "#### 5 or 6"}, "line 3 has no '#### number'"),
        ("gsm8k", {**GSM, "answer": None}, "line 3 has no text in 'answer'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, name, line, says):
    folder = save(tmp_path, MATH if name == "math500" else GSM, "", line)
    with pytest.raises(HeadlabError) as error:
        load_problems(name, folder)
    assert str(error.value).startswith(f"{folder / 'test.jsonl'}: {says}")
    assert "\n" not in str(error.value)


def test_a_folder_without_the_file_is_said(tmp_path):
    with pytest.raises(HeadlabError, match=r"has no test\.jsonl and no math500/test\.jsonl$"):
        load_problems("math500", tmp_path)
    with pytest.raises(HeadlabError, match="no folder"):
        load_problems("math500", tmp_path / "nowhere")
    with pytest.raises(HeadlabError, match="is a file; give the folder"):
        load_problems("math500", save(tmp_path, MATH) / "test.jsonl")
    (tmp_path / "test.jsonl").write_text("\n\n")
    with pytest.raises(HeadlabError, match="is empty"):
        load_problems("math500", tmp_path)


# --- the hub ---


def test_the_hub_is_read_by_its_own_names(monkeypatch):
    sets = {
        ("HuggingFaceH4/MATH-500", None, "test"): [MATH],
        ("openai/gsm8k", "main", "test"): [GSM, {**GSM, "answer": "?"}],
    }
    monkeypatch.setattr(problems, "load_rows", lambda *asked: iter(sets[asked]))
    assert [each.id for each in load_problems("math500", "hub")] == ["test/algebra/1.json"]
    with pytest.raises(HeadlabError, match=r"^openai/gsm8k: row 2 has no '#### number'"):
        load_problems("gsm8k", "hub")
    sets["openai/gsm8k", "main", "test"] = []
    with pytest.raises(HeadlabError, match=r"^openai/gsm8k has no problems in it$"):
        load_problems("gsm8k", "hub")
