"""One page over several runs, and the demo that ends with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import browser as browsers
import pytest
from commands import error_of, run
from filelock import FileLock
from planted import pairs, save_planted

from headlab.cli import demo
from headlab.errors import HeadlabError
from headlab.store import Run
from headlab.studies import STUDIES
from headlab.studies.front import runs_in, write_front
from headlab.studies.running import run_study
from headlab.studies.spec import make_spec

SCRIPT = "<script>window.hacked=1</script>"
QUICK = {"seeds": [0, 1], "updates": 5, "batch": 4, "n": 4, "ks": [0, 1, 2], "random_orders": 2}


def asked(lab: Path, task: str = "t.jsonl") -> dict[str, dict]:
    """What a demo of two small studies asks."""
    tasks = {"tasks": [str(lab / task)]}
    return {"circuits": {**tasks, "n": 4}, "roles": {**tasks, **QUICK}}


def save_task(path: Path, uneven: bool = False) -> None:
    rows = [each.as_dict() for each in pairs(24)]
    for row in rows if uneven else []:
        row["counterfactual"] += " word"  # longer than its prompt: no head can be fed from it
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_runs(folder: Path, lab: Path) -> Path:
    for name, given in asked(lab).items():
        spec = make_spec({"study": name, "models": [str(lab / "m")], "size": "smoke", **given})
        run_study(spec, folder / name)
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose circuit is known, its task, and one that a study cannot do."""
    folder = tmp_path_factory.mktemp("lab")
    save_planted(folder / "m")
    save_task(folder / "t.jsonl")
    save_task(folder / "uneven.jsonl", uneven=True)
    return folder


@pytest.fixture(scope="module")
def made(lab: Path) -> Path:
    return make_runs(lab / "made", lab)


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A folder of two finished runs, one's own."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def text_of(page: Path) -> str:
    return page.read_text().replace("&#39;", "'").replace("&#34;", '"')


# --- the page ---


def test_the_page_has_each_runs_question_findings_and_links(runs: Path) -> None:
    page = write_front(runs)
    assert page == (runs / "report.html").resolve()
    text = text_of(page)
    assert "2 runs in runs" in text
    for name in ("circuits", "roles"):
        opened = Run.read(runs / name)
        question = STUDIES[name]
        assert f"<h2>{question[0].upper()}{question[1:]}</h2>" in text
        assert opened.study.findings(opened)[0] in text
        assert all(warning in text for warning in opened.study.warnings(opened))
        assert f'href="{name}/report.html"' in text
        assert f'src="{name}/figures/{name}.png" alt="{opened.study.shows}"' in text
        assert opened.study.shows
    assert text.count(">finished</span>") == 4  # in the list and over each run
    assert str(runs) not in text  # it can be moved


def test_reports_stay_as_they_are_and_a_run_without_one_gets_it(runs: Path) -> None:
    (runs / "circuits/report.html").write_text("as it was")
    (runs / "roles/report.html").unlink()
    write_front(runs)
    assert (runs / "circuits/report.html").read_text() == "as it was"
    assert "Which heads help" in (runs / "roles/report.html").read_text()


def test_a_run_that_others_are_writing_to_is_shown_without_a_link(runs: Path) -> None:
    (runs / "roles/report.html").unlink()
    with FileLock(runs / "roles/.lock"):
        text = text_of(write_front(runs))
    assert ">running</span>" in text
    assert "It has no report yet: it is running." in text
    assert 'href="roles/report.html"' not in text
    assert 'href="circuits/report.html"' in text


@pytest.mark.parametrize(
    ("name", "content"),
    [("manifest.json", "{"), ("study.yaml", "study: nothing"), ("study.yaml", "a: [")],
)
def test_a_run_that_cannot_be_read_is_named_with_the_reason(
    runs: Path, name: str, content: str
) -> None:
    (runs / "roles" / name).write_text(content)
    text = text_of(write_front(runs))
    assert "<h2>roles</h2>" in text
    assert ">cannot be read</span>" in text
    assert name in text
    assert "How few heads explain the effect?" in text


def test_a_cell_that_is_no_cell_spoils_its_own_run_alone(runs: Path) -> None:
    (cell,) = (runs / "roles/cells").iterdir()
    (other,) = (runs / "circuits/cells").iterdir()
    cell.write_bytes(other.read_bytes())  # whole, and of another study
    text = text_of(write_front(runs))
    assert text.count(">cannot be read</span>") == 2
    assert text.count(">finished</span>") == 2


