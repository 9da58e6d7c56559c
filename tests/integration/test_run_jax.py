"""`stepscope run` on real JAX scripts in real processes."""

import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from test_run import EXAMPLES, RUN, own_words, start, without_own_words, write
from warm_python import JAX, run_warm

import stepscope
from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.errors import TraceError
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.facts.contexts import build_contexts
from stepscope.facts.contexts.build_tree import own_shares
from stepscope.facts.correct.costs import most_of_event
from stepscope.read.shared import parse_json
from stepscope.record.step_times import FEWEST

# Not by importing it: JAX warns of every fork from then on, in the tests that follow.
if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

TRAINING = """
import sys
import jax, jax.numpy as jnp, numpy as np

def loss_of(params, x, y):
    with jax.named_scope("Net"):
        for name in ("first", "second"):
            with jax.named_scope(name):
                x = jnp.tanh(x @ params[name])
    with jax.named_scope("loss"):
        return jnp.mean((x - y) ** 2)

@jax.jit
def update(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

params = {"first": jnp.ones((64, 64)), "second": jnp.ones((64, 64))}
x = np.ones((256, 64), np.float32)

def train(steps):
    global params
    for _ in range(steps):
        params, loss = update(params, x, x)
    return loss
"""


def manifest_of(path: Path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return parse_json(archive.read("manifest.json").decode())


run_with_jax = partial(run_warm, modules=JAX)


def recorded(folder: Path, *words: str, start=run_with_jax, **options):
    """Run `stepscope run WORDS`; what it said, the manifest and the capture opened."""
    done = start([*RUN, *words], folder, **options)
    (path,) = folder.glob("*.stepscope")
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
    return done, manifest_of(path), stepscope.open(path)


def test_the_script_notices_nothing(tmp_path):
    write(
        tmp_path,
        'import sys\nprint({"jax", "numpy", "pyarrow", "msgspec", "rich"} & set(sys.modules))\n'
        + TRAINING
        + """
import threading
from jax._src import api, profiler
print(train(12).shape, jax.random.key(1), len(threading.enumerate()))
print(api._post_hook_state.get_global(), profiler._profiler.ProfilerSession)
print(isinstance(update, type(jax.jit(len))), file=sys.stderr)
sys.exit(3)
""",
    )

    done, _ = same_with_and_without_jax(tmp_path, "train.py", "--steps", "7")

    manifest = manifest_of(tmp_path / "train.stepscope")
    assert done.returncode == 3
    assert done.stdout.startswith("set()\n")
    assert manifest["outcome"] == "complete"
    assert manifest["steps_recorded"] == [5, 6, 7]
    assert manifest["step_ends_after"] == "update"
    assert (manifest["framework"], manifest["devices"], manifest["loaders"]) == ("jax", [], [])
    assert manifest["command"] == ["train.py", "--steps", "7"]
    assert own_words(done.stderr) == (
        "stepscope: recorded steps 5 to 7; wrote train.stepscope\n"
        "stepscope: next: stepscope report train.stepscope\n"
    )


def test_steps_after_the_recording_are_timed_without_waiting_for_them(tmp_path):
    """The loop reads nothing back."""
    write(
        tmp_path,
        TRAINING + "train(508)",  # where others use the machine, it is steady later
    )
    _, manifest, trace = recorded(tmp_path, "train.py")
    assert FEWEST <= manifest["unrecorded_steps"]["count"] <= 20
    assert manifest["recorded_steps"]["count"] == 3
    cost = trace.metadata.recording_cost
    # On a busy machine steps fall into kinds; tests/unit/facts/correct has the exact cost of each.
    kinds = manifest["unrecorded_steps"].get("kinds", [manifest["unrecorded_steps"]])
    medians = [kind["median_ns"] for kind in kinds]
    assert "estimated_steps" in cost or min(medians) <= cost["unrecorded_ns"] <= max(medians)
    # Means of recorded steps and medians of others do not bound it: one of three may have been stopped.
    assert 0 <= cost["removed_ns"] <= most_of_event(trace) * (cost["events"] + 1)
    recorded_as_it_is = stepscope.open(tmp_path / "train.stepscope", as_recorded=True, cache=False)
    assert not recorded_as_it_is.metadata.recording_cost


def test_the_capture_opens_as_any_other(tmp_path):
    write(tmp_path, TRAINING + "train(12)")

    _, manifest, trace = recorded(tmp_path, "--warmup", "4", "--steps", "4", "train.py")

    steps = trace["steps"]
    assert steps["step"].tolist() == manifest["steps_recorded"] == [4, 5, 6, 7]
    assert steps["start_ns"][1:].tolist() == steps["end_ns"][:-1].tolist()
    assert set(steps.text("evidence")) == {"profiler_step"}
    assert (trace.metadata.framework, trace.metadata.world_size) == ("jax", 1)
    stages = {row["stage"] for row in trace.events.rows() if row["scope"] and row["step"]}
    assert {"forward", "loss", "backward", "optimizer"} <= stages
    modules = {row["path"]: row["calls"] for row in trace["modules"].rows()}
    assert {"Net", "Net.first", "Net.second"} <= set(modules)
    assert len(trace["warnings"]) == 0


def test_operations_are_at_the_lines_of_the_script(tmp_path):
    """At least 90 % of the time of operations within steps has a line of the user's."""
    write(tmp_path, TRAINING + "train(9)")

    _, _, trace = recorded(tmp_path, "train.py")

    tree, events = build_contexts(trace), trace.events
    parents, files = tree.nodes["parent"].tolist(), list(tree.nodes.text("file"))
    of_user = np.zeros(len(parents), np.bool_)
    for node, parent in enumerate(parents):  # parents come first
        of_user[node] = (files[node] or "").endswith("train.py") or (parent >= 0 and of_user[parent])
    compiled = events.text("category").mask("cpu_op") & (events["step"] >= 0)
    of_line = compiled & of_user[tree.event_node]
    assert compiled.sum() > 10
    assert events["self_ns"][of_line].sum() >= 0.9 * events["self_ns"][compiled].sum()
    assert set(tree.nodes.text("via")) == {"call", "backward"}
    assert tree.metrics["cpu_ns"].sum.sum() == own_shares(events).sum()


def test_each_step_ends_where_the_next_call_begins_the_last_one_too(tmp_path):
    write(tmp_path, TRAINING + "train(12)")

    _, _, trace = recorded(tmp_path, "train.py")

    calls = trace.events.text("name").mask("PjitFunction(update)")
    begins = set(trace.events["start_ns"][calls].tolist())
    assert len(trace["steps"]) == 3
    assert set(trace["steps"]["end_ns"].tolist()) <= begins


@pytest.mark.parametrize("wait", ["pass", "loss.block_until_ready()", "float(measured)"])
def test_each_step_holds_exactly_its_own_executions(tmp_path, wait):
    """Steps of two functions, and work that is still under way when the next step is called."""
    loop = f"""
@jax.jit
def evaluate(params, x):
    return jnp.sin(x @ params["first"]).sum()
x = np.ones((2048, 64), np.float32)
for _ in range(12):
    params, loss = update(params, x, x)
    measured = evaluate(params, x)
    {wait}
"""
    write(tmp_path, TRAINING + loop)

    _, _, trace = recorded(tmp_path, "--steps", "4", "train.py")

    events = trace.events
    compiled = (events["scope"] >= 0) & (events["step"] >= 0)
    counts = [
        Counter(events.text("name").take(np.flatnonzero(compiled & (events["step"] == step))))
        for step in trace["steps"]["step"].tolist()
    ]
    assert len(counts) == 4
    assert counts[0]
    assert counts == counts[:1] * 4
    scopes = events.text("scope").take(np.flatnonzero(compiled))
    assert {(scope or "").partition("/")[0] for scope in scopes} == {"jit(update)", "jit(evaluate)"}


ON_FOUR_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

def loss_of(params, x):
    with jax.named_scope("Net"):
        return jnp.mean(jnp.tanh(x @ params) ** 2)

def mean_gradients(params, x):
    return jax.lax.pmean(jax.grad(loss_of)(params, x), "devices")

params, x = jnp.ones((64, 64)), np.ones((256, 64), np.float32)
mesh = Mesh(np.array(jax.devices()), ("devices",))
"""
SHARDED = """
across = partial(jax.shard_map, mesh=mesh)
gradients = jax.jit(across(mean_gradients, in_specs=(P(), P("devices")), out_specs=P()))

@jax.jit
def accumulate(total, more):
    return total + more

@jax.jit
def apply(params, total):
    return params - 0.1 * total

@jax.jit
def evaluate(params, x):
    return loss_of(params, x)

for step in range(12):
    total = jnp.zeros_like(params)
    for _ in range(2):
        total = accumulate(total, gradients(params, x))
    params = apply(params, total)
    if step % 3 == 0:
        print(evaluate(params, x).shape)
"""
PMAPPED = """
update = jax.pmap(lambda p, x: p - 0.1 * mean_gradients(p, x), axis_name="devices")
params, x = jnp.stack([params] * 4), x.reshape(4, 64, 64)
for step in range(30):
    params = update(params, x)
"""
PMAPPED_TWICE = """
def train_step(params, x):
    return params - 0.1 * mean_gradients(params, x)

def eval_step(params, x):
    return loss_of(params, x)

update, evaluate = (jax.pmap(each, axis_name="devices") for each in (train_step, eval_step))
params, x = jnp.stack([params] * 4), x.reshape(4, 64, 64)
for step in range(30):
    params = update(params, x)
    for _ in range(2):
        evaluate(params, x)
"""


@pytest.mark.parametrize(
    ("loop", "ends_after", "wanted"),
    [
        (SHARDED, "apply", {"mean_gradients": (2, 4), "accumulate": (2, 4), "apply": (1, 4)}),
        (PMAPPED, "<lambda>", {"_fun": (1, 4)}),
        (PMAPPED_TWICE, "train_step", {"_fun": (3, 4)}),
    ],
    ids=["shard_map", "pmap", "pmap with evaluation"],
)
def test_on_several_devices_each_step_holds_its_own_executions(tmp_path, loop, ends_after, wanted):
    """With `shard_map`, accumulated gradients, and evaluation between steps; and with `pmap`."""
    write(tmp_path, ON_FOUR_DEVICES + loop)

    _, manifest, trace = recorded(tmp_path, "train.py")

    assert manifest["step_ends_after"] == ends_after
    assert len(manifest["steps_recorded"]) == 3
    for step in manifest["steps_recorded"]:
        runs = runs_of(trace, step)
        assert {name: runs[name] for name in wanted} == wanted


def runs_of(trace, step):
    """Runs of each program in a step, and on how many devices."""
    runs, devices, events = {}, {}, trace.events
    for row in np.flatnonzero((events["step"] == step) & (events["scope"] >= 0)).tolist():
        program = scope_of(events.text("scope")[row]).program
        runs.setdefault(program, set()).add(int(events["correlation"][row]))
        (text,) = trace.arguments.texts(events["source"][[row]])
        devices.setdefault(program, set()).add(parse_json(text.decode())["device_ordinal"])
    return {name: (len(runs[name]), len(devices[name])) for name in runs}


@pytest.mark.parametrize("micro_batches", [2, 4, 9])
def test_a_sum_of_gradients_that_a_function_keeps_is_one_step(tmp_path, micro_batches):
    """It is applied outside of any function."""
    write(
        tmp_path,
        TRAINING
        + f"""
@jax.jit
def accumulate(params, total, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(jnp.add, total, grads), loss

for _ in range(20):
    total = jax.tree.map(jnp.zeros_like, params)
    for _ in range({micro_batches}):
        total, loss = accumulate(params, total, x, x)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, total)
    loss.block_until_ready()
""",
    )
    _, manifest, trace = recorded(tmp_path, "train.py")
    assert len(manifest["steps_recorded"]) == 3
    for step in manifest["steps_recorded"]:
        inside = trace.events["step"] == step
        called = inside & trace.events.text("name").mask("PjitFunction(accumulate)")
        outermost = called & ~np.isin(trace.events["parent"], np.flatnonzero(called))
        assert int(outermost.sum()) == micro_batches


def test_what_reads_captures_reads_it(tmp_path):
    write(tmp_path, TRAINING + "train(9)")
    recorded(tmp_path, "train.py")
    said = {
        "report": "Net",
        "analyze": f"{len(RULES)} rules",
        "contexts": "loss_of train.py",
        "whatif": "predicted",
    }
    for command, words in said.items():
        change = ["scale:select=stage=forward,factor=0.5"] if command == "whatif" else []
        done = start([sys.executable, "-m", "stepscope", command, "train.stepscope", *change], tmp_path)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout


def test_python_between_calls_has_the_function_that_samples_saw(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
def preprocess(rows):
    for _ in range(400):
        for row in rows:
            sum(row[:8].tolist())
    return rows

for step in range(12):
    params, loss = update(params, preprocess(x), x)
""",
    )
    recorded(tmp_path, "train.py")
    done = start([sys.executable, "-m", "stepscope", "analyze", "train.stepscope"], tmp_path)
    words = " ".join(done.stdout.split())
    assert "runs only Python for" in words, done.stdout
    assert " in preprocess" in words, done.stdout


