"""`stepscope run --contexts` on real JAX scripts, which import no torch, in real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
from collected import Collected
from oracles.context_tree import checked
from test_run_contexts import RUN

import stepscope
from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.facts.contexts import build_contexts
from stepscope.read import read

# Not by importing it: JAX warns of every fork from then on, in the tests that follow.
if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

TRAINING = """
import sys
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def update(w, x):
    grad = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2))(w)
    return w - 0.1 * grad, jnp.mean(grad)

def train(w, x, steps):
    for _ in range(steps):
        w, loss = update(w, x)  # the call
        print(float(loss))  # the wait
    return w

w, x = jnp.zeros((8, 8)), np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)
"""


@pytest.fixture
def run(tmp_path):
    def start(text, *options, **environment):
        path = tmp_path / "train.py"
        path.write_text(TRAINING + textwrap.dedent(text))
        command = [*options, str(path)] if options else [*RUN, str(path)]
        return subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**os.environ, **environment},
        )

    return start


def line_of(text):
    return next(n for n, line in enumerate(TRAINING.splitlines(), 1) if text in line)


def test_calls_waits_and_compilations_of_a_run(run, tmp_path):
    done = run("""
        train(w, x, 30)
        train(w, x[:2], 2)
        sys.exit("torch" in sys.modules)
    """)
    assert done.returncode == 0, done.stderr
    found = Collected.read(tmp_path / "train.stepscope")
    assert (found.manifest["outcome"], found.manifest["framework"]) == ("complete", "jax")
    assert found.content["notes"] == []
    calls = found.named("jit(update)", "operator")
    assert [c.count for c in calls] == [30, 2]  # from two lines of the script
    script = tmp_path / "train.py"
    assert [(c.kind, c.name) for c in calls[0].path[1:4]] == [
        ("thread", "main"),
        ("python", "<module>"),
        ("python", "train"),
    ]
    assert calls[0].lines(script)[-1] == line_of("# the call")
    assert (calls[0].file, calls[0].line) == (str(script), line_of("@jax.jit"))
    waits = found.named("wait: float(x)")
    assert [c.count for c in waits] == [30, 2]
    assert waits[0].lines(script)[-1] == line_of("# the wait")
    compiled = [c for call in calls for c in call.children]
    assert [c.name for c in compiled] == [
        "compilation of update",
        "compilation of update, again: new shape of x",
    ]
    assert [c.count for c in compiled] == [1, 1]
    for whole in compiled:
        assert {part.name for part in whole.children} == {"trace", "lower", "compile"}
        assert sum(part.cpu_ns for part in whole.children) <= whole.cpu_ns + 3
        assert whole.cpu_ns <= whole.parent.cpu_ns
    for context in [*calls, *waits]:
        cpu = context.metrics["thread_cpu_ns"]
        assert cpu["count"] == context.count
        assert cpu["sum"] > 0


def profiles(capture, folder):
    """The profiles of a capture's windows, each as a trace."""
    with zipfile.ZipFile(capture) as archive:
        names = [name for name in archive.namelist() if name.endswith(".xplane.pb")]
        return [stepscope.open(archive.extract(name, folder)) for name in names]


def is_mark(name):
    return name.startswith("stepscope.context ")


def executions_ns(profile):
    """The durations of compiled operations, without those of operations within them."""
    events = profile.events
    is_operation = events.text("category").mask("cpu_op") & (events["origin"] >= 0)
    spent = dict.fromkeys(np.flatnonzero(is_operation).tolist(), 0)
    for row in spent:
        spent[row] += events["duration_ns"][row]
        above = events["parent"][row]
        while above >= 0 and above not in spent:
            above = events["parent"][above]
        if above >= 0:
            spent[above] -= events["duration_ns"][row]
    return sum(spent.values())


def test_operations_are_below_the_calls_that_asked_for_them(run, tmp_path):
    assert run("train(w, x, 300)").returncode == 0
    tree = build_contexts(stepscope.open(tmp_path / "train.stepscope"))
    checked(tree)
    [call] = tree.search(r"^jit\(update\)$")
    lines = {
        tree.nodes["line"][node]
        for row in tree.search("^dot_general$", under=call)
        for node in tree.path(row)
    }
    assert {line_of("# the call"), line_of("grad = jax.grad(lambda")} <= lines
    assert tree.search("^transpose$", via="backward", under=call).size
    windows = profiles(tmp_path / "train.stepscope", tmp_path)
    recorded = tree.inclusive("compiled_ns").sum
    assert recorded[0] == pytest.approx(sum(map(executions_ns, windows)), rel=0.05)
    assert recorded[call] > 0.9 * recorded[0]
    marks = [window.events.text("name").where(is_mark).sum() for window in windows]
    assert 4 <= tree.own("compiled_ns").count[tree.subtree(call)].max() <= sum(marks)
    [note] = tree.notes
    assert "calls of compiled functions, recorded during" in note.message


