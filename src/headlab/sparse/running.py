"""Turn a model into a sparse one: train, stop by at several levels, keep what each is worth."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from headlab import __version__
from headlab.errors import HeadlabError
from headlab.files import as_json, require_folder, write_whole
from headlab.sparse.adapting import merged_weights
from headlab.sparse.card import write_card
from headlab.sparse.corpus import Corpus, make_corpus, require_source
from headlab.sparse.files import save_model
from headlab.sparse.gating import gate_attention, remove_gating
from headlab.sparse.keeping import alone, forget, keep, kept, require_key, require_same
from headlab.sparse.measuring import Yardstick, make_tasks
from headlab.sparse.settings import Settings
from headlab.sparse.stopping import Interrupted, asked_to_stop
from headlab.sparse.training import RUNAWAY, State, Trainer, Unsound
from headlab.studies.provenance import file_fingerprint, fingerprint
from headlab.tasks import find_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headlab.model import Model

SUMMARY = "sparsify.json"
_ENDS = {"sparse": "final", "twin": "twin"}  # trainings, and the model each ends with


@dataclass(frozen=True)
class Order:
    """What is asked for beside the settings."""

    load: Callable[[], Model]  # a new copy of the dense model each time
    data: Sequence[str]  # files, hub
    out: Path
    twin: bool = False
    sparse: bool = True  # False: the twin alone
    texts: Sequence[str] = ()  # more files to measure the loss on
    tasks: Sequence[str] = ("ioi",)
    examples: int = 64  # of each task
    dtype: torch.dtype = torch.float32  # of products, on a GPU
    every: int = 100  # steps between two measurements
    keep_every: int = 200  # steps between two states on disk
    progress: Callable[[int], None] = lambda _: None
    told: Callable[[str], None] = lambda _: None


@dataclass
class Sparsified:
    """What training left: for each model (dense, level-30 ..., final, twin) what it is worth."""

    model: str
    folder: Path
    settings: Settings
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def missed(self) -> list[float]:
        """Levels that a finished training has not reached."""
        if "final" not in self.rows:
            return []
        return [one for one in self.settings.levels if level_name(one) not in self.rows]


def level_name(level: float) -> str:
    return f"level-{level:g}"


def sparsify(order: Order, settings: Settings) -> Sparsified:
    """Train, or go on with a training that was interrupted, in the order's folder."""
    return _Work(order, settings).run()


