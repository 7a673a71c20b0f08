"""Question sets are what they claim: counts, grammar, sums, splits, layouts, and wrong files."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from headlab import HeadlabError, make_examples
from headlab.tasks import commonsense, syntax, word_pairs, word_problems
from headlab.tasks.questions import Item, ask, find_set, lay_out, part_of

FAMILIES = ("past-tense", "plural", "negation", "question", "pronoun", "agreement")


def family(name: str) -> list[Item]:
    return [item for item in syntax.builtin() if item.family == name]


# --- how a question is asked ---


def test_the_layout_is_the_papers_byte_for_byte():
    item = Item("The keys [is/are] lost.", "are", "agreement", wrong=("is",))
    example = lay_out(item, Item("I [am/is] ill.", "am"), "Choose the verb.", "syntax-agreement-3")
    assert example.prompt == (
        "Choose the verb.\n"
        "Question: I [am/is] ill.\n"
        "Answer: am\n"
        "Question: The keys [is/are] lost.\n"
        "Answer:"
    )
    assert example.target == " are"
    assert example.wrong == (" is",)
    assert (example.id, example.category) == ("syntax-agreement-3", "agreement")


def made_up(n: int = 300, families: tuple[str, ...] = ("a", "b", "c")) -> list[Item]:
    return [Item(f"{f} {'x' * (k % 7)}{k}?", f"{k}", f) for f in families for k in range(n)]


TOLD = {"a": "Do a.", "b": "Do b.", "c": "Do c."}


def questions(examples) -> set[str]:
    return {e.prompt.split("\nQuestion: ")[-1].removesuffix("\nAnswer:") for e in examples}


def shown(examples) -> set[str]:
    return {e.prompt.split("\nQuestion: ")[1].split("\nAnswer:")[0] for e in examples}


def test_train_and_validation_never_mix_whatever_the_seed_and_the_number():
    items = made_up()
    train, validation = set(), set()
    for seed in range(5):
        for n in (5, 60):
            train |= questions(ask(items, TOLD, n, seed, "train"))
            validation |= questions(ask(items, TOLD, n, seed, "validation"))
    assert train
    assert validation
    assert not train & validation
    assert {part_of(question) for question in train} == {"train"}
    whole = [questions(ask(items, TOLD, part=part)) for part in ("train", "validation", "all")]
    assert whole[0] | whole[1] == whole[2]
    assert len(whole[1]) / len(whole[2]) == pytest.approx(0.1, abs=0.03)


def test_the_same_questions_are_for_validation_on_every_machine():
    drawn = "".join(part_of(f"question {k}")[0] for k in range(40))
    assert drawn == "ttttttttttttttttvttttttttvttttttvvtttttt"


def test_examples_shown_are_short_of_the_same_family_and_never_asked():
    items = made_up()
    seen, asked = set(), set()
    for seed in range(20):
        for example in ask(items, TOLD, 90, seed):
            (one,) = shown([example])
            assert one.startswith(f"{example.category} ")
            assert example.prompt.startswith(TOLD[example.category])
            seen.add(one)
            asked |= questions([example])
    assert not seen & asked
    assert len(seen) == 60, "twenty of each family"
    lengths = sorted(len(item.question + item.answer) for item in items)
    longest = max(len(i.question + i.answer) for i in items if i.question in seen)
    assert longest <= lengths[len(lengths) // 4]


def test_a_sentence_shown_in_one_family_is_asked_in_none():
    items = [Item(f"s{k}", f"{f}{k}", f) for f in ("a", "b") for k in range(50)]
    examples = ask(items, TOLD)
    assert not shown(examples) & questions(examples)


def test_families_come_evenly_and_a_small_one_is_used_up():
    items = made_up(40, ("a",)) + made_up(300, ("b", "c"))
    left = len(ask(made_up(40, ("a",)), TOLD))
    counts = Counter(e.category for e in ask(items, TOLD, 30))
    assert set(counts.values()) == {10}
    counts = Counter(e.category for e in ask(items, TOLD, 240))
    assert counts["a"] == left
    assert abs(counts["b"] - counts["c"]) <= 1


def test_no_question_comes_twice_and_ids_stay_with_their_questions():
    items = made_up(60)
    first, second = (ask([*items, *items], TOLD, seed=seed, name="set") for seed in (0, 1))
    assert len({e.prompt.split("\nQuestion: ")[-1] for e in first}) == len(first)
    assert [e.id for e in first] != [e.id for e in second]
    asked = [{e.id: questions([e]) for e in examples} for examples in (first, second)]
    assert asked[0] == asked[1]
    assert all(re.fullmatch(r"set-[abc]-\d+", e.id) for e in first)
    assert ask(items, TOLD, 20, seed=3) == ask(items, TOLD, 20, seed=3)
    assert ask(items, TOLD, 40, seed=3)[:20] == ask(items, TOLD, 20, seed=3)


def test_too_many_or_impossible_questions_are_refused():
    items = made_up(50, ("a",))
    there = len(ask(items, TOLD, part="train"))
    with pytest.raises(HeadlabError, match=f"math has {there} questions for train, 51 were asked"):
        ask(items, TOLD, 51, part="train", name="math")
    with pytest.raises(HeadlabError, match="there are 45 questions, 46 were asked for"):
        ask(items, TOLD, 46)
    with pytest.raises(HeadlabError, match="at least one question"):
        ask(items, TOLD, 0)
    with pytest.raises(HeadlabError, match="a part is train, validation or all, not 'test'"):
        ask(items, TOLD, 5, part="test")
    with pytest.raises(HeadlabError, match="no instruction for the family 'z'"):
        ask([Item("q", "a", "z")], TOLD, 1)


def test_sets_are_found_by_name():
    for name in ("syntax", "commonsense", "math"):
        found = find_set(name)
        items = found.items(None)
        assert {item.family for item in items} <= set(found.instructions)
        examples = ask(items, found.instructions, 50, 0, "train", name=name)
        assert len({e.id for e in examples}) == 50
        assert all(e.target[0] == " " and e.target[1] != " " for e in examples)
    with pytest.raises(HeadlabError, match="no questions 'sintax'; did you mean 'syntax'"):
        find_set("sintax")


# --- syntax ---


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_300_different_sentences_and_no_frame_above_a_twentieth(name):
    framed = [(frame, item) for frame, item in syntax.framed() if item.family == name]
    assert len({item.question for _, item in framed}) == len(framed) >= 300
    frames = Counter(frame for frame, _ in framed)
    assert len(frames) >= 20
    assert max(frames.values()) <= 0.05 * len(framed)
    assert syntax.framed() == syntax.framed(), "the same ones always"


@pytest.mark.parametrize("name", FAMILIES)
def test_sentences_are_clean(name):
    for item in family(name):
        for text in (item.question, item.answer) if name != "agreement" else (item.question,):
            assert not re.search(r"[{}|=]|  | [.?,]", text), text
            assert text[0] == "[" or text[0].isupper(), text
            assert text[-1] in ".?!", text
            assert not re.search(r"\ba [aeio]|\ban (?!hour)[^aeiou]", text, re.I), text
        assert item.question != item.answer


def verbs(form: str, irregular: bool | None = None) -> set[str]:
    return {
        getattr(verb, form)
        for verb in syntax._tables()["v"]
        if irregular is None or irregular != verb.past_form.endswith("ed")
    }


def test_past_tense_changes_only_verbs_and_mixes_regular_with_irregular():
    made: dict[str, Counter[bool]] = {}
    for frame, item in syntax.framed():
        if item.family == "past-tense":
            before, after = item.question.split(), item.answer.split()
            changed = [old for old, new in zip(before, after, strict=True) if old != new]
            assert 1 <= len(changed) <= 3, item
            if "{v.past}" in frame:
                mix = made.setdefault(frame, Counter())
                for irregular in (True, False):
                    mix[irregular] += bool(set(after) & verbs("past_form", irregular))
    assert len(made) >= 9
    assert all(mix[True] and mix[False] for mix in made.values())


def test_negations_say_not_and_nothing_else_new():
    negative = r"\bnot\b|n't\b|\bcannot\b"
    plain = {*verbs("plain"), "want", "know", "live", "belong", "have", "start", "eat"}
    for item in family("negation"):
        assert re.search(negative, item.answer)
        assert not re.search(negative, item.question)
        if after := re.search(r"\b(?:do|does|did) not (\w+)", item.answer):
            assert after[1] in plain, item


def test_questions_begin_with_a_verb_and_end_with_a_mark():
    first = r"(Does|Do|Did|Is|Are|Was|Were|Has|Have|Had|Will|Can|Could|Should|Would) "
    for item in family("question"):
        assert item.question.endswith(".")
        assert item.answer.endswith("?")
        assert re.match(first, item.answer)
        rest = " ".join(item.answer.split()[1:])
        assert rest[0].islower() or rest.split()[0].removesuffix("'s") in syntax.names()


def test_plurals_are_right_where_rules_fail():
    answers = " ".join(item.answer.lower() for item in family("plural"))
    for word in ("children", "women", "men", "mice", "geese", "wolves", "knives", "thieves"):
        assert f" {word} " in answers or f"{word}." in answers
    assert not re.search(r"\b(childs|mans|mouses|gooses|wolfs|knifes|thiefs|sheeps|oxs)\b", answers)
    for item in family("plural"):
        assert not re.search(r"\b(these|those|are|were|have)\b", item.question, re.I)


def test_pronouns_have_the_case_and_the_gender_of_what_they_replace():
    forms = {"he", "she", "it", "they", "we", "him", "her", "them", "us", "his", "hers", "their"}
    forms |= {"theirs", "himself", "herself", "themselves"}
    women = set(syntax._tables()["f"])
    for item in family("pronoun"):
        before, after = re.split(r"\[.*\]", item.question)
        assert item.answer.startswith(before)
        assert item.answer.endswith(after)
        end = len(item.answer) - len(after)
        pronoun = item.answer[len(before) : end].lower()
        assert pronoun in forms
        named = re.search(r"\[(.*)\]", item.question)[1].removesuffix("'s")
        if named in syntax.names():
            assert (pronoun in {"she", "her", "hers", "herself"}) == (named in women)
        if not before and after[0] == " " and "'s]" not in item.question:
            assert pronoun in {"he", "she", "it", "they", "we"}


def test_agreement_has_as_many_right_answers_of_each_number_and_in_each_place():
    items = family("agreement")
    first = 0
    for item in items:
        left, right = re.search(r"\[(.+)/(.+)\]", item.question).groups()
        assert {left, right} == {item.answer, *item.wrong}
        first += left == item.answer
    assert first / len(items) == pytest.approx(0.5, abs=0.06)
    singular = {"is", "was", "has", "does", "doesn't"}
    several = {"are", "were", "have", "do", "don't"}
    one = sum(
        item.answer.lower() in singular
        or (item.answer.lower() not in several and len(item.answer) > len(item.wrong[0]))
        for item in items
    )
    assert one / len(items) == pytest.approx(0.5, abs=0.03)


def test_agreement_follows_the_head_not_the_nearest_noun():
    nouns = {n.s: n.p for kind in syntax._tables().values() for n in kind if hasattr(n, "plural")}
    found = Counter()
    for item in family("agreement"):
        if parts := re.match(r"The (\w+) next to the (\w+) \[", item.question):
            head, near = parts.groups()
            assert item.answer == ("is" if head in nouns else "are")
            found[head in nouns, near in nouns] += 1
    assert len(found) == 4, "both numbers of both"


# --- common sense ---


def test_every_commonsense_question_has_five_different_options_and_a_letter():
    items = commonsense.builtin()
    assert len(items) >= 300
    assert len({item.question.split("\n")[0] for item in items}) == len(items)
    for item in items:
        question, *options = item.question.split("\n")
        assert question.endswith("?")
        assert [option[:3] for option in options] == ["A: ", "B: ", "C: ", "D: ", "E: "]
        assert len({option[3:].lower() for option in options}) == 5
        assert {item.answer, *item.wrong} == set("ABCDE")
    letters = Counter(item.answer for item in items)
    assert all(0.15 <= count / len(items) <= 0.25 for count in letters.values()), letters


def test_options_stand_where_the_question_says_whatever_else_is_in_the_set():
    (item,) = [i for i in commonsense.builtin() if i.question.startswith("What do bees make?")]
    right = item.question.split("\n")["ABCDE".index(item.answer) + 1]
    assert right == f"{item.answer}: honey"


# --- math ---

SIGNS = {"+": "__add__", "-": "__sub__", r"\times": "__mul__", r"\div": "__truediv__"}


def test_every_sum_of_every_solution_is_true_and_the_last_is_the_answer():
    items = word_problems.builtin()
    for item in items:
        *steps, last = item.answer.split("\n")
        assert 2 <= len(steps) <= 4
        results = []
        for step in steps:
            sums = re.findall(r"\$(\d+) (\+|-|\\times|\\div) (\d+) = (\d+)\$", step)
            assert sums
            assert step.count("$") == 2 * len(sums), "nothing else is a formula"
            for a, sign, b, result in sums:
                assert getattr(int(a), SIGNS[sign])(int(b)) == int(result), step
                known = {*re.findall(r"\d+", item.question), *results, "2", "3", "4", "60", "100"}
                assert {a, b} <= known, "numbers come from the story or from before"
                results.append(result)
        assert last == rf"The answer is \boxed{{{results[-1]}}}"


def test_problems_are_different_seeded_of_any_number_and_of_many_stories():
    framed = word_problems.framed(5000)
    assert len({item.question for _, item in framed}) == 5000
    stories = Counter(name for name, _ in framed)
    assert len(stories) >= 25
    assert max(stories.values()) <= 0.05 * 5000
    assert word_problems.builtin(200) == word_problems.builtin(200)
    assert word_problems.builtin(200, seed=1) != word_problems.builtin(200)
    with pytest.raises(HeadlabError, match="at least one problem"):
        word_problems.builtin(0)


def test_stories_are_told_in_clean_sentences():
    for item in word_problems.builtin():
        for text in (item.question, *item.answer.split("\n")[:-1]):
            assert not re.search(r"[{}\[\]|]|  | [.?,]", text), text
            assert text[0].isupper() or text[0] == "$"
            assert not re.search(r"(?<![\d.,])1 [a-z]+s\b", text), text
            assert not re.search(r"\. [a-z]", text), text
        women = [name for name in syntax._tables()["f"] if re.search(rf"\b{name}\b", item.question)]
        men = [name for name in syntax._tables()["m"] if re.search(rf"\b{name}\b", item.question)]
        if women and not men:
            assert not re.search(r"\b(he|his)\b", item.question + item.answer, re.I)
        if men and not women:
            assert not re.search(r"\b(she|her)\b", item.question + item.answer, re.I)


# --- word pairs ---


def test_six_word_tasks_have_a_hundred_pairs_each():
    items = word_pairs.builtin()
    counts = Counter(item.family for item in items)
    assert set(counts) == set(word_pairs.INSTRUCTIONS)
    assert len(counts) == 6
    assert min(counts.values()) >= 100
    assert len({(item.family, item.question) for item in items}) == len(items)
    for item in items:
        assert item.question != item.answer
        assert " " not in item.question + item.answer
        if item.family == "capitalize":
            assert item.answer == item.question.capitalize()


@pytest.mark.parametrize(
    ("task", "word", "answer"),
    [
        ("antonym", "hot", "cold"),
        ("country-capital", "Australia", "Canberra"),
        ("country-capital", "Kazakhstan", "Astana"),
        ("english-french", "school", "école"),
        ("english-french", "heart", "cœur"),
        ("present-past", "teach", "taught"),
        ("present-past", "plan", "planned"),
        ("singular-plural", "mouse", "mice"),
        ("singular-plural", "roof", "roofs"),
    ],
)
def test_word_pairs_are_right(task, word, answer):
    assert Item(word, answer, task) in word_pairs.builtin()


def test_the_two_formats_ask_the_same_word_with_and_without_an_instruction():
    pairs = word_pairs.builtin()
    item = Item("hot", "cold", "antonym")
    prompt = word_pairs.few_shot(pairs, item)
    lines = prompt.split("\n")
    assert len(lines) == 22
    assert lines[-2:] == ["Question: hot", "Answer:"]
    told = list(zip(lines[:-2:2], lines[1:-2:2], strict=True))
    known = {(f"Question: {p.question}", f"Answer: {p.answer}") for p in pairs}
    assert len(set(told)) == 10
    assert set(told) <= known
    assert ("Question: hot", "Answer: cold") not in told
    antonyms = [pair for pair in pairs if pair.family == "antonym"]
    everything = word_pairs.few_shot(pairs, item, shots=len(antonyms) - 1)
    assert everything.count("Question: hot\n") == 1, "only where it is asked"
    other = word_pairs.instructed(pairs, item)
    assert other.split("\n")[0] == word_pairs.INSTRUCTIONS["antonym"]
    assert other.count("Question:") == 2
    assert other.endswith("\nQuestion: hot\nAnswer:")
    assert word_pairs.few_shot(pairs, item, seed=1) != prompt
    assert word_pairs.few_shot(pairs, item) == prompt
    with pytest.raises(HeadlabError, match="antonym has 2 pairs beside 'hot', 10 are to be shown"):
        word_pairs.few_shot(antonyms[1:3], item)
    with pytest.raises(HeadlabError, match="no word task 'rhyme'"):
        word_pairs.instructed(pairs, Item("a", "b", "rhyme"))


# --- files ---


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path.parent


def test_big_bench_files_are_read(tmp_path):
    past = {"name": "x", "examples": [{"input": "go", "target": "went", "comment": "irregular"}]}
    write(tmp_path / "syntax" / "past_tense.json", past)
    tense = [
        {"input": "He ran. Change tense to SIMPLE FUTURE: ", "target": "He will run."},
        {"input": "He ran.: ", "task_prefix": "PAST PERFECT", "target": ["He had run.", "x"]},
    ]
    write(tmp_path / "syntax" / "tense.json", {"examples": tense})
    scored = [{"input": "The keys", "target_scores": {"is": 0, "are": 1}}]
    write(tmp_path / "syntax" / "subject_verb_agreement.json", {"examples": scored})
    items = [
        Item("go", "went", "past-tense"),
        Item("The keys", "are", "agreement", ("is",)),
        Item("He ran. Change tense to SIMPLE FUTURE", "He will run.", "tense"),
        Item("He ran. Change tense to PAST PERFECT", "He had run.", "tense"),
    ]
    assert syntax.read(tmp_path) == items, "the folder above"
    assert syntax.read(tmp_path / "syntax") == items, "the folder itself"
    assert find_set("syntax").items(tmp_path) == items


def test_commonsenseqa_is_read_and_what_is_offered_twice_left_out(tmp_path):
    row = {"input": "Where?\na: here\nb: there\nc: far\nd: near\ne: home", "output": "b"}
    twice = {**row, "input": row["input"].replace("far", "here")}
    folder = write(tmp_path / "train_val.json", [row, twice])
    (item,) = commonsense.read(folder)
    assert item.question == "Where?\nA: here\nB: there\nC: far\nD: near\nE: home"
    assert (item.answer, item.wrong) == ("B", ("A", "C", "D", "E"))


def test_gsm8k_is_read_without_its_marks_and_with_a_boxed_answer(tmp_path):
    answer = "He pays 30*36 = $<<30*36=1080>>1080.\nSo:\n#### 1,080"
    line = json.dumps({"question": "How much?", "answer": answer})
    write(tmp_path / "train.jsonl", f"{line}\n\n")
    write(tmp_path / "test.jsonl", json.dumps({"question": "And?", "answer": "#### -5"}))
    first, second = word_problems.read(tmp_path)
    boxed = "He pays 30*36 = $1080.\nSo:\nThe answer is \\boxed{1080}"
    assert (first.question, first.answer) == ("How much?", boxed)
    assert second.answer.endswith("\\boxed{-5}")


def test_word_files_are_read(tmp_path):
    folder = write(tmp_path / "words" / "antonym.json", [{"input": "hot", "output": "cold"}])
    write(folder / "english-french.json", [{"output": "été", "input": "summer"}])
    items = [Item("hot", "cold", "antonym"), Item("summer", "été", "english-french")]
    assert word_pairs.read(tmp_path) == items


READERS = [
    (syntax.read, "past_tense.json"),
    (commonsense.read, "train_val.json"),
    (word_problems.read, "train.jsonl"),
    (word_pairs.read, "antonym.json"),
]


@pytest.mark.parametrize(("read", "file"), READERS)
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'[{"input": "\xe9"}]', "is not UTF-8 text"),
        (b'{"examples": 3}', "(no list of examples|example 1 has no text)"),
        (b"[]", "(no examples|example 1 has no text)"),
        (b"[3]", "example 1 has no text"),
        (b'{"examples": [{"input": "a"}]}', "(no text in|no list of examples)"),
        (b'[{"input": "a", "output": 3, "target": 3}]', "example 1 has no"),
        (b'[{"input": "\\ud800", "output": "a"}]', "(half a character|example 1 has no text)"),
    ],
)
def test_wrong_files_are_named_with_their_fault(tmp_path, read, file, content, sentence):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(HeadlabError, match=sentence) as error:
        read(tmp_path)
    assert str(tmp_path / file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("read", "file"), READERS)
def test_folders_without_the_files_are_named(tmp_path, read, file):
    with pytest.raises(HeadlabError, match=rf"{re.escape(str(tmp_path))}.*{file}"):
        read(tmp_path)
    with pytest.raises(HeadlabError, match=r"no folder .*none"):
        read(tmp_path / "none")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(HeadlabError, match=r"a\.txt is a file; give the folder it is in"):
        read(tmp_path / "a.txt")
    (tmp_path / file).mkdir()
    with pytest.raises(HeadlabError, match=f"{file} is a folder"):
        read(tmp_path)


def test_wrong_rows_are_named_by_number(tmp_path):
    good = {"input": "Where?\na: 1\nb: 2\nc: 3\nd: 4\ne: 5", "output": "b"}
    folder = write(tmp_path / "train_val.json", [good, {**good, "output": "f"}])
    with pytest.raises(HeadlabError, match="example 2 has the answer 'f', which is none of a to e"):
        commonsense.read(folder)
    write(tmp_path / "train_val.json", [{**good, "input": "Where?\na: 1\nb: 2"}])
    with pytest.raises(HeadlabError, match="example 1 has no five options"):
        commonsense.read(folder)
    write(tmp_path / "train.jsonl", '{"question": "a", "answer": "5"}')
    with pytest.raises(HeadlabError, match="example 1 has no '#### number' at the end"):
        word_problems.read(tmp_path)
    write(tmp_path / "train.jsonl", '{"question": "a", "answer": "#### 5"}\n{')
    with pytest.raises(HeadlabError, match="line 2 is not JSON"):
        word_problems.read(tmp_path)
    bad = {"examples": [{"input": "a", "target_scores": {"b": "x"}}]}
    write(tmp_path / "plural.json", bad)
    with pytest.raises(HeadlabError, match="example 1 has something else than numbers for scores"):
        syntax.read(tmp_path)


# --- the hub ---


def test_big_bench_rows_of_the_hub_are_told_apart():
    rows = [
        {"inputs": "Today I go. Yesterday I ", "targets": ["went"]},
        {"inputs": "This is an ox. Now there is another one. There are two", "targets": ["oxen"]},
        {"inputs": "If Tom saw Tom, then", "targets": ["Tom saw himself"]},
        {"inputs": "John thinks he needs help, but ", "targets": ["does he need help"]},
        {"inputs": "John thinks he needs help, but ", "targets": ["he does not need help"]},
        {"inputs": "Questo è un libro", "targets": ["libri"]},
        {"inputs": "Today I go. Yesterday I ", "targets": []},
    ]
    assert syntax.from_rows(rows, "linguistic_mappings") == [
        Item("go", "went", "past-tense"),
        Item("ox", "oxen", "plural"),
        Item("Tom saw Tom", "Tom saw himself", "pronoun"),
        Item("he needs help", "does he need help", "question"),
        Item("he needs help", "he does not need help", "negation"),
    ]
    row = {"inputs": "The keys", "targets": ["are"], "multiple_choice_targets": ["is", "are"]}
    assert syntax.from_rows([row], "subject_verb_agreement") == [
        Item("The keys", "are", "agreement", ("is",))
    ]


def test_commonsenseqa_rows_of_the_hub_become_lettered_questions():
    choices = {"label": list("ABCDE"), "text": ["bank", "sea", "sky", "hill", "road"]}
    row = {"question": "Where do fish live?", "choices": choices, "answerKey": "B"}
    (item,) = commonsense.from_rows([row, {**row, "answerKey": ""}])
    assert item.question == "Where do fish live?\nA: bank\nB: sea\nC: sky\nD: hill\nE: road"
    assert (item.answer, item.wrong) == ("B", ("A", "C", "D", "E"))


def test_the_shortest_answered_problems_of_the_hub_are_taken_once():
    def row(problem, solution, answer="1"):
        return {
            "problem": problem,
            "generated_solution": solution,
            "expected_answer": answer,
            "problem_source": "x",
        }

    rows = [
        row("long " * 9, "\\boxed{1}"),
        row("b", "a longer way: \\boxed{1}"),
        row("b", "\\boxed{1}"),
        row("unanswered", "s", ""),
        row("nothing worked out", None),
        row("cc", "\\boxed{2}"),
    ]
    items = word_problems.from_rows(rows, shortest=2)
    assert items == [Item("b", "\\boxed{1}"), Item("cc", "\\boxed{2}")]
    assert len(word_problems.from_rows(rows)) == 3
    assert word_problems.SHORTEST == 55_050


def stand_in(tables):
    """What `datasets` would bring: rows by data set, configuration and split."""

    def load_dataset(path, config, split, streaming):
        try:
            return tables[path, config, split]
        except KeyError:
            raise ValueError(f"no {config} in {path}\nsecond line") from None

    return SimpleNamespace(load_dataset=load_dataset)


def test_the_hub_is_read_by_its_own_names(monkeypatch):
    hub = "tasksource/bigbench"
    go = [{"inputs": "Today I go. Yesterday I ", "targets": ["went"]}]
    ran = [{"inputs": "He ran. Change tense to SIMPLE FUTURE: ", "targets": ["He will run."]}]
    problem = {"problem": "p", "generated_solution": "\\boxed{1}", "expected_answer": "1"}
    choices = {"label": list("ABCDE"), "text": list("vwxyz")}
    asked = [{"question": "q", "choices": choices, "answerKey": "A"}]
    tables = {
        (hub, "linguistic_mappings", "train"): go,
        (hub, "linguistic_mappings", "validation"): [],
        (hub, "tense", "train"): ran,
        (hub, "tense", "validation"): [],
        ("tau/commonsense_qa", None, "train"): asked,
        ("tau/commonsense_qa", None, "validation"): [],
        ("nvidia/OpenMathInstruct-2", None, "train_1M"): [problem],
    }
    monkeypatch.setitem(sys.modules, "datasets", stand_in(tables))
    with pytest.warns(UserWarning, match="no agreement questions: .*subject_verb_agreement"):
        assert [item.family for item in find_set("syntax").from_hub()] == ["past-tense", "tense"]
    assert [item.answer for item in find_set("commonsense").from_hub()] == ["A"]
    assert [item.question for item in find_set("math").from_hub()] == ["p"]
    monkeypatch.setitem(sys.modules, "datasets", stand_in({}))
    for name in ("syntax", "commonsense", "math"):
        with pytest.raises(HeadlabError, match=r"could not be loaded from the hub: no .*[^\n]+$"):
            find_set(name).from_hub()


def test_without_datasets_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("syntax", "commonsense", "math"):
        with pytest.raises(HeadlabError, match=r"pip install 'headlab\[hub\]' brings it$"):
            find_set(name).from_hub()
    with pytest.raises(HeadlabError, match="the word pairs are on no hub"):
        word_pairs.from_hub()


def test_word_tasks_are_found_by_name_in_both_formats_and_in_one_order() -> None:
    shown = make_examples(None, "antonym-icl", None, 3, "all")
    told = make_examples(None, "antonym-instruction", None, 3, "all")
    assert [example.id for example in shown] == [example.id for example in told]
    assert [example.target for example in shown] == [example.target for example in told]
    assert shown[0].prompt.count("Question:") == 11
    assert told[0].prompt.startswith(word_pairs.INSTRUCTIONS["antonym"])
    train = {example.id for example in make_examples(None, "words-icl", None, 0, "rank")}
    test = {example.id for example in make_examples(None, "words-icl", None, 0, "curve")}
    assert train
    assert test
    assert not train & test
    with pytest.raises(HeadlabError, match="did you mean 'antonym-icl'"):
        make_examples(None, "antonim-icl")