def test_a_profiler_of_the_script_gets_its_whole_profile(run, tmp_path):
    done = run("""
        train(w, x, 5)  # a window is open
        with jax.profiler.trace("own"):
            train(w, x, 20)
        train(w, x, 5)
    """)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "own").rglob("*.xplane.pb")
    events = stepscope.open(path).events
    called = events.text("name").mask("PjitFunction(update)")
    outermost = called & ~np.append(called, False)[events["parent"]]  # each is recorded twice
    assert outermost.sum() == 20
    assert not events.text("name").where(is_mark).any()


def test_a_run_that_is_killed_keeps_its_windows(run, tmp_path):
    done = run("""
        import os, pathlib, signal, time
        train(w, x, 300)
        while not pathlib.Path("train.stepscope").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.returncode == -signal.SIGKILL
    tree = build_contexts(stepscope.open(tmp_path / "train.stepscope"))
    assert tree.total("compiled_ns") > 0


def test_results_are_those_of_the_script_alone(run):
    plain = run("train(w, x, 40)", sys.executable)
    assert run("train(w, x, 40)").stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 40


def test_the_tree_opens_and_its_sums_are_conserved(run, tmp_path):
    run("jax.block_until_ready(train(w, jnp.asarray(x), 3)); np.asarray(w + 1)")
    tree = build_contexts(stepscope.open(tmp_path / "train.stepscope"))
    checked(tree)
    names = set(tree.nodes.text("name").values)
    assert {"jit(update)", "wait: block_until_ready", "wait: np.asarray(x)"} <= names
    assert tree.has("thread_cpu_ns")
    assert not len(read(tmp_path / "train.stepscope")["warnings"])


def test_a_compiled_function_stays_what_it_is(run):
    done = run("""
        import gc, inspect, pickle, weakref
        kind = type(update)
        print(kind.__name__, list(inspect.signature(update).parameters))
        class Holder:
            method = jax.jit(lambda self, x: x + 1, static_argnums=0)
        print(Holder().method(1), update.lower(w, x).as_text() != "")
        try:
            update(w)
        except TypeError as error:
            print("TypeError", "missing" in str(error))
        short = jax.jit(lambda x: x * 2)
        print(short(2), short(x=3))
        gone = weakref.ref(short)
        del short
        gc.collect()
        print(gone())
        mapped = jax.vmap(jax.jit(jnp.sum))(jnp.ones((3, 2)))
        print(float(mapped[0]), jax.grad(jax.jit(jnp.sin))(0.0))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "PjitFunction ['w', 'x']",
        "2 True",
        "TypeError True",
        "4 6",
        "None",
        "2.0 1.0",
    ]


def test_other_threads_have_their_own_contexts(run, tmp_path):
    run("""
        import threading
        threads = [threading.Thread(target=train, args=(w, x, 20)) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """)
    found = Collected.read(tmp_path / "train.stepscope")
    (calls,) = found.named("jit(update)", "operator")
    assert (calls.path[1].name, calls.count) == ("python", 60)


def test_a_function_made_in_each_iteration_is_reported(run, tmp_path):
    done = run("""
        for _ in range(3):
            jax.jit(lambda x: x + 1.5)(w)
    """)
    assert done.returncode == 0, done.stderr
    counts = Collected.read(tmp_path / "train.stepscope").counts()
    assert counts["jit(<lambda>)"] == 3
    assert counts["compilation of <lambda>, again: the function was created again"] == 2


def test_torch_imported_after_jax_is_recorded_too(run, tmp_path):
    done = run("import torch; torch.ones(2) + 1; train(w, x, 2)")
    assert done.returncode == 0, done.stderr
    found = Collected.read(tmp_path / "train.stepscope")
    assert found.counts()["jit(update)"] == 2


def test_analyze_reports_what_is_compiled_repeatedly(run, tmp_path):
    run("""
        for size in (2, 3, 4):
            train(w, x[:size], 1)
    """)
    found = apply_rules(RuleContext(stepscope.open(tmp_path / "train.stepscope")), RULES)
    (finding,) = (one for one in found if one.rule == "recompilation")
    assert finding.what.startswith("jax.jit recompiled 2 times, ")
    assert finding.what.endswith("Mostly update (new shape of x).")
    assert finding.evidence[0].file == str(tmp_path / "train.py")
    assert finding.evidence[0].line == line_of("@jax.jit")
