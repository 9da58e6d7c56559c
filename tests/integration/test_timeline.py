"""The timeline of real traces: nothing lost or moved at any level, and a user's tasks answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stepscope.facts.annotate.modules.costs import module_costs
from stepscope.facts.timeline import Level, Operation, Timeline
from stepscope.facts.timeline.chosen_events import place_events
from stepscope.trace.trace import Trace

RESNET = "kineto_resnet50_v100/num_workers_0.json.gz"
CHECKPOINTED = "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz"
DLRM = "dlrm_8rank_v100"


@pytest.fixture(scope="module")
def resnet(opened: Callable[[str], Trace]) -> Timeline:
    return Timeline(opened(RESNET))


@pytest.fixture(scope="module")
def checkpointed(opened: Callable[[str], Trace]) -> Timeline:
    return Timeline(opened(CHECKPOINTED))


@pytest.fixture(scope="module")
def dlrm(opened: Callable[[str], Trace]) -> Timeline:
    return Timeline(opened(DLRM))


# -- what holds at every level


def check(above: Level, number: int, inside: Level) -> None:
    where = "/".join(inside.path)
    costs, outer, opened = inside.costs, above.costs, above.operations[number]
    assert outer.events[number] == costs.events.sum() + inside.passed + inside.hidden, where
    assert (costs.device_ns <= outer.device_ns[number]).all(), where
    on_cpu = costs.start_ns >= 0
    assert (costs.start_ns[on_cpu] >= outer.start_ns[number]).all(), where
    assert (costs.end_ns[on_cpu] <= outer.end_ns[number]).all(), where
    worked = costs.device_start_ns >= 0
    assert (costs.device_start_ns[worked] >= outer.device_start_ns[number]).all(), where
    assert (costs.device_end_ns[worked] <= outer.device_end_ns[number]).all(), where
    assert inside.end_ns >= costs.end_ns.max(initial=0), where
    assert inside.shift_ns >= 0
    check_threads(inside, int(outer.cpu_ns[number]))
    if opened.spread is not None:
        check_section(opened, inside)


def check_threads(level: Level, parent_ns: int) -> None:
    """On one thread operations follow each other, and take no longer than their parent.

    Recorders let neighbors overlap at times; what two of them share counts once.
    """
    tracks = np.array([one.track for one in level.operations])
    for track in np.unique(tracks):
        mine = np.flatnonzero((tracks == track) & (level.costs.start_ns >= 0))
        start, end = level.costs.start_ns[mine], level.costs.end_ns[mine]
        assert (np.diff(start) >= 0).all(), level.path
        shared = np.maximum(np.maximum.accumulate(end)[:-1] - start[1:], 0).sum()
        assert level.costs.cpu_ns[mine].sum() - shared <= parent_ns, level.path


def check_section(opened: Operation, inside: Level) -> None:
    """A section's operations are a partition of it, in order, into more than one part."""
    assert len(inside) > 1
    rows = np.concatenate([one.rows for one in inside.operations])
    assert rows.tolist() == opened.rows.tolist()
    assert opened.spread is not None
    assert opened.spread.least_ns <= opened.spread.mean_ns <= opened.spread.most_ns


def test_nothing_is_lost_or_moved_at_any_level(resnet: Timeline) -> None:
    """Nor does a level list more than a page can name, of 7,444 events in the step."""
    assert check_all(resnet, "s5.0") <= 40


def test_nor_where_layers_are_checkpointed(checkpointed: Timeline) -> None:
    """As far down as layers go; what is inside one is the same as in the trace above."""
    check_all(checkpointed, "s16.0", most=7)


def test_nor_where_ranks_are_joined(dlrm: Timeline) -> None:
    steps = [one.id for one in dlrm.level("", every=True).operations]
    assert steps == [f"s10.{rank}" for rank in range(8)]
    for step in steps[::7]:
        check_all(dlrm, step)


