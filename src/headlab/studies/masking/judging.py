"""Whether an answer is right, by its gold answer alone."""

from __future__ import annotations

from headlab.grading.answers import find_answer
from headlab.grading.quantities import has_number, numeric
from headlab.grading.words import token_f1
from headlab.tasks.cogqa import SubQuestion

ENOUGH = 0.6  # of the words' F1
JUDGED = 2  # to be raised when decisions change


def is_right(item: SubQuestion, text: str) -> bool:
    return judge(item.function, text, item.answer)


def judge(function: str, text: str, gold: str) -> bool:
    """Of calculations the number counts, where there is one; else most of the words. Of a text in
    which no JSON can be read the first paragraph is judged: what follows is often another question.

    >>> judge("math-calculation", '[ {"answer": "$48"} ]', "48 dollars")
    True
    >>> judge("retrieval", '[ {"answer": "Mary"} ]', "Mary Ann Smith")
    False
    >>> judge("inference", "not very much\\n\\nMain question: Who is Ann?", "Not very much.")
    True
    """
    answer = find_answer(text)
    answer = text.strip().partition("\n\n")[0] if answer is None else answer
    if function == "math-calculation" and has_number(gold):
        return bool(numeric(answer, gold))
    return token_f1(answer, gold) >= ENOUGH
