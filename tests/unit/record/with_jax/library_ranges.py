"""Batches and checkpoints of libraries have ranges during steps; run by `test_with_jax.py`."""

from __future__ import annotations

import pickle
import sys
import threading
from contextlib import contextmanager
from types import ModuleType

import jax
import numpy as np
import pytest

from stepscope.facts.annotate.range_names import stage_of_range
from stepscope.record.jax.program_ranges import LibraryRanges


class DatasetIterator:
    """As grain's: each kind of iterator asks the one below it."""

    def __next__(self):
        raise NotImplementedError


class Elements(DatasetIterator):
    def __init__(self):
        self.left = 7

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


class Batches(DatasetIterator):
    def __init__(self, below):
        self.below = below

    def __next__(self):
        return [next(self.below) for _ in range(3)]


ORIGINAL = {kind: vars(kind)["__next__"] for kind in (DatasetIterator, Elements, Batches)}


@pytest.fixture
def ranges(monkeypatch):
    """The names of the ranges, while grain's iterators are watched."""
    names = []

    @contextmanager
    def annotation(name):
        names.append(name)
        yield

    monkeypatch.setattr(jax.profiler, "TraceAnnotation", annotation)
    module = ModuleType("grain")
    module.DatasetIterator = DatasetIterator
    monkeypatch.setitem(sys.modules, "grain._src.python.dataset.dataset", module)
    watching = LibraryRanges()
    yield names
    watching.remove()
    assert {kind: vars(kind)["__next__"] for kind in ORIGINAL} == ORIGINAL


def test_each_request_of_the_loop_is_one_range(ranges):
    batches = Batches(Elements())
    assert [next(batches), next(batches)] == [[6, 5, 4], [3, 2, 1]]
    assert ranges == ["enumerate(grain)#Batches.__next__"] * 2
    assert {stage_of_range(name) for name in ranges} == {"data_loading"}


def test_the_end_of_the_data_is_passed_on(ranges):
    batches = Batches(Elements())
    next(batches), next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    next(Elements())
    assert len(ranges) == 4  # the request that failed is over


def test_threads_that_load_ahead_have_none(ranges):
    loading = threading.Thread(target=next, args=(Batches(Elements()),))
    loading.start()
    loading.join()
    assert ranges == []


def test_a_checkpoint_is_a_range_of_its_stage(ranges, tmp_path):
    with (tmp_path / "params.pkl").open("wb") as file:
        pickle.dump({"w": np.ones(3)}, file)
    np.savez(tmp_path / "params.npz", w=np.ones(3))
    assert ranges == ["stepscope.checkpointing: pickle.dump ()", "stepscope.checkpointing: numpy.savez ()"]
    assert {stage_of_range(name) for name in ranges} == {"checkpointing"}
    assert np.load(tmp_path / "params.npz")["w"].tolist() == [1, 1, 1]


def test_checkpointers_of_any_kind_have_one_range(monkeypatch):
    """As orbax's: one that saves in the background is derived, has `save` of its own, and is waited for."""

    class Checkpointer:
        def save(self):
            return "saved"

    class AsyncCheckpointer(Checkpointer):
        def save(self):
            return super().save()

        def wait_until_finished(self):
            return "finished"

    module, names = ModuleType("orbax.checkpoint"), []
    module.Checkpointer = Checkpointer
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", module)

    @contextmanager
    def ranging(name):
        names.append(name)
        yield

    watching = LibraryRanges(ranging)
    assert AsyncCheckpointer().save() == "saved"
    assert AsyncCheckpointer().wait_until_finished() == "finished"
    watching.remove()
    label = "stepscope.checkpointing: orbax.checkpoint.Checkpointer"
    assert names == [f"{label}.save ()", f"{label}.wait_until_finished ()"]
    assert [*vars(AsyncCheckpointer)].count("save") == 1
    assert AsyncCheckpointer().save() == "saved"
    assert len(names) == 2


def test_a_function_that_the_program_imported_by_name_has_a_range(ranges, monkeypatch, tmp_path):
    program = ModuleType("program")
    program.savez = np.savez
    monkeypatch.setitem(sys.modules, "program", program)
    watching = LibraryRanges()
    program.savez(tmp_path / "params.npz", w=np.ones(3))
    watching.remove()
    assert "stepscope.checkpointing: numpy.savez ()" in ranges
    assert program.savez is np.savez


def test_keras_asks_for_each_batch_by_the_builtin_next(ranges, monkeypatch):
    """Whatever loads it, also in a loop that has begun before."""
    keras = ModuleType("keras.src.backend.jax.trainer")
    exec("def train(batches):\n    return next(batches)", vars(keras))
    monkeypatch.setitem(sys.modules, "keras.src.backend.jax.trainer", keras)
    batches = (np.full(2, number) for number in range(3))
    assert keras.train(batches)[0] == 0
    watched = LibraryRanges()
    assert [keras.train(batches)[0] for _ in range(2)] == [1, 2]
    with pytest.raises(StopIteration):
        keras.train(batches)
    watched.remove()
    assert ranges == 3 * ["enumerate(keras)#next"]
    assert stage_of_range(ranges[0]) == "data_loading"
    assert "next" not in vars(keras)