def check_all(timeline: Timeline, step: str, most: int = 99) -> int:
    """Check every level of a step, in paths of at most `most` parts; returns the most operations in one."""
    first = timeline.level("", every=True)
    number = first.find(step)
    assert number is not None
    opened = [one.every for depth in timeline.below(step) for one in depth if len(one.every.path) <= most]
    levels = {level.path: level for level in opened}
    for path, inside in levels.items():
        above = levels.get(path[:-1], first)
        place = above.find(path[-1])
        assert place is not None
        check(above, place, inside)
    assert first.costs.events[number] == events_of(timeline.trace, step)
    return max(map(len, levels.values()))


def events_of(trace: Trace, step: str) -> int:
    number, rank = map(int, step[1:].split("."))
    ranks = trace["tracks"]["rank"][trace.events["track"]]
    return int(((trace.events["step"] == number) & (ranks == rank)).sum())


def test_stages_cost_what_their_table_says(resnet: Timeline, checkpointed: Timeline, dlrm: Timeline) -> None:
    for timeline in (resnet, checkpointed, dlrm):
        stages = timeline.trace["stages"]
        for step in timeline.level("", every=True).operations:
            level = timeline.level(step.id, every=True)
            numbers = [n for n, one in enumerate(level.operations) if one.kind == "stage"]
            rows = [int(level.operations[number].id[1:]) for number in numbers]
            for column in ("cpu_ns", "device_ns", "start_ns", "end_ns"):
                assert getattr(level.costs, column)[numbers].tolist() == stages[column][rows].tolist()


# -- HOTLINE's user tasks (section 6.3)


def by_name(level: Level, column: str) -> dict[str, int]:
    values = getattr(level.costs, column).tolist()
    return dict(zip((one.name for one in level.operations), values, strict=True))


def test_what_is_the_slowest_operation_on_the_cpu(resnet: Timeline) -> None:
    times = by_name(resnet.level("s5.0"), "cpu_ns")
    assert max(times, key=lambda name: times[name]) == "data_loading"
    assert times["data_loading"] == pytest.approx(68_694e3, rel=0.01)


def test_what_is_the_fastest_operation_on_the_gpu(resnet: Timeline) -> None:
    times = {name: time for name, time in by_name(resnet.level("s5.0"), "device_ns").items() if time}
    assert min(times, key=lambda name: times[name]) == "loss"


def test_is_backward_limited_by_the_gpu_or_the_cpu(resnet: Timeline) -> None:
    bound = by_name(resnet.level("s5.0"), "bound_by_device")
    assert bound["backward"]
    assert not bound["forward"]


def test_which_operation_in_layer_3_is_best_to_speed_up(checkpointed: Timeline) -> None:
    """The longest on the side that bounds the layer; the table of modules tells the same."""
    trace = checkpointed.trace
    paths = list(trace["modules"].text("path"))
    layer = next(n for n, path in enumerate(paths) if path and path.endswith("Sequential_3"))
    names, events = trace.events.text("name"), trace.events
    forward = events.text("stage").mask("forward") & (events["step"] == 16)
    calls = names.mask("nn.Module: Sequential_3") & forward
    (call,) = np.flatnonzero(calls).tolist()
    level = checkpointed.level(checkpointed.path_of(call))
    best = level.operations[int(level.costs.runtime_ns.argmax())]
    costs = module_costs(trace, trace["modules"]["parent"], forward)
    total = np.maximum(costs["forward_cpu_ns"], costs["forward_device_ns"])
    blocks = [n for n, path in enumerate(paths) if path and path.startswith(f"{paths[layer]}.")]
    shown = [one.module for one in level.operations if one.module >= 0]
    assert set(shown) <= set(blocks)
    assert len(shown) == 2
    assert best.module == max(shown, key=lambda module: total[module])


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_layer_3_is_at_most_three_clicks_from_the_start(checkpointed: Timeline, stage: str) -> None:
    """Checkpointing wraps each layer in one more module, which is opened in place."""
    start = checkpointed.start()
    blocks = {"BasicBlock_4", "BasicBlock_5"}
    found = [
        inside
        for inside in shown_below(checkpointed, start, most=4)
        if blocks <= {one.name for one in inside.operations}
        and inside.path[1] == stage_id(checkpointed, start, stage)
    ]
    assert found