def test_the_example_is_recorded(tmp_path):
    _, manifest, trace = recorded(tmp_path, str(EXAMPLES / "train_jax.py"), "--steps", "9")
    assert manifest["steps_recorded"] == [5, 6, 7]
    paths = {row["path"] for row in trace["modules"].rows()}
    assert {"Transformer.block_1.attention", "Transformer.head", "loss"} <= paths


@pytest.mark.parametrize(
    ("steps", "outcome", "kept"), [(1, "no_steps", []), (4, "ended_early", []), (8, "ended_early", [5, 6])]
)
def test_a_script_that_ends_early_yields_what_it_had(tmp_path, steps, outcome, kept):
    write(tmp_path, TRAINING + f"train({steps})")

    done, manifest, trace = recorded(tmp_path, "train.py")

    assert done.returncode == 0
    assert manifest["outcome"] == outcome
    assert manifest["steps_recorded"] == trace["steps"]["step"].tolist() == kept
    assert manifest["warnings"] == []


@pytest.mark.parametrize(("steps", "kept"), [(5, [3]), (6, [3, 4])])
def test_a_short_script_yields_steps_of_its_warm_up(tmp_path, steps, kept):
    write(tmp_path, TRAINING + f"train({steps})")

    _, manifest, trace = recorded(tmp_path, "train.py")

    assert manifest["outcome"] == "ended_early"
    assert manifest["steps_recorded"] == trace["steps"]["step"].tolist() == kept
    (warning,) = manifest["warnings"]
    assert "the recorded steps are warm-up steps" in warning