class _Work:
    def __init__(self, order: Order, settings: Settings):
        self.order, self.settings = order, settings
        self.states = order.out / "state"
        _require_own(order.out)
        for source in (*order.data, *order.texts):
            require_source(source)
        for task in order.tasks:
            find_task(task)
        model = order.load()
        if model.tokenizer is None:
            raise HeadlabError(f"{model.name} has no tokenizer, and text is trained on")
        _require_dense(model)
        if model.max_length is not None and settings.context > model.max_length:
            raise HeadlabError(
                f"{model.name} has positions for {model.max_length} tokens, fewer than a context "
                f"of {settings.context}"
            )
        self.key = {
            "model": fingerprint(model),
            "settings": settings.as_dict(),
            "data": [_mark(each) for each in order.data],
            "texts": [_mark(each) for each in order.texts],
            "tasks": [*order.tasks, order.examples],
            "dtype": str(order.dtype),
        }
        require_key(self.states, self.key)
        self.found = Sparsified(model.name, order.out, settings, self._known())
        if self._is_done:
            return
        needed = settings.steps * settings.batch * settings.context * 11 // 10
        self.corpus = make_corpus(order.data, model.tokenizer, settings.context, order.told, needed)
        self.yardstick = self._make_yardstick(model)
        if "dense" not in self.found.rows:
            dense = self.yardstick.read(model, lambda ids: model.hf(input_ids=ids).logits)
            self.found.rows["dense"] = {**dense, "step": 0, "name": "dense"}
        order.told(_numbers("dense", self.found.rows["dense"]))

    def run(self) -> Sparsified:
        if not self._is_done:
            with alone(self.states):
                self.found.rows |= self._known()  # another process may have gone on before
                for kind, last in self._asked.items():
                    if last in self.found.rows:
                        self.order.progress(self.settings.steps)
                    else:
                        self._train(kind, last)
        self._tidy()
        return self.found

    def _tidy(self) -> None:
        """States of trainings that are over are not needed; another process may be at others."""
        if not self.states.is_dir():
            return
        with suppress(HeadlabError), alone(self.states):
            for kind, last in _ENDS.items():
                if last in self.found.rows:
                    forget(self.states, kind)

    @property
    def _asked(self) -> dict[str, str]:
        """Trainings by kind, each with the model it ends with."""
        asked = {"sparse": self.order.sparse, "twin": self.order.twin}
        return {kind: last for kind, last in _ENDS.items() if asked[kind]}

    @property
    def _is_done(self) -> bool:
        return all(last in self.found.rows for last in self._asked.values())

    # --- what there is already ---

    def _known(self) -> dict[str, dict[str, Any]]:
        path = self.order.out / SUMMARY
        if not path.is_file():
            return {}
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            key, rows = told["key"], told["rows"]
        except (OSError, ValueError, KeyError, TypeError):
            raise HeadlabError(f"{path} cannot be read; give --out another folder") from None
        require_same(self.order.out, self.key, key)
        return dict(rows)

    def _make_yardstick(self, model: Model) -> Yardstick:
        order, context = self.order, self.settings.context
        assert model.tokenizer is not None
        texts = {"held out": self.corpus.held_out}
        for name in order.texts:
            if Path(name).name in texts:
                raise HeadlabError(f"two texts to measure on are called {Path(name).name}")
            texts[Path(name).name] = _spread(make_corpus([name], model.tokenizer, context))
        tasks, told = make_tasks(model, order.tasks, order.examples, self.settings.seed)
        for sentence in told:
            order.told(sentence)
        return Yardstick(texts, tasks)

    # --- training ---

    def _train(self, kind: str, last: str) -> None:
        order, settings = self.order, self.settings
        trainer = Trainer(order.load, self.corpus, settings, kind == "twin", order.dtype)
        before = next(kept(self.states, kind, self.key), None)
        if before is not None:
            trainer.restore(*before)
            order.told(f"{kind}: going on after step {trainer.state.step} of {settings.steps}")
            order.progress(trainer.state.step)
        elif kind == "sparse":
            self._measure(trainer, kind, "start")
        with self._sound(trainer, kind), asked_to_stop(order.told) as is_asked:
            while trainer.state.step < settings.steps:
                trainer.step()
                order.progress(1)
                self._look(trainer, kind)
                if is_asked():
                    keep(self.states, kind, self.key, trainer.tensors(), trainer.state)
                    raise Interrupted(trainer.state.step)
        self._save(trainer, last)
        self._finish(trainer, kind)

    def _look(self, trainer: Trainer, kind: str) -> None:
        """Measure, save a level that was passed, keep the state: each when it is due."""
        state, order = trainer.state, self.order
        passed = [] if kind == "twin" else self._passed(trainer)
        for level in passed:
            self._save(trainer, level_name(level))
        if not passed and state.step % order.every == 0 and state.step < self.settings.steps:
            self._measure(trainer, kind)
        if passed or (state.step % order.keep_every == 0 and state.step < self.settings.steps):
            keep(self.states, kind, self.key, trainer.tensors(), state)

    def _measure(self, trainer: Trainer, kind: str, name: str | None = None) -> None:
        """What it is worth now, in the log and on the screen."""
        state = trainer.state
        row = {**self._read(trainer), "step": state.step, **({"name": name} if name else {})}
        state.measured.append(row)
        beta = None if kind == "twin" else state.beta
        self.order.told(_numbers(name or f"{kind}, step {state.step}", row, beta))

    def _passed(self, trainer: Trainer) -> list[float]:
        """Levels that were reached at this step; one that the start has is none."""
        there = {each["name"]: each for each in trainer.state.measured if "name" in each}
        row = trainer.state.log[-1]
        if row["loss"] - row["dense_loss"] > RUNAWAY:
            return []  # it is on its way to nowhere
        share = 100 * row["edges"]  # of the step's own batch, with hard gates
        first = 100 * there["start"]["edges"]
        levels = [each for each in self.settings.levels if share <= each < first]
        return [each for each in levels if level_name(each) not in there]

    def _read(self, trainer: Trainer) -> dict[str, Any]:
        row = self.yardstick.read(trainer.model, trainer.dense_logits)
        if trainer.gating is not None:
            own, dense = row["loss held out"], self.found.rows["dense"]["loss held out"]
            value = row["kl"] if self.settings.constraint == "kl" else own - dense
            row["in bound"] = value <= self.settings.bound
        return row

    def _save(self, trainer: Trainer, name: str, row: dict[str, Any] | None = None) -> None:
        """A model folder with what it is worth."""
        state = trainer.state
        row = {**(row or self._read(trainer)), "step": state.step, "name": name}
        state.measured.append(row)
        told = _without_map(row)
        hf, bias = trainer.model.hf, None if trainer.gating is None else trainer.gating.bias
        weights = merged_weights(hf) if hasattr(hf, "get_base_model") else None
        inner = hf.get_base_model() if hasattr(hf, "get_base_model") else hf
        rows = {"dense": self.found.rows["dense"], name: row}
        settings = self.settings.as_dict()
        card = write_card(
            *(name, self.found.model, settings, list(self.order.data), rows, bias is not None)
        )
        about = {"measured": told, "settings": settings}
        save_model(
            self.order.out / name, inner, trainer.model.tokenizer, card, bias, about, weights
        )
        self.order.told(_numbers(name, row, None if bias is None else state.beta))

    def _finish(self, trainer: Trainer, kind: str) -> None:
        """The log, the figure and the summary."""
        out, state, rows = self.order.out, trainer.state, self.found.rows
        rows |= {each["name"]: each for each in state.measured if "name" in each}
        self._write_log(state, kind)
        told = {
            "model": self.found.model,
            "headlab": __version__,
            "data": [Path(each).name for each in self.order.data],
            "settings": self.settings.as_dict(),
            "not_reached": self.found.missed,
            "key": self.key,
            "rows": rows,
        }
        write_whole(out / SUMMARY, as_json(told))

    def _write_log(self, state: State, kind: str) -> None:
        from headlab.sparse.figure import save_training

        out, rows = self.order.out, self.found.rows
        log = out / ("log.parquet" if kind == "sparse" else "log-twin.parquet")
        write_whole(log, pd.DataFrame(state.log).to_parquet(index=False))
        if kind == "sparse":
            dense = {task: rows["dense"][task] for task in self.yardstick.tasks}
            name = Path(self.found.model).name
            save_training(state.log, state.measured, self.settings, dense, name, out / "figures")

    @contextmanager
    def _sound(self, trainer: Trainer, kind: str) -> Iterator[None]:
        """Where the loss fails, the log is written and the last good state becomes a model."""
        try:
            yield
        except Unsound as error:
            if trainer.state.log:
                self._write_log(trainer.state, kind)
            trainer.optimiser.zero_grad(set_to_none=True)
            step = self._save_good(trainer, kind)
            told = (
                "no state that is good was kept yet"
                if step is None
                else f"the model of step {step} is in {self.order.out / 'last-good'}"
            )
            raise HeadlabError(f"{error}; {told}; try a smaller --rate in another folder") from None

    def _save_good(self, trainer: Trainer, kind: str) -> int | None:
        """The newest state that is worth something, as a model; its step."""
        loss = "loss held out"
        for tensors, state in kept(self.states, kind, self.key):
            trainer.restore(tensors, state)
            try:
                row = self._read(trainer)
            except HeadlabError:  # NaN
                continue
            if row[loss] - self.found.rows["dense"][loss] < RUNAWAY:  # of NaN it is not
                self._save(trainer, "last-good", row)
                return state.step
        return None