def shown_below(timeline: Timeline, path: str, most: int) -> Iterator[Level]:
    """The levels inside the operations that are shown, in paths of at most `most` parts."""
    level = timeline.level(path)
    for number, operation in enumerate(level.operations):
        if level.costs.events[number] > 1 and len(level.path) < most:
            yield timeline.level(f"{path}/{operation.id}")
            yield from shown_below(timeline, f"{path}/{operation.id}", most)


def stage_id(timeline: Timeline, step: str, stage: str) -> str:
    return next(one.id for one in timeline.level(step).operations if one.name == stage)


# -- raw events


@pytest.mark.parametrize("name", ["resnet", "checkpointed"])
def test_an_export_holds_exactly_the_raw_events_of_an_operation(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Checked without the index: by following parents and launches of all events."""
    timeline: Timeline = request.getfixturevalue(name)
    step = timeline.start()
    for path in (step, *(f"{step}/{one.id}" for one in timeline.level(step).operations)):
        level, number = timeline.find(path)
        exported = timeline.chrome_trace(path).traceEvents
        slices = [event.args["stepscope event"] for event in exported if event.ph == "X"]
        assert len(slices) == len(set(slices)) == level.costs.events[number]
        assert set(slices) == held_by(timeline.trace, level.operations[number])


def held_by(trace: Trace, operation: Operation) -> set[int]:
    """An operation's rows, all whose ancestors are among them, and what any of these launched."""
    parents, held = trace.events["parent"].tolist(), set(operation.rows.tolist())
    for event, parent in enumerate(parents):  # parents come first
        if parent in held:
            held.add(event)
    launches = trace["launches"]
    pairs = zip(launches["cpu_event"].tolist(), launches["device_event"].tolist(), strict=True)
    return held | {device for cpu, device in pairs if cpu in held}


def test_every_raw_event_of_a_step_has_its_place(resnet: Timeline) -> None:
    step = resnet.start()
    places = place_events(resnet.index, step, resnet.raw_events(step), resnet.below(step))
    assert len(places.events) == events_of(resnet.trace, step)
    for number in range(0, len(places.events), 97):
        path = places.paths[places.place[number]]
        assert path == resnet.path_of(int(places.events[number]))


# -- levels opened together


def facts(level: Level) -> tuple[object, ...]:
    """All that a level says."""
    costs, parts = (
        {name: column.tolist() for name, column in vars(one).items() if name != "parts"}
        for one in (level.costs, level.costs.parts)
    )
    operations = [{**vars(one), "rows": one.rows.tolist()} for one in level.operations]
    partners = [one.tolist() for one in (level.forward, level.backward, level.launch)]
    others = ("path", "name", "through", "passed", "hidden", "start_ns", "end_ns", "shift_ns")
    said = [getattr(level, name) for name in others]
    return costs, parts, operations, partners, level.resources, said


@pytest.mark.parametrize("name", ["resnet", "checkpointed", "dlrm"])
def test_levels_opened_together_are_those_opened_alone(name: str, request: pytest.FixtureRequest) -> None:
    timeline: Timeline = request.getfixturevalue(name)
    openings = [one for depth in timeline.below(timeline.start()) for one in depth]
    assert len(openings) > 100
    for one in openings[:: len(openings) // 60]:
        path = "/".join(one.shown.path)
        assert facts(timeline.level(path)) == facts(one.shown)
        assert facts(timeline.level(path, every=True)) == facts(one.every)