def test_a_script_that_trains_nothing_is_told_what_a_step_is(tmp_path):
    write(tmp_path, "import jax.numpy as jnp\nprint(jnp.ones(3).sum())")

    done, manifest, _ = recorded(tmp_path, "train.py")

    assert manifest["outcome"] == "no_steps"
    assert "a function under jax.jit" in done.stderr


EPOCHS = """
predict = jax.jit(lambda params, x: (x @ params["first"]).sum())
for _ in range(10):
    params, loss = update(params, x, x)
    for row in x[:60]:
        float(predict(params, row))
"""


def test_training_replaces_predictions_between_two_epochs(tmp_path):
    write(tmp_path, TRAINING + EPOCHS)

    done, manifest, trace = recorded(tmp_path, "train.py")

    assert manifest["step_ends_after"] == "update"
    assert manifest["step_is"].endswith("other calls: <lambda> (60 per step)")
    assert len(trace["steps"]) == len(manifest["steps_recorded"]) > 0
    assert done.stderr.count("wrote") == 1


SMALL = """
for step in range(20):
    rate = jax.jit(lambda step: 0.1 / step)(step + 1.0)
    params, loss = update(params, x, x * rate)
"""


def test_a_small_compilation_in_each_step_hides_no_run(tmp_path):
    write(tmp_path, TRAINING + SMALL)

    _, manifest, _ = recorded(tmp_path, "train.py")

    assert manifest["outcome"] == "complete"
    assert (manifest["step_ends_after"], len(manifest["steps_recorded"])) == ("update", 3)