def test_an_interrupted_and_a_failed_run_say_so(runs: Path) -> None:
    (cell,) = (runs / "circuits/cells").iterdir()
    cell.unlink()
    roles = Run.read(runs / "roles")
    roles.path_of(roles.cells[0]).unlink()
    roles.note(roles.cells[0], reason="the disk fell down", seconds=1.0)
    text = text_of(write_front(runs))
    assert ">interrupted</span>" in text
    assert ">1 failed</span>" in text
    assert "1 of 1 cell failed." in text
    assert "the disk fell down" in text


def test_only_a_few_findings_are_told(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headlab.studies.roles.page.findings", lambda run: [f"finding {n}." for n in range(9)]
    )
    text = text_of(write_front(runs))
    assert [n for n in range(9) if f"finding {n}." in text] == [0, 1, 2]
    assert "6 more on its page." in text


def test_no_file_of_others_is_replaced(runs: Path) -> None:
    (runs / "report.html").write_text("<p>mine</p>")
    with pytest.raises(HeadlabError, match="is there already and is not Headlab's"):
        write_front(runs)
    assert (runs / "report.html").read_text() == "<p>mine</p>"
    (runs / "report.html").unlink()
    assert write_front(runs) == write_front(runs)  # its own it replaces


# --- headlab report FOLDER ---


def test_report_takes_a_folder_of_runs(runs: Path) -> None:
    before = (runs / "circuits/report.html").stat().st_mtime_ns
    done = run("report", str(runs), "--quiet")
    assert (done.exit_code, done.stdout) == (0, f"{(runs / 'report.html').resolve()}\n")
    assert (runs / "circuits/report.html").stat().st_mtime_ns == before
    assert runs_in(runs) == [runs / "circuits", runs / "roles"]


def test_report_of_a_run_is_that_runs_own(runs: Path) -> None:
    done = run("report", str(runs / "circuits"), "--quiet")
    assert done.stdout.splitlines()[-1] == str((runs / "circuits/report.html").resolve())
    assert not (runs / "report.html").exists()


def test_report_of_a_folder_without_runs_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    runs.rename(tmp_path / "deep/runs")  # not directly in it
    sentence = error_of(run("report", str(tmp_path / "deep"), "--quiet"))
    assert "deep is no run and holds none" in sentence
    assert not (tmp_path / "deep/report.html").exists()
    assert "is no run: it is not there" in error_of(run("report", str(tmp_path / "gone")))


# --- in a browser ---


