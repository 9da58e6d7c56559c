"""The shim between a framework and a tool."""

import ctypes
import shutil
import subprocess
from collections import Counter

import pytest
import torch
from torch import nn

import stepscope
from stepscope.errors import CaptureError
from stepscope.record.contexts.monitor import Domain, Phase, monitoring


def test_a_tool_sees_operators_begin_and_end_with_their_call_path():
    model, seen = nn.Linear(4, 4), []
    with monitoring() as monitor:

        def note(what):
            if what.name in ("aten::linear", "aten::addmm"):
                seen.append((what.name, what.phase, monitor.call_path()))

        stop = monitor.watch(Domain.OPERATOR, note)
        model(torch.randn(2, 4))
        stop()
        model(torch.randn(2, 4))
    assert [(name, phase) for name, phase, _ in seen] == [
        ("aten::linear", Phase.BEGIN),
        ("aten::addmm", Phase.BEGIN),
        ("aten::addmm", Phase.END),
        ("aten::linear", Phase.END),
    ]
    path = seen[1][2]
    assert [(f.kind, f.name) for f in path[-4:]] == [
        ("module", "model"),
        ("python", "Linear.forward"),
        ("operator", "aten::linear"),
        ("operator", "aten::addmm"),
    ]
    assert path[-5].file == __file__


def test_backward_is_linked_while_a_tool_asks_for_call_paths(tmp_path):
    from collected import Collected

    path, model = tmp_path / "run.stepscope", nn.Linear(4, 4)
    with stepscope.record_contexts(path, memory=True), monitoring() as monitor:
        monitor.watch(Domain.OPERATOR, lambda what: monitor.call_path())
        model(torch.randn(2, 4)).sum().backward()
    run = Collected.read(path)
    assert run.content["totals"]["backward_linked"] == run.content["totals"]["backward"] > 0
    engine = [c for c in run.contexts if "evaluate_function: AddmmBackward0" in c.name]
    assert [c.backward for c in engine] == [True]


def test_a_call_path_has_the_sources_asked_for():
    found = {}
    with monitoring() as monitor:

        def note(what):
            for sources in (("python",), ("operator",), ("module", "operator")):
                if what.name == "aten::relu":
                    found[sources] = [f.kind for f in monitor.call_path(sources)]

        model = nn.ReLU()
        monitor.watch(Domain.OPERATOR, note)
        model(torch.randn(2))
        with pytest.raises(CaptureError, match="expected sources"):
            monitor.call_path(["javascript"])
    assert set(found["python",]) == {"python"}
    assert set(found["operator",]) == {"operator"}
    assert found["module", "operator"] == ["module", "operator"]


def test_a_tool_that_never_stops_is_told_nothing_once_the_shim_is_finalized():
    told = []
    with monitoring() as monitor:
        for domain in Domain:
            monitor.watch(domain, told.append)
        torch.ones(3)
    assert {event.name for event in told} >= {"aten::ones"}
    told.clear()
    torch.ones(3)
    assert not told


def test_what_a_callback_does_is_neither_told_nor_counted():
    names = []
    with monitoring() as monitor:

        def note(what):
            names.append(what.name)
            torch.zeros(3)

        monitor.watch(Domain.OPERATOR, note)
        torch.ones(3)
    assert "aten::ones" in names
    assert "aten::zeros" not in names


def test_memory_is_told_with_its_address_and_size():
    from stepscope.record.contexts.context_options import ContextOptions

    told = []
    with monitoring(ContextOptions(memory=True)) as monitor:
        monitor.watch(Domain.MEMORY, told.append)
        kept = torch.empty(1000, dtype=torch.float32)
        address = kept.data_ptr()
        del kept
    mine = [what for what in told if what.address == address]
    assert [(w.phase, w.bytes, w.name) for w in mine] == [
        (Phase.ALLOCATE, 4000, "cpu"),
        (Phase.RELEASE, 4000, "cpu"),
    ]


def test_operators_are_told_with_their_tensors_while_a_tool_watches_them():
    told = []
    with monitoring() as monitor:
        stop = monitor.watch(Domain.TENSORS, told.append)
        torch.ones(2, 3).matmul(torch.ones(3, 5, dtype=torch.float32))
        stop()
        torch.ones(2, 3).exp()
    pairs = {(event.phase, event.tensors) for event in told if event.name == "aten::matmul"}
    assert pairs == {
        (Phase.BEGIN, (("Float", (2, 3), "cpu", 24), ("Float", (3, 5), "cpu", 60))),
        (Phase.END, (("Float", (2, 5), "cpu", 40),)),
    }
    assert "aten::exp" not in {event.name for event in told}


def test_every_operator_of_a_training_step_is_told_with_its_tensors():
    model, names = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)), {}
    with monitoring() as monitor:
        for domain in (Domain.OPERATOR, Domain.TENSORS):
            told = names.setdefault(domain, [])
            monitor.watch(
                domain, lambda event, told=told: told.append((event.phase, event.name, event.tensors))
            )
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    operators, tensors = ([one[:2] for one in told] for told in names.values())
    assert {"aten::convolution_backward", "aten::mm", "AddmmBackward0"} <= {name for _, name in operators}
    assert Counter(operators) == Counter(tensors)
    gradient = (("Float", (2, 2), "cpu", 16),)
    assert (Phase.BEGIN, "AddmmBackward0", gradient) in names[Domain.TENSORS]


def test_compilations_are_reported():
    torch.compiler.reset()
    told = []
    with monitoring() as monitor:
        monitor.watch(Domain.COMPILATION, told.append)
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    assert [what.phase for what in told] == [Phase.BEGIN, Phase.END]


def test_a_framework_in_python_feeds_the_same_tree(tmp_path):
    """As an adapter for JAX would, which has no hooks in C++."""
    from collected import Collected

    path = tmp_path / "run.stepscope"
    told = []
    with stepscope.record_contexts(path), monitoring() as monitor:
        monitor.watch(Domain.OPERATOR, told.append)
        for _ in range(3):
            with monitor.operator("jit_step"), monitor.operator("dot_general"):
                pass
        monitor.emit(Domain.COMPILATION, Phase.BEGIN, "jit_step")
    run = Collected.read(path)
    (dot,) = run.named("dot_general")
    assert dot.count == 3
    assert dot.parent.name == "jit_step"
    assert len(told) == 12


TOOL = """
#include <cstring>
#include "monitor.h"
using namespace stepscope;
static int seen = 0, frames = 0;
static void note(const MonitorEvent& event, void* name) {
  if (event.phase != Phase::begin || strcmp(event.name, static_cast<const char*>(name))) return;
  seen++;
  frames = call_path(kPython | kOperators).size();
}
extern "C" int count(char* name) { return watch(Domain::op, note, name); }
extern "C" int counted(int number) { unwatch(number); return seen; }
extern "C" int deep() { return frames; }
"""


def test_a_tool_in_cplusplus_watches_the_same(tmp_path):
    (tmp_path / "tool.cpp").write_text(TOOL)
    name = ctypes.create_string_buffer(b"aten::ones")
    with monitoring() as monitor:
        library = tmp_path / "libtool.so"
        source = [f"-I{monitor.headers}", str(tmp_path / "tool.cpp"), str(monitor.library)]
        compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))))
        subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", *source, "-o", str(library)], check=True)
        tool = ctypes.CDLL(str(library))
        number = tool.count(name)
        torch.ones(3)
        torch.zeros(3)
        assert tool.counted(number) == 1
        assert tool.deep() > 2  # this test, what called it, the operator
        torch.ones(3)
        assert tool.counted(number) == 1
