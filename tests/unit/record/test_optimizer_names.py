"""How the ranges of optimizers are named."""

import gc
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stepscope.record.call_sites import entries, holder_in
from stepscope.record.optimizers import OptimizerNames

names: OptimizerNames


@pytest.fixture(autouse=True)
def fresh_names():
    global names
    names = OptimizerNames()


def optimizer():
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)


def name_of(it):
    names.range_of(it)
    return names._labels[it].removeprefix("stepscope.optimizer: ")


def test_the_variable_names_it():
    for_critic, for_generator = optimizer(), optimizer()
    found = [name_of(for_critic), name_of(for_generator)]
    assert found == ["for_critic", "for_generator"]


def test_the_outermost_caller_knows_best():
    def update(optimizer):
        return name_of(optimizer)

    generator_optimizer = optimizer()
    found = update(generator_optimizer)
    assert found == "generator_optimizer"


def test_attributes_and_members():
    class Agent:
        def __init__(self):
            self.actor_optimizer, self.others = optimizer(), {"critic": optimizer()}
            self.listed = [optimizer()]

        def learn(self):
            return [name_of(self.actor_optimizer), name_of(self.others["critic"]), name_of(self.listed[0])]

    found = Agent().learn()
    assert found == ["actor_optimizer", "others.critic", "listed.0"]


def test_a_key_that_is_no_name_counts_by_its_position():
    model = nn.Linear(1, 1)
    each = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}
    longest, longer = "x" * 100, "x" * 101
    by_text = {longest: optimizer(), longer: optimizer(), 7: optimizer()}
    assert [name_of(one) for one in each.values()] == ["each.0", "each.1"]
    assert [name_of(one) for one in by_text.values()] == [f"by_text.{longest}", "by_text.1", "by_text.7"]
    by_weight = {weight: nn.Linear(1, 1) for weight in model.parameters()}
    assert holder_in(sys._getframe(), by_weight[model.bias])[1] == "by_weight.1"


def test_where_the_optimizer_of_a_task_is_gone_nothing_says_which_modules_it_updated():
    outer, inner = optimizer(), optimizer()
    name_of(outer), name_of(inner)
    assert list(names.by_optimizer().values()) == ["outer", "inner"]
    del inner
    gc.collect()
    assert names.by_optimizer() == {}


def test_a_wrapper_in_a_variable():
    prepared = SimpleNamespace(optimizer=optimizer())
    found = name_of(prepared.optimizer)
    assert found == "prepared"


def test_a_variable_that_holds_each_in_turn_names_none():
    pair = (optimizer(), optimizer())
    for one in pair:
        name_of(one)
    assert [name_of(pair[0]), name_of(pair[1])] == ["pair.0", "pair.1"]


def test_without_a_variable_the_class_names_it():
    def made():
        return iter([optimizer(), optimizer()])

    found = [name_of(each) for each in [*made()]]
    kept = names._labels.keyrefs()
    assert found[0] == "each"  # until another shows that it is the name of any
    assert len(kept) == len([one for one in kept if one()])


def test_names_keep_no_optimizer_alive():
    it = optimizer()
    name_of(it)
    del it
    assert not [one for one in names._labels.keyrefs() if one()]


class Lazy:
    """Stands for an object that it loads when it is asked for anything."""

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")


class LazyList(list):
    def __iter__(self):
        raise AssertionError("asked for its members")

    __len__ = __iter__


class LazyDict(dict):
    def items(self):
        raise AssertionError("asked for its items")


@pytest.mark.parametrize("kind", [Lazy, LazyList, LazyDict])
def test_variables_of_others_are_not_asked(kind):
    other, model, mine = kind(), nn.Linear(1, 1), optimizer()
    assert name_of(mine) == "mine"
    assert holder_in(sys._getframe(), model) == (model, None)
    del other


def test_members_of_derived_lists_and_dicts_are_found():
    layers = nn.Linear(1, 1), nn.Linear(1, 1)
    by_place, by_key = LazyList([layers[0]]), LazyDict(second=layers[1])
    first, second = layers
    del layers
    assert holder_in(sys._getframe(), first) == (first, "by_place.0")
    assert holder_in(sys._getframe(), second) == (second, "by_key.second")
    assert list(entries(by_key, 1)) == [("second", dict.get(by_key, "second"))]
    assert list(entries(by_place, 0)) == []  # too many
