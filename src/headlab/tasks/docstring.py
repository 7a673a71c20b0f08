"""Docstrings: a function's arguments are documented in their order; which comes next?"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from headlab.examples import Example
from headlab.tasks.words import collect, dealt, single_tokens

if TYPE_CHECKING:
    from headlab.texts import Texts

_NAMES = (
    "action address amount angle answer area array author axis balance base batch block body "
    "book bound box branch buffer bytes cache call case cell chain channel child city client "
    "clock code color column command comment content context copy cost count country current "
    "cycle data date day default degree delay delta depth device diff digit dir distance domain "
    "edge element email end engine entry error event factor feature field figure file filter "
    "first flag folder font form format frame function gain game gate goal graph grid group "
    "guest hash head header height host hour image index info input item job key kind label "
    "language last layer left length level limit line link list load lock log loop lower margin "
    "mark mask match matrix max mean member memory message method min mode model module month "
    "name net new next node note number object offset old option order output owner pack page "
    "pair parent part path pattern person phase phone pixel place plan player point pool port "
    "position power prefix price process product project query queue radius range rank rate "
    "ratio reason record region report request result right role room root rotation route row "
    "rule sample scale scene scope score screen seed segment sender series server session shape "
    "sheet shift side signal size slot sort source space speed stack stage start state status "
    "step stop store stream string style subject sum symbol system table tag target task team "
    "template term test text theme thread threshold tick time title token tool top total track "
    "tree trial trigger type unit update upper user value vector version view volume weight "
    "width window word worker year zone"
)
NAMES = _NAMES.split()
_WORDS = (
    "air animal army art baby bank bird blood board boat bread bridge brother cat chair church "
    "class coat corn cotton cow crime cup dance desk dinner dog door dream dress dust ear earth "
    "east egg evening eye face farm father field fire fish floor flower food foot forest fruit "
    "garden glass gold grass hair hand hat heart hill history home horse hospital hotel house "
    "ice iron island king kitchen lake land law leaf leg letter library light lunch machine "
    "market meat metal milk money moon morning mother mountain mouth music neck night north "
    "nose oil paint paper park peace people picture plant plate poem police president queen "
    "rain rice ring river road rock roof rose salt sand school sea shoe shop silver sister skin "
    "sky smoke snow soil song south spring star steam steel stone storm street sugar summer sun "
    "teacher teeth tower town tree village voice wall war water west wheel wind wine winter "
    "woman wood wool"
)
WORDS = [word for word in _WORDS.split() if word not in NAMES]
# How many of the other arguments stand before, words of the summary, kind of function.
_SHAPES = tuple(itertools.product(range(4), range(2, 6), ("def", "async def")))


def generate(texts: Texts, n: int, seed: int = 0) -> list[Example]:
    """`n` functions of self and six arguments, the docstring giving the first two of three that
    stand together; the third comes next.

    In the counterfactual the function has three other arguments in their place: nothing in it
    tells what comes after the two that are documented.
    """
    names = single_tokens(texts, NAMES, at_least=40, what="the arguments of docstring")
    words = single_tokens(texts, WORDS, at_least=40, what="the words of docstring")
    draw = random.Random(seed)
    shapes = dealt(_SHAPES, draw)

    def example(number: int) -> Example:
        chosen = draw.sample(names, 9)
        matching, others, unrelated = chosen[:3], chosen[3:6], chosen[6:]
        before, summary, kind = next(shapes)
        function, *said = draw.sample(words, 10)

        def text(three: list[str]) -> str:
            arguments = ", ".join(["self", *others[:before], *three, *others[before:]])
            return (
                f"{kind} {function}({arguments}):\n"
                f'    """{" ".join(said[4 : 4 + summary])}\n\n'
                f"    :param {matching[0]}: {said[0]} {said[1]}\n"
                f"    :param {matching[1]}: {said[2]} {said[3]}\n"
                "    :param"
            )

        return Example(
            text(matching),
            f" {matching[2]}",
            counterfactual=text(unrelated),
            wrong=tuple(f" {name}" for name in (*matching[:2], *others)),
            id=f"docstring-{seed}-{number}",
            category=f"{kind}, {before} arguments before, {summary} words",
        )

    return collect(example, n, "docstring")