def test_the_page_works_offline_where_the_folder_was_moved_to(
    browser: browsers.Browser, runs: Path, tmp_path: Path
) -> None:
    write_front(runs)
    moved = runs.rename(tmp_path / "moved % elsewhere #1")
    browser.open(moved / "report.html")
    assert browser.errors == []
    pictures = [f"{name}/figures/{name}.png" for name in ("circuits", "roles")]
    assert sorted(browser.requests) == [(moved / each).as_uri() for each in pictures]
    widths = browser.js("[...document.images].map(one => one.complete && one.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 100
    assert all(browser.js("[...document.images].map(one => one.alt)"))
    links = browser.js("[...document.links].map(one => one.getAttribute('href'))")
    outward = {link for link in links if not link.startswith("#")}
    assert outward == {*pictures, "circuits/report.html", "roles/report.html"}
    assert all((moved / unquote(link)).is_file() for link in outward)
    inward = {link for link in links if link.startswith("#")}
    assert inward == {"#top", "#run-1", "#run-2"}
    assert all(browser.count(link) == 1 for link in inward)
    browser.follow('a.open[href="roles/report.html"]')
    assert browser.js("document.title").startswith("Which heads help")


@pytest.mark.parametrize("width", [360, 1200])
def test_names_of_strangers_are_text_and_nothing_scrolls_sideways(
    browser: browsers.Browser, runs: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = runs / f"{SCRIPT[1:].replace('/', '')}{'x' * 80}"
    (runs / "circuits").rename(hostile)
    (runs / "roles").rename(runs / '"><img src=x onerror=window.hacked=2>')
    (runs / "broken").mkdir()
    (runs / "broken/manifest.json").write_text("{}")
    (runs / "broken/study.yaml").write_text(f"study: '{SCRIPT}{'y' * 200}'")
    long = [f"{SCRIPT} {'z' * 300}.", "Read this."]
    monkeypatch.setattr("headlab.studies.roles.page.findings", lambda run: long)
    monkeypatch.setattr("headlab.studies.roles.page.warnings", lambda run: long)
    browser.size(width, 800)
    write_front(runs)
    browser.open(runs / "report.html")
    assert browser.errors == []
    assert browser.js("typeof window.hacked") == "undefined"
    assert browser.count("img") == 2
    assert browser.js("[...document.images].every(one => one.naturalWidth > 100)")
    assert SCRIPT in browser.js("document.body.innerText")
    assert browser.js("document.documentElement.scrollWidth") <= width
    browser.click("details.warnings summary")
    assert browser.js("document.documentElement.scrollWidth") <= width


def test_the_page_is_dark_where_the_reader_wants_it(browser: browsers.Browser, runs: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(write_front(runs))
    light = browser.js(paper)
    browser.click("#theme")
    assert browser.js(paper) != light


# --- the demo ---


@pytest.fixture
def small(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MODEL", str(lab / "m"))
    monkeypatch.setattr(demo, "SHOWN", asked(lab))


def test_the_demo_runs_each_study_and_ends_with_one_page(small: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("demo", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == str((out / "report.html").resolve())
    begun = [line for line in done.stderr.splitlines() if " studies  " in line]
    assert [line.split(":")[0] for line in begun] == ["1/2 studies  circuits", "2/2 studies  roles"]
    for name in ("circuits", "roles"):
        opened = Run.read(out / name)
        assert opened.state == "finished"
        assert opened.spec.size == "smoke"
        assert f'href="{name}/report.html"' in (out / "report.html").read_text()


def test_what_the_demo_asks_can_be_asked() -> None:
    for name, given in demo.SHOWN.items():
        spec = make_spec({"study": name, "models": [demo.MODEL], "size": "smoke", **given})
        assert (spec.study, spec.models) == (name, ["smollm2"])


def test_a_demo_given_again_runs_nothing_again(small: None, runs: Path) -> None:
    files = [*runs.glob("*/cells/*.parquet"), *runs.glob("*/report.html")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) == 4
    (runs / "roles/report.html").write_text("as it was")
    del before[runs / "roles/report.html"]
    done = run("demo", "--out", str(runs))
    assert done.exit_code == 0, done.output
    assert done.stderr.count("every cell is done already") == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (runs / "roles/report.html").read_text() == "as it was"


def test_a_failed_cell_ends_the_demo_with_an_error_and_still_a_page(
    small: None, lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"circuits": asked(lab, "uneven.jsonl")["circuits"], "roles": asked(lab)["roles"]}
    monkeypatch.setattr(demo, "SHOWN", bad)
    out = tmp_path / "out"
    done = run("demo", "--out", str(out), "--quiet")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == str((out / "report.html").resolve())
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: 1 of 2 cells failed: ")
    assert said.endswith(f"; headlab demo --out {out} tries again")
    assert Run.read(out / "roles").state == "finished"
    text = text_of(out / "report.html")
    assert ">1 failed</span>" in text
    assert ">finished</span>" in text


def test_a_study_that_is_not_there_is_not_passed_over(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SHOWN", {**demo.SHOWN, "nothing": {}})
    assert "no study 'nothing'" in error_of(run("demo", "--out", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_the_demo_leaves_a_run_and_others_files_alone(small: None, runs: Path) -> None:
    inside = error_of(run("demo", "--out", str(runs / "circuits")))
    assert "is a run itself" in inside
    (runs / "report.html").write_text("mine")
    assert "is not Headlab's" in error_of(run("demo", "--out", str(runs)))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_goes_on_where_it_stopped(
    small: None, lab: Path, tmp_path: Path, end: signal.Signals
) -> None:
    out = tmp_path / "out put"
    script = (  # the second study never ends
        "import dataclasses, sys, time; from headlab.__main__ import main\n"
        "from headlab.cli import demo; from headlab.studies import roles\n"
        f"demo.MODEL, demo.SHOWN = {str(lab / 'm')!r}, {asked(lab)!r}\n"
        "roles.STUDY = dataclasses.replace(roles.STUDY, run_cell=lambda *_: time.sleep(600))\n"
        f"sys.argv = ['headlab', 'demo', '--out', {str(out)!r}, '--quiet']; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    manifest, limit = out / "roles/manifest.json", time.monotonic() + 60
    while not manifest.exists() or "fingerprint" not in manifest.read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(end)
    _, said = process.communicate(timeout=60)
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert said.splitlines() == [f"interrupted; go on with: headlab demo --out '{out}'"]
    assert not (out / "report.html").exists()
    assert Run.read(out / "roles").state == "interrupted"
    (cell,) = (out / "circuits/cells").glob("*.parquet")
    before = cell.stat().st_mtime_ns
    done = run("demo", "--out", str(out), "--quiet")
    assert done.exit_code == 0, done.output
    assert cell.stat().st_mtime_ns == before
    assert text_of(out / "report.html").count(">finished</span>") == 4