def _require_own(out: Path) -> None:
    require_folder(out)
    own = (out / SUMMARY).is_file() or (out / "state").is_dir()
    if out.is_dir() and any(out.iterdir()) and not own:
        raise HeadlabError(f"{out} is there already and is no training; give another folder")


def _require_dense(model: Model) -> None:
    """Refuse, before anything is written, a model that is sparse or can not be."""
    if model.sparse is not None:
        raise HeadlabError(f"{model.name} is sparse already; give the dense model it came from")
    attention = model.hf.config._attn_implementation
    shape = model.n_layers, model.n_heads
    gate_attention(model.hf, model.seam, model.name, torch.zeros(shape))
    remove_gating(model.hf, model.seam, attention)


def _mark(source: str) -> str:
    """What tells a source from another of the same name."""
    path = Path(source).expanduser()
    return file_fingerprint(path) if path.is_file() else source


def _spread(corpus: Corpus, most: int = 256) -> Any:
    """Contexts all over a text."""
    n = len(corpus.contexts)
    return corpus.contexts[:: -(-n // most)]


def _without_map(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "map"}


def _numbers(name: str, row: Mapping[str, Any], beta: float | None = None) -> str:
    """One line: where it stands.

    >>> _numbers("dense", {"edges": 1.0, "loss held out": 3.25, "kl": 0.0, "ioi": 5.4, "step": 0})
    'dense: edges 100.00 %, loss held out 3.250, kl 0.000, ioi 5.400'
    """
    parts = [
        f"edges {100 * value:.2f} %" if key == "edges" else f"{key} {value:.3f}"
        for key, value in row.items()
        if key not in ("map", "step", "name", "in bound")
    ]
    return f"{name}: {', '.join(parts)}" + ("" if beta is None else f", β {beta:.3g}")