AGAIN = """
for size in range({calls}):
    x = np.ones((32 + size // {each}, 64), np.float32)
    params, loss = update(params, x, x)
"""


@pytest.mark.parametrize(("each", "outcome"), [(1, "ended_early"), (12, "complete")])
def test_a_function_that_is_compiled_again_and_again_is_named(tmp_path, each, outcome):
    """Steps are recorded where none compiles; what most of the run does is in no trace."""
    write(tmp_path, TRAINING + AGAIN.format(calls=8 * each, each=each))

    done = start([*RUN, "train.py"], tmp_path)

    manifest = manifest_of(tmp_path / "train.stepscope")
    (warning,) = [one for one in manifest["warnings"] if one.startswith("XLA compiled")]
    assert manifest["outcome"] == outcome
    assert warning.startswith("XLA compiled update (train.py:13) 8 times, ")
    assert warning in done.stderr
    if outcome == "complete":
        context = RuleContext(stepscope.open(tmp_path / "train.stepscope"))
        assert warning in analysis_of(context, RULES).heading.notes
    else:
        with pytest.raises(TraceError, match="XLA compiled update"):
            RuleContext(stepscope.open(tmp_path / "train.stepscope"))


@pytest.mark.full
def test_a_run_that_never_stops_compiling_is_recorded(tmp_path):
    """Every other call compiles: a wait for steps without a compilation would outlast the run."""
    write(tmp_path, TRAINING + AGAIN.format(calls=60, each=2))

    _, manifest, trace = recorded(tmp_path, "train.py")

    assert (manifest["outcome"], len(manifest["steps_recorded"])) == ("complete", 3)
    assert analysis_of(RuleContext(trace), RULES).findings[0].rule == "recompilation"


