"""Greater than: a span of years must end after it began."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headlab.errors import HeadlabError
from headlab.examples import Example
from headlab.tasks.words import collect, dealt

if TYPE_CHECKING:
    from headlab.texts import Texts

# Things that last for years.
_NOUNS = (
    "alliance apprenticeship argument assignment attack ban battle blockade boycott building "
    "campaign captivity celebration ceasefire census climb coalition collaboration collection "
    "competition conflict conquest conspiracy construction contest contract convention "
    "correspondence court crisis cruise crusade cult debate decline deployment depression "
    "development dialogue dictatorship disagreement dispute drought dynasty education embargo "
    "emergency emigration empire employment epidemic era exchange excavation exhibition exile "
    "expansion expedition experiment famine fashion festival feud fight flood frost government "
    "guardianship hunt illness imprisonment inquiry insurgency internship investigation journey "
    "kingdom lawsuit lease marriage migration mission monarchy mourning movement negotiation "
    "occupation operation partnership patrol peace persecution pilgrimage plague plot practice "
    "presidency program project prosperity protest punishment quarantine quarrel rebellion "
    "reform regime reign research resistance retreat revival revolt rivalry rule sabbatical "
    "season service settlement siege strike struggle study survey tenure tour trade training "
    "treaty trial truce tutorship unrest uprising visit voyage war work"
)
NOUNS = _NOUNS.split()
CENTURIES = range(11, 18)
TEMPLATES = (
    "The NOUN lasted from the year START to the year ",
    "The NOUN lasted from START to ",
    "The NOUN began in START and ended in ",
    "The NOUN, begun in START, was over in ",
    "From START on there was the NOUN, which ended in ",
    "The NOUN ran from the year START until the year ",
    "It was a long time: the NOUN went on from START to ",
    "The records of the NOUN cover the years START to ",
    "The NOUN that started in START came to its end in ",
    "They still remember the NOUN of START to ",
    "The town knew the NOUN between START and ",
    "Here was the NOUN from START up to ",
)


def generate(texts: Texts, n: int, seed: int = 0) -> list[Example]:
    """`n` prompts that end in a century; the next token must make a later year.

    Where a year is two tokens (17|43), the answers are 44 to 99 against 00 to 43. Where every digit
    is a token, they are the tens above that of the year against those below it. In the
    counterfactual the year is 01 of its century, so that any answer would do.
    """
    by_digit = _splits_digits(texts)
    years = {century: _years(texts, century, by_digit) for century in CENTURIES}
    centuries = [
        century for century in CENTURIES if 1 in years[century] and len(years[century]) > 2
    ]
    if not centuries:
        raise HeadlabError(f"no century has years of two tokens, XX|YY, for {texts.name}")
    draw = random.Random(seed)
    frames = dealt(TEMPLATES, draw)

    def example(number: int) -> Example:
        century = draw.choice(centuries)
        if by_digit:
            year = draw.choice([year for year in years[century] if 20 <= year < 80])
            right = [str(digit) for digit in range(year // 10 + 1, 10)]
            wrong = [str(digit) for digit in range(year // 10)]
        else:
            year = draw.choice([year for year in years[century][:-1] if year > 1])
            right = [f"{later:02d}" for later in years[century] if later > year]
            wrong = [f"{earlier:02d}" for earlier in years[century] if earlier <= year]
        frame = next(frames).replace("NOUN", draw.choice(NOUNS)) + str(century)
        return Example(
            frame.replace("START", f"{century}{year:02d}"),
            right[0],
            counterfactual=frame.replace("START", f"{century}01"),
            wrong=tuple(wrong),
            also_right=tuple(right[1:]),
            id=f"greater-than-{seed}-{number}",
            category=f"{century}xx",
        )

    return collect(example, n, "greater-than")


def _splits_digits(texts: Texts) -> bool:
    """Whether a year is a token a digit; False where it is a token for XX and one for YY."""
    for rest in (1, 2):
        if all(_adds(texts, century, 43, rest) for century in (13, 15, 17)):
            return rest == 2
    shown = texts.token_texts(texts.ids("the year 1743"))
    raise HeadlabError(
        f"greater-than needs years of two tokens (17|43) or a token a digit; "
        f"{texts.name} reads 'the year 1743' as {shown}"
    )


def _years(texts: Texts, century: int, by_digit: bool) -> list[int]:
    """The years of a century that are the century's tokens and what remains."""
    return [year for year in range(100) if _adds(texts, century, year, 2 if by_digit else 1)]


def _adds(texts: Texts, century: int, year: int, n: int) -> bool:
    """Whether the year is the century's tokens and n more."""
    before = texts.ids(f"the year {century}").tolist()
    whole = texts.ids(f"the year {century}{year:02d}").tolist()
    return whole[: len(before)] == before and len(whole) == len(before) + n
