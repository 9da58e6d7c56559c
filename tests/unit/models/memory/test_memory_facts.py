"""What fills the memory, against a model of the caching allocator whose truth is known."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from model_allocator import MIB, ModelAllocator, frame
from rich.console import Console

import stepscope
from stepscope.models.memory import memory_facts
from stepscope.models.memory.lifetimes import Lifetimes, snapshot_lifetimes
from stepscope.models.memory.memory_findings import find_problems
from stepscope.models.memory.memory_text import print_memory, verdict
from stepscope.trace.trace import Trace

MODEL, TRAIN = "/home/me/project/model.py", "/home/me/project/train.py"
TORCH = "/usr/lib/python3.11/site-packages/torch"
FORWARD = [
    frame(f"{TORCH}/functional.py", 373, "einsum"),
    frame(MODEL, 54),
    frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"),
    frame("/home/me/project/train.py", 65, "<module>"),
]


def random_history(seed: int, changes: int = 300) -> ModelAllocator:
    """Allocations and releases at random."""
    chance = random.Random(seed)
    allocator = ModelAllocator()
    for _ in range(changes):
        if allocator.live and chance.random() < 0.45:
            allocator.free(chance.choice(sorted(allocator.live)))
        else:
            allocator.alloc(chance.randint(1, 8 * MIB), [frame(MODEL, chance.randint(1, 9))])
    return allocator


def lifetimes(trace: Trace) -> Lifetimes:
    """Of the first device, without kinds."""
    return snapshot_lifetimes(trace, 0, np.zeros(len(trace["allocations"]), np.int64))


@pytest.mark.parametrize("seed", range(40))
def test_peak_live_set_and_fragmentation_are_those_of_the_model(seed: int, tmp_path: Path, facts_of) -> None:
    allocator = random_history(seed)
    facts = facts_of(allocator.snapshot())
    trace = stepscope.open(tmp_path / "snapshot.pickle", cache=False)
    life = lifetimes(trace)
    alive = life.take(np.flatnonzero(life.alive(life.peak()[1])))
    address = trace["allocations"]["address"][alive.recorded]
    sizes = dict(zip(address.tolist(), alive.bytes.tolist(), strict=True))
    assert (facts.peak_bytes, sizes) == (allocator.peak, allocator.peak_live)
    assert sum(share.bytes for share in facts.kinds) == allocator.peak
    blocks = [block for segment in allocator.segments for block in segment.blocks]
    free = [block.size for block in blocks if block.state == "inactive"]
    empty = [s.size for s in allocator.segments if all(b.state == "inactive" for b in s.blocks)]
    state = facts.fragmentation
    assert state.reserved == facts.reserved_peak_bytes == sum(s.size for s in allocator.segments)
    assert state.in_use == sum(allocator.live.values())
    assert state.largest_free == max(free, default=0)
    assert (state.cached, state.pinned) == (sum(empty), sum(free) - sum(empty))


@pytest.mark.parametrize("seed", range(10))
def test_a_history_that_lost_its_beginning_tells_the_same_of_the_rest(seed: int, tmp_path: Path) -> None:
    allocator = random_history(seed)
    levels = []
    for keep in (None, 150):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(allocator.snapshot(keep)))
        levels.append(lifetimes(stepscope.open(path, cache=False)).over_time()[1])
    whole, part = levels
    assert np.array_equal(whole[-len(part) + 1 :], part[1:])


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed"])
def test_what_is_alive_follows_from_either_half_of_a_release(skipped: str, tmp_path: Path) -> None:
    """Of which `skip_actions` of PyTorch may leave one out."""
    path, snapshot, alive = tmp_path / "snapshot.pickle", random_history(0).snapshot(), []
    for left_out in ("", skipped):
        snapshot["device_traces"] = [
            [event for event in events if event["action"] != left_out] for events in snapshot["device_traces"]
        ]
        path.write_bytes(pickle.dumps(snapshot))
        allocations = stepscope.open(path, cache=False)["allocations"]
        alive.append(sorted(allocations["address"][allocations["end_ns"] < 0].tolist()))
    assert alive[0] == alive[1]


def test_lines_are_the_user_s_and_library_frames_are_skipped(facts_of) -> None:
    allocator = ModelAllocator()
    allocator.alloc(4 * MIB, FORWARD)
    facts = facts_of(allocator.snapshot())
    assert [(share.name, share.bytes) for share in facts.lines] == [(f"{MODEL}:54 forward", 4 * MIB)]
    assert [(share.name, share.bytes) for share in facts.kinds] == [("activations", 4 * MIB)]


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (FORWARD, "activations"),
        ([frame(f"{TORCH}/optim/adamw.py", 90, "_init_group"), frame(MODEL, 1)], "optimizer state"),
        ([frame(f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward")], "gradients"),
        ([frame(f"{TORCH}/nn/modules/module.py", 1, "_apply"), frame(MODEL, 1, "main")], "weights"),
        ([frame(f"{TORCH}/utils/data/_utils/pin_memory.py", 1, "pin_memory")], "inputs"),
        ([], "unknown"),
    ],
)
def test_what_an_allocation_is_for(frames: list, kind: str, facts_of) -> None:
    allocator = ModelAllocator()
    allocator.alloc(MIB, frames)
    assert [share.name for share in facts_of(allocator.snapshot()).kinds] == [kind]


def steps(allocator: ModelAllocator, count: int, kept: int = 0) -> None:
    """Training steps: activations rise and fall; `kept` bytes of each step stay."""
    for _ in range(count):
        activations = [allocator.alloc(2 * MIB, FORWARD) for _ in range(12)]
        if kept:
            allocator.alloc(kept, [frame("/home/me/project/train.py", 70, "train")])
        for address in reversed(activations):
            allocator.free(address)


def test_a_list_of_losses_that_keep_their_graphs_is_named_with_its_line(facts_of) -> None:
    allocator = ModelAllocator()
    steps(allocator, 8, kept=MIB)
    facts = facts_of(allocator.snapshot())
    finding = next(one for one in find_problems(facts) if one.rule == "growing_memory")
    assert (finding.gain_bytes, finding.place) == (8 * MIB, "/home/me/project/train.py:70 train")
    assert "grows from step to step" in verdict(facts, [finding])


@pytest.mark.parametrize("weights", [1, 40, 400])
@pytest.mark.parametrize("states", [0, 8])
def test_what_is_made_before_the_first_step_hides_no_growth(weights: int, states: int, facts_of) -> None:
    """A history from the start of the script, and what an optimizer keeps from the first step on."""
    allocator = ModelAllocator()
    model = [allocator.alloc(weights * MIB, [frame(MODEL, 3, "__init__")]) for _ in range(3)]
    for step in range(8):
        activations = [allocator.alloc(2 * MIB, FORWARD) for _ in range(12)]
        if not step:
            model += [allocator.alloc(2 * MIB, [frame(MODEL, 5, "state")]) for _ in range(states)]
        allocator.alloc(MIB, [frame(TRAIN, 70, "train")])
        for address in reversed(activations):
            allocator.free(address)
    facts = facts_of(allocator.snapshot())
    assert [(name, one.bytes) for name, one in zip(facts.growth_lines, facts.growth, strict=True)] == [
        (f"{TRAIN}:70 train", 8 * MIB)
    ]


def test_weights_are_not_called_a_tensor_to_compute_in_chunks_where_others_are_unknown(facts_of) -> None:
    allocator = ModelAllocator()
    allocator.alloc(9 * MIB, [frame(f"{TORCH}/nn/modules/module.py", 1, "_apply"), frame(TRAIN, 1, "main")])
    for number in range(9):
        allocator.alloc(MIB, [frame(TRAIN, 70 + number, "train")])
    assert "one_large_tensor" not in {one.rule for one in find_problems(facts_of(allocator.snapshot()))}


@pytest.mark.parametrize("seed", range(25))
def test_what_is_kept_from_step_to_step_is_that_of_the_model(seed: int, facts_of) -> None:
    chance = random.Random(seed)
    allocator = ModelAllocator()
    lines = range(70, 70 + chance.randint(0, 4))
    kept = {line: chance.randint(1, 3) * MIB // 2 for line in lines}
    steps, left = chance.randint(4, 12), dict.fromkeys(lines, 0)
    for _ in range(steps):
        activations = [allocator.alloc(2 * MIB, FORWARD) for _ in range(12)]
        for line, size in kept.items():
            allocator.alloc(size, [frame(TRAIN, line, "train")])
            left[line] += size
        passing = allocator.alloc(chance.randint(1, 4) * MIB, [frame(TRAIN, 90, "train")])
        for address in chance.sample([*activations, passing], len(activations) + 1):
            allocator.free(address)
    facts = facts_of(allocator.snapshot())
    found = dict(zip(facts.growth_lines, facts.growth, strict=True))
    assert {name: (one.bytes, one.count) for name, one in found.items()} == {
        f"{TRAIN}:{line} train": (size, steps) for line, size in left.items()
    }


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_steps_that_keep_nothing_are_no_leak(count: int, facts_of) -> None:
    allocator = ModelAllocator()
    weights = [allocator.alloc(MIB, [frame(MODEL, 3, "__init__")]) for _ in range(6)]
    steps(allocator, count)
    facts = facts_of(allocator.snapshot())
    assert [one.rule for one in find_problems(facts) if one.rule == "growing_memory"] == []
    assert facts.fragmentation.in_use == len(weights) * MIB


def test_activations_alive_at_an_out_of_memory_are_no_leak(facts_of) -> None:
    allocator = ModelAllocator()
    steps(allocator, 3)
    for _ in range(30):
        allocator.alloc(2 * MIB, FORWARD)
    allocator.fail(64 * MIB, 5 * MIB)
    facts = facts_of(allocator.snapshot())
    assert not facts.growth
    assert verdict(facts, find_problems(facts)) == (
        "Out of memory: 67.1 MB were requested with 5.2 MB free on the device; "
        "0 B of 62.9 MB reserved were not in use."
    )


def test_blocks_that_pin_their_segments_are_fragmentation(facts_of) -> None:
    allocator = ModelAllocator(segment_bytes=10 * MIB)
    pairs = [(allocator.alloc(9 * MIB), allocator.alloc(MIB, FORWARD)) for _ in range(5)]
    for large, _ in pairs:
        allocator.free(large)
    finding = next(
        one for one in find_problems(facts_of(allocator.snapshot())) if one.rule == "fragmentation"
    )
    assert finding.gain_bytes == 45 * MIB
    assert "expandable_segments:True" in finding.advice


@pytest.mark.parametrize(("hole", "returned"), [(9, 0), (39, 20), (60, 40), (200, 180)])
def test_free_pages_of_expandable_segments_pin_nothing(hole: int, returned: int, facts_of) -> None:
    """Pages of 20 MiB that a hole covers from begin to end are unmapped alone; a hole begins at 1 MiB."""
    allocator = ModelAllocator(segment_bytes=(hole + 2) * MIB)
    allocator.alloc(MIB, FORWARD)
    large = allocator.alloc(hole * MIB)
    allocator.alloc(MIB, FORWARD)
    allocator.free(large)
    snapshot = allocator.snapshot()
    for segment in snapshot["segments"]:
        segment["is_expandable"] = True
    state = facts_of(snapshot).fragmentation
    assert (state.cached, state.pinned) == (returned * MIB, (hole - returned) * MIB)


@pytest.mark.parametrize("pool", [(0, 1), (3, 0), [2, 0]])
def test_free_memory_of_private_pools_is_neither_returnable_nor_pinned(pool: object, facts_of) -> None:
    """CUDA graphs replay in it: `empty_cache` returns none of it while they live, and others get none."""
    allocator = ModelAllocator(segment_bytes=20 * MIB)
    allocator.free(allocator.alloc(20 * MIB))
    blocks = [allocator.alloc(size * MIB) for size in (19, 24, 4, 30)]
    allocator.free(blocks[1])
    allocator.free(blocks[2])
    snapshot = allocator.snapshot()
    for segment, owner in zip(snapshot["segments"], (pool, pool, (0, 0), (0, 0)), strict=False):
        segment["segment_pool_id"] = owner
    facts = facts_of(snapshot)
    state = facts.fragmentation
    assert (state.reserved, state.in_use) == (sum(s["total_size"] for s in snapshot["segments"]), 49 * MIB)
    private = [
        sum(b["size"] for b in s["blocks"] if b["state"] == "inactive") for s in snapshot["segments"][:2]
    ]
    assert (state.private, state.cached, state.pinned) == (sum(private), 20 * MIB, 0)
    assert state.private + state.cached == state.reserved - state.in_use
    assert state.largest_free == 20 * MIB
    assert "fragmentation" not in [one.rule for one in find_problems(facts)]
    console = Console(width=120, file=io.StringIO())
    print_memory(console, facts)
    assert "free, kept while CUDA graphs live (private pools)" in console.file.getvalue()


def test_a_healthy_training_loop_has_no_finding(facts_of) -> None:
    allocator = ModelAllocator()
    for _ in range(40):
        allocator.alloc(MIB, [frame(MODEL, 3, "__init__")])
    steps(allocator, 6)
    assert [one.rule for one in find_problems(facts_of(allocator.snapshot()))] == []


def test_a_trace_without_memory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "name": "mm", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]')
    from stepscope.models.memory import memory_facts

    with pytest.raises(stepscope.StepscopeError, match="holds no allocation; record it with"):
        memory_facts(stepscope.open(path, cache=False))


STATE = [frame("/home/me/project/states.py", 74, "renew"), frame(TRAIN, 20, "main")]


def renewed_states(allocator: ModelAllocator, steps: int, leaked: int = 0) -> None:
    """Ten of forty states that were there before the history are replaced in each step."""
    states = [allocator.alloc(MIB, STATE) for _ in range(40)]
    allocator.events, allocator.peak = [], 0
    for _ in range(steps):
        activations = [allocator.alloc(4 * MIB, FORWARD) for _ in range(12)]
        for address in activations:
            allocator.free(address)
        for _ in range(10):
            states.append(allocator.alloc(MIB, STATE))
            allocator.free(states.pop(0))
        for _ in range(leaked):
            allocator.alloc(MIB, [frame(TRAIN, 70, "train")])


@pytest.mark.parametrize("steps", [3, 4, 5, 8])
def test_what_replaces_blocks_from_before_the_history_does_not_grow(steps: int, facts_of) -> None:
    allocator = ModelAllocator()
    renewed_states(allocator, steps)
    assert facts_of(allocator.snapshot()).growth == ()


@pytest.mark.parametrize("leaked", [1, 3])
def test_a_leak_of_the_same_size_is_named_with_its_own_line(leaked: int, facts_of) -> None:
    allocator = ModelAllocator()
    renewed_states(allocator, 6, leaked)
    facts = facts_of(allocator.snapshot())
    assert facts.growth_lines == (f"{TRAIN}:70 train",)
    assert facts.growth[0].bytes == 6 * leaked * MIB


def test_a_release_that_repeats_the_stack_of_its_allocation_says_who_allocated(facts_of) -> None:
    allocator = ModelAllocator()
    first, second = allocator.alloc(8 * MIB, FORWARD), allocator.alloc(MIB, FORWARD)
    allocator.events = []
    second = (second, allocator.alloc(2 * MIB, FORWARD))
    for address in (first, *second):
        allocator.free(address)
    for event in allocator.events:  # as `_record_memory_history(context="alloc")` writes it
        event["frames"] = event["frames"] or FORWARD
    facts = facts_of(allocator.snapshot())
    assert [(share.name, share.bytes) for share in facts.lines] == [(f"{MODEL}:54 forward", 11 * MIB)]


@pytest.mark.parametrize(
    ("file", "name", "is_user_s"),
    [
        ("/home/me/project/train", "main", True),  # a script without a suffix
        ("<ipython-input-3-0a1b>", "<module>", True),
        ("/tmp/ipykernel_12/345.py", "<module>", True),
        ("<frozen runpy>", "_run_code", False),
        ("/opt/conda/bin/python3.11", "_start", False),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "__libc_start_main", False),
        ("/w/python-build/Python-3.11.7/./Include/internal/pycore_ceval.h", "_PyEval_EvalFrame", False),
        ("/home/me/project/csrc/fused.cu", "launch()", False),
        ("C:\\Python310\\lib\\runpy.py", "_run_code", False),
        ("/tmp/torchinductor_me/ab/cab.py", "call", False),
    ],
)
def test_whose_line_a_frame_is(file: str, name: str, is_user_s: bool, facts_of) -> None:
    allocator = ModelAllocator()
    allocator.alloc(MIB, [frame(file, 7, name)])
    (line,) = facts_of(allocator.snapshot()).lines
    assert line.name == (f"{file}:7 {name}" if is_user_s else "")


def test_without_a_history_the_peak_is_not_known(tmp_path: Path, facts_of) -> None:
    """PyTorch before 2.0 wrote a list of segments."""
    snapshot = random_history(1).snapshot()
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps(snapshot["segments"]))
    (facts, *_) = memory_facts(stepscope.open(path, cache=False))
    console = Console(width=120, file=io.StringIO())
    print_memory(console, facts)
    text = console.file.getvalue()
    assert "allocated at the snapshot; the peak is not known" in text
    assert "Peak" not in text
    assert "At the peak" not in text