def test_an_exception_shows_as_without_us(tmp_path):
    write(tmp_path, TRAINING + "train(8)\nupdate(params, x, x[:3])")

    done, _ = same_with_and_without_jax(tmp_path, "train.py")

    manifest = manifest_of(tmp_path / "train.stepscope")
    assert done.returncode == 1
    assert "TypeError" in done.stderr
    assert manifest["outcome"] == "raised"
    assert manifest["steps_recorded"] == [5, 6]


@pytest.mark.parametrize(("steps", "kept"), [(8, [5, 6]), (20, [5, 6, 7])])
def test_ctrl_c_closes_the_capture(tmp_path, steps, kept):
    write(
        tmp_path,
        TRAINING
        + f"""
import time
train({steps})
print("ready", flush=True)
while True:
    time.sleep(0.01)
""",
    )
    process = subprocess.Popen(
        [*RUN, "train.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    manifest = manifest_of(tmp_path / "train.stepscope")
    assert process.returncode == -signal.SIGINT
    assert without_own_words(err).endswith("KeyboardInterrupt\n")
    assert "stepscope/record" not in err
    assert manifest["outcome"] == ("complete" if steps == 20 else "interrupted")
    assert manifest["steps_recorded"] == kept


def test_a_forked_child_neither_records_nor_writes(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
import os, warnings
warnings.simplefilter("ignore")  # JAX warns of every fork
train(6)
child = os.fork()
if child == 0:
    import gc
    gc.freeze()  # JAX's client crashes where it is deleted in a fork, with or without a recorder
    sys.exit(4)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
train(6)
sys.exit(code)
""",
    )

    done, manifest, _ = recorded(tmp_path, "train.py")

    assert done.returncode == 4
    assert manifest["steps_recorded"] == [5, 6, 7]
    assert done.stderr.count("wrote") == 1


@pytest.mark.parametrize("before", [0, 7])
def test_ours_gives_way_to_the_script_s_own_profiler(tmp_path, before):
    """It had begun when ours was to begin, or it begins while ours runs."""
    write(
        tmp_path,
        TRAINING
        + f"""
from pathlib import Path
train({before}) if {before} else None
with jax.profiler.trace("mine"):
    train(10)
(found,) = Path("mine").rglob("*.xplane.pb")
print(b"PjitFunction(update)" in found.read_bytes())
""",
    )

    done, manifest, _ = recorded(tmp_path, "train.py")

    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "the script runs its own" in manifest["warnings"][0]
    assert done.stderr.count("the script runs its own") == 1


@pytest.mark.parametrize("when", ["starts", "ends"])
def test_a_signal_handler_that_raises_as_the_profiler_starts_or_ends(tmp_path, when):
    """The steps are recorded again, once."""
    write(
        tmp_path,
        f"{TRAINING}when = {when!r}"
        + """
import signal
from jax._src.lib import _profiler
class Late(Exception): pass
def late(number, frame): raise Late
signal.signal(signal.SIGUSR1, late)
original, calls = _profiler.ProfilerSession, []
def interrupt(now):
    calls.append(now)
    if calls.count(now) == 1 and now == when: signal.raise_signal(signal.SIGUSR1)
class Session:
    def __init__(self, *words):
        self.session = original(*words)
        try: interrupt("starts")
        finally: self.session = None if when == "starts" and len(calls) == 1 else self.session  # as of C++
    def stop(self):
        content = self.session.stop()
        interrupt("ends")
        return content
_profiler.ProfilerSession = Session
for _ in range(30):
    try: train(1).block_until_ready()
    except Late: print("late")
print(calls, _profiler.ProfilerSession is Session)
""",
    )
    done, manifest, _ = recorded(tmp_path, "train.py")
    stops = ["ends"] * (1 + (when == "ends"))
    assert done.stdout == f"late\n{['starts', *stops[1:], 'starts', 'ends']} True\n"
    assert manifest["outcome"] == "complete"
    assert len(manifest["steps_recorded"]) == 3


def test_arrays_made_by_compiled_functions_before_the_loop_are_no_steps(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
@jax.jit
def make_images(key):
    return jax.random.normal(key, (512, 512))
images = [make_images(jax.random.key(i)) for i in range(15)]
train(12)
""",
    )

    _, manifest, _ = recorded(tmp_path, "train.py")

    assert manifest["step_ends_after"] == "update"
    assert manifest["outcome"] == "complete"


def test_a_step_with_effects_is_recorded(tmp_path):
    """JAX runs what prints from Python, past its own hook."""
    text = TRAINING.replace("    return jax.tree.map", '    jax.debug.print("here")\n    return jax.tree.map')
    write(tmp_path, text + "train(9)")

    done, manifest, trace = recorded(tmp_path, "train.py")

    assert done.stdout == "here\n" * 9
    assert manifest["step_ends_after"] == "update"
    assert trace["steps"]["step"].tolist() == manifest["steps_recorded"] == [5, 6, 7]


def test_functions_that_load_are_known_by_their_frames(tmp_path):
    loading = """
def load_batch():
    return np.ones((256, 64), np.float32)
for _ in range(9):
    x = load_batch()
    train(1)
"""
    write(tmp_path, TRAINING + loading)

    _, _, trace = recorded(tmp_path, "--stack", "train.py")

    frames = [row for row in trace.events.rows() if row["name"].endswith("): load_batch")]
    assert {row["stage"] for row in frames} == {"data_loading"}


def test_a_program_compiled_late_begins_the_warm_up_anew(tmp_path):
    write(tmp_path, TRAINING + "train(4)\nx = x[:32]\ntrain(12)")

    _, manifest, trace = recorded(tmp_path, "train.py")

    assert manifest["outcome"] == "complete"
    assert manifest["steps_recorded"] == [9, 10, 11]
    assert trace["steps"]["step"].tolist() == [9, 10, 11]


def test_of_two_frameworks_the_one_that_trains_is_recorded(tmp_path):
    """Torch loads the data, as in many programs of JAX."""
    loading = """
import torch
loader = torch.utils.data.DataLoader(torch.ones(12 * 256, 64), batch_size=256)
for batch in loader:
    x = batch.numpy()
    train(1)
"""
    write(tmp_path, TRAINING + loading)

    _, manifest, trace = recorded(tmp_path, "train.py")

    assert (manifest["framework"], manifest["outcome"]) == ("jax", "complete")
    # Told by events: stages of a step last until its work is over, maybe after the next batch.
    loading = {row["step"] for row in trace.events.rows() if row["stage"] == "data_loading"}
    assert loading - {None} == {5, 6, 7}
    assert manifest["steps_recorded"] == trace["steps"]["step"].tolist() == [5, 6, 7]


def test_a_jax_that_is_too_old_is_said_in_one_line(tmp_path):
    write(tmp_path, "__version__ = '0.4.1'", "jax.py")
    write(tmp_path, "import jax")

    done, manifest, _ = recorded(tmp_path, "train.py", start=start)

    assert done.returncode == 0
    assert "cannot record JAX 0.4.1: " in done.stderr
    assert manifest["outcome"] == "no_steps"


WITHOUT_HOOK = """
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path, target=None):
        if name != "jax":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            from jax._src import api
            del api._post_hook_state
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""


def without_hook(folder: Path) -> dict[str, str]:
    """The environment of a Python whose JAX has no hook for calls."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(WITHOUT_HOOK)
    path = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def test_without_its_hook_the_script_runs_and_a_line_says_what_to_do(tmp_path):
    write(tmp_path, TRAINING + "print(float(train(30)))")
    plain = start([sys.executable, "train.py"], tmp_path)

    done, manifest, _ = recorded(tmp_path, "train.py", start=start, env=without_hook(tmp_path))

    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert manifest["outcome"] == "no_steps"
    assert "cannot record JAX" in done.stderr
    assert "jax.profiler.trace(FOLDER) and open that" in done.stderr


def test_profile_records_a_loop_from_python(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
import stepscope
with stepscope.profile(path="here.stepscope", warmup=4, steps=2):
    train(8)
""",
    )

    done = start([sys.executable, "train.py"], tmp_path)

    assert done.returncode == 0, done.stderr
    assert manifest_of(tmp_path / "here.stepscope")["steps_recorded"] == [4, 5]


def same_with_and_without_jax(folder: Path, *words: str):
    """Run a script both ways; its output, errors and exit code must not differ."""
    plain = start([sys.executable, *words], folder)
    done = start([*RUN, *words], folder)
    assert done.stdout == plain.stdout
    assert without_own_words(done.stderr) == plain.stderr
    assert done.returncode == plain.returncode
    return done, plain


NESTED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

def layer(x, w):
    return jnp.tanh(x @ w)  # the layer

@jax.checkpoint
def block(x, w):
    return layer(layer(x, w), w)

@jax.shard_map(mesh=Mesh(np.array(jax.devices()), "d"), in_specs=P("d"), out_specs=P())
def total(x):
    return jax.lax.psum(jnp.sum(x**2), "d")

def loss_of(ws, x):
    x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), x, ws)
    n, _ = jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (jnp.floor(c[0]), c[1] + 1), (x, 0))
    return total(jax.vmap(lambda row: jnp.cos(row))(x) + jax.lax.stop_gradient(n))

@jax.jit
def update(ws, x):
    loss, grads = jax.value_and_grad(loss_of)(ws, x)
    return ws - 1e-3 * grads, loss

ws, x = 0.1 * jnp.ones((4, 64, 64)), jnp.ones((256, 64))
for _ in range(12):
    ws, loss = update(ws, x)
"""


def test_loops_remat_vmap_and_shard_map_are_shown_below_their_lines(tmp_path):
    write(tmp_path, NESTED)
    _, _, trace = recorded(tmp_path, "train.py")
    tree = build_contexts(trace)
    names, via = tree.nodes.text("name"), tree.nodes.text("via")
    kinds, lines = tree.nodes.text("kind"), tree.nodes["line"]
    line = NESTED.splitlines().index("    return jnp.tanh(x @ w)  # the layer") + 1
    inside = {}
    for node in range(len(tree)):
        path = tree.path(node)
        frames = [row for row in path if kinds[row] == "python"]
        if kinds[node] != "operator" or not frames:
            continue
        assert len({(names[row], lines[row]) for row in frames}) == len(frames)
        if lines[frames[-1]] == line or names[node] in ("floor", "cos"):
            shown = [names[row] for row in path if kinds[row] == "annotation"]
            backward = any(via[row] == "backward" for row in path)
            inside.setdefault((names[node], backward), set()).add(tuple(shown[-3:]))
    assert ("scan",) in inside["dot_general", False]
    assert {("scan", "remat"), ("scan", "remat", "recomputed")} <= inside["dot_general", True]
    assert inside["floor", False] == {("while",)}
    assert inside["cos", False] == {("vmap",)}
    assert any(names[node] == "shard_map" for node in range(len(tree)))
    assert tree.metrics["cpu_ns"].sum.sum() == own_shares(trace.events).sum()
