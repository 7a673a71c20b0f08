"""headlab grade, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_of, run
from graders import (
    ENDLESS,
    needs_math,
)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rows = [
        {"id": "a", "prediction": '[ {"answer": "36"} ]', "gold": 36, "more": {"é": [1]}},
        {"id": "b", "prediction": "48", "gold": "36"},
        {"id": "c", "prediction": "", "gold": "Yes"},
        {"id": "d", "gold": "Yes"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_grade_writes_the_same_rows_with_a_field_a_score(answers, tmp_path):
    out = tmp_path / "new" / "graded.jsonl"
    result = run("grade", str(answers), "--with", "exact,numeric", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(out)
    shown = [line.split() for line in result.stdout.splitlines()[1:3]]
    assert shown[0][:6] == ["exact", "3", "0.333", "0.061", "to", "0.792"]
    assert shown[1][:2] == ["numeric", "2"]
    assert "2 not scored" in result.stdout
    assert "1 of 4 rows has no 'prediction' and no score" in result.stderr
    rows, graded = read(answers), read(out)
    for row, made in zip(rows, graded, strict=True):
        assert {field: made[field] for field in row} == row
    assert [made["exact"] for made in graded] == [1, 0, 0, None]
    assert "é" in out.read_text()


def test_grade_as_json_and_quiet(answers, tmp_path):
    out = str(tmp_path / "graded.jsonl")
    record = json.loads(run("grade", str(answers), "--out", out, "--json").stdout)
    assert list(record["scores"]) == ["exact", "numeric", "f1"]
    assert record["rows"] == 4
    assert record["scores"]["exact"]["mean"] == pytest.approx(1 / 3)
    assert record["out"] == out
    result = run("grade", str(answers), "--out", out, "--quiet")
    assert (result.stdout, result.stderr) == (f"{out}\n", "")


def test_lines_that_are_no_rows_are_counted_and_left_out(tmp_path):
    path, out = tmp_path / "mixed.jsonl", tmp_path / "graded.jsonl"
    lines = [
        b'\xef\xbb\xbf{"prediction": "a", "gold": "a"}',
        b"not json",
        b"[1, 2]",
        b"",
        b"caf\xe9",
        b'{"prediction": ' + b"9" * 5000 + b', "gold": 1}',
        b"[" * 100_000,
        b'{"prediction": NaN, "gold": 1}',
        b'{"prediction": "\\ud800", "gold": "a", "id": 7}',
        b'{"prediction": "a", "gold": "a"}',
    ]
    path.write_bytes(b"\n".join(lines))
    result = run("grade", str(path), "--with", "exact", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    sentence = result.stderr.strip().splitlines()[0]
    assert sentence.startswith("note: 5 of 9 lines were left out: line 2 is not JSON")
    assert "line 3 is not a JSON object; line 5 is not UTF-8 text (byte 3)" in sentence
    assert [row["exact"] for row in read(out)] == [1, None, 0, 1]


def test_one_and_many_are_told_apart(tmp_path):
    path, out = tmp_path / "a.jsonl", tmp_path / "graded.jsonl"
    good, none = b'{"prediction": "a", "gold": "a"}', b'{"gold": "a"}'
    for lines, said in (
        ([good, none], "1 of 2 rows has no 'prediction' and no score"),
        ([good, none, none], "2 of 3 rows have no 'prediction' and no score"),
        ([good, b"x"], "1 of 2 lines was left out"),
        ([good, b"x", b"y"], "2 of 3 lines were left out"),
    ):
        path.write_bytes(b"\n".join(lines))
        assert said in run("grade", str(path), "--with", "exact", "--out", str(out)).stderr


@needs_math
def test_the_command_survives_what_never_ends(tmp_path):
    path, out = tmp_path / "math.jsonl", tmp_path / "graded.jsonl"
    rows = [{"prediction": said, "gold": "5"} for said in (ENDLESS, r"\boxed{5}")]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    options = ["--with", "math", "--time-limit", "3", "--workers", "1", "--out", str(out)]
    result = run("grade", str(path), *options)
    assert result.exit_code == 0, result.stderr
    assert "math: 1 of 2 rows took longer than 3 s and counts as wrong" in result.stderr
    assert [row["math"] for row in read(out)] == [0, 1]


@pytest.mark.parametrize(
    ("content", "args", "sentence"),
    [
        (None, [], "no file"),
        (b"", [], "it is empty; give one"),
        (b"nothing\n", [], "line 1 is not JSON"),
        (b'{"answer": "a", "label": "b"}', [], "its fields are answer, label"),
        (b'{"prediction": "a", "gold": "a"}', ["--with", "exakt"], "did you mean 'exact'?"),
        (b'{"prediction": "a", "gold": "a"}', ["--with", ","], "name at least one grader"),
        (b'{"prediction": "a", "gold": "a"}', ["--time-limit", "0"], "seconds above 0"),
        (
            b'{"prediction": "a", "gold": "a"}',
            ["--out", "FILE"],
            "is the file with the predictions",
        ),
        (b'{"prediction": "a", "gold": "a"}', ["--out", "FOLDER"], "is a folder; give a file"),
        (b'{"prediction": "a", "gold": "a"}', ["--out", "FILE/x"], "is a file"),
    ],
)
def test_wrong_uses_of_the_command(tmp_path, content, args, sentence):
    path = tmp_path / "answers.jsonl"
    if content is not None:
        path.write_bytes(content)
    args = [arg.replace("FILE", str(path)).replace("FOLDER", str(tmp_path)) for arg in args]
    if "--out" not in args:
        args += ["--out", str(tmp_path / "graded.jsonl")]
    assert sentence in error_of(run("grade", str(path), *args))
    assert not (tmp_path / "graded.jsonl").exists()


def test_help_has_an_example():
    result = run("grade", "--help")
    assert result.exit_code == 0
    assert "Example: headlab grade" in result.stdout
