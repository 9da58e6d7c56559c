"""Select, scale, insert, remove: on a small step whose new length is computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn import US, graph_of, links, starts, step_us, tasks

from stepscope.errors import GraphError
from stepscope.graph import (
    Graph,
    add_links,
    add_thread,
    append,
    breakdown,
    critical_ms,
    critical_path,
    insert,
    insert_device_work,
    parse_selection,
    redirect,
    remove,
    scale,
    select,
    simulate,
    typical_launch,
)

# The device is the slower side: launches at 10 and 20, work until 110, and a wait for it.
STEP = """
    main     |   0 120 | ProfilerStep#0
    main     |  10  16 | aten::mm
    main     |  10  14 | cudaLaunchKernel      | corr=7
    main     |  20  26 | aten::relu
    main     |  20  24 | cudaLaunchKernel      | corr=8
    main     |  30 115 | cudaDeviceSynchronize | corr=9
    stream 7 |  20  80 | sgemm                 | corr=7
    stream 7 |  80 110 | elementwise_kernel    | corr=8
"""


@pytest.fixture
def graph() -> Graph:
    return graph_of(STEP)


def names(graph: Graph, mask: np.ndarray) -> list[str | None]:
    return list(graph.tasks.text("name").take(mask))


def test_what_a_graph_shows_is_found_once(graph: Graph) -> None:
    counted: list[Graph] = []

    def find(one: Graph) -> int:
        counted.append(one)
        return len(one)

    changed = graph.with_tasks(duration_ns=graph.tasks["duration_ns"] + 1)
    assert [one.once(find) for one in (graph, graph, changed)] == [len(graph)] * 3
    assert counted == [graph, changed]


def test_select_by_kind_name_operator_and_side(graph: Graph) -> None:
    assert names(graph, select(graph, kind="gemm")) == ["sgemm"]
    assert [names(graph, select(graph, kind="gemm", step=step)) for step in (0, 1)] == [["sgemm"], []]
    assert names(graph, select(graph, name="elem*")) == ["elementwise_kernel"]
    assert names(graph, select(graph, operator="aten::relu", on_device=True)) == ["elementwise_kernel"]
    assert names(graph, select(graph, category="runtime", name="*Synchronize")) == [
        "cudaDeviceSynchronize",
        "cudaDeviceSynchronize",
    ]
    long = select(graph, where=lambda graph: graph.tasks["duration_ns"] > 50 * US)
    assert names(graph, long) == ["sgemm"]


def test_select_by_a_range_of_the_user() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  30 | my region        | cat=annotation
        main     | 12  20 | cudaLaunchKernel | corr=7
        main     | 40  42 | cudaLaunchKernel | corr=8
        stream 7 | 20  60 | sgemm            | corr=7
        stream 7 | 60  70 | relu             | corr=8
    """)
    assert names(graph, select(graph, operator="my region", on_device=True)) == ["sgemm"]


def test_select_by_module() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  30 | nn.Module: Linear_0 | Python_id=1 Python_module_id=0
        main     | 12  20 | cudaLaunchKernel | corr=7
        main     | 40  42 | cudaLaunchKernel | corr=8
        stream 7 | 20  60 | sgemm            | corr=7
        stream 7 | 60  70 | relu             | corr=8
    """)
    path = graph.trace["modules"].text("path")[0]
    assert path is not None
    assert names(graph, select(graph, module=path, on_device=True)) == ["sgemm"]
    assert names(graph, select(graph, module="elsewhere")) == []


def test_a_stage_that_does_not_exist_is_refused(graph: Graph) -> None:
    with pytest.raises(GraphError, match=r"expected a stage of data_loading, .*; found 'bakcward'"):
        select(graph, stage="bakcward")


def test_a_selection_is_written_as_keys_and_values() -> None:
    assert parse_selection("stage=backward+name=*a=b*") == {"stage": "backward", "name": "*a=b*"}
    with pytest.raises(GraphError, match=r"expected KEY=VALUE.* found 'backward'"):
        parse_selection("backward")


def test_scaling_the_longest_kernel_shortens_the_step_by_its_savings(graph: Graph) -> None:
    # sgemm 60 -> 30: the work ends at 80 instead of 110, the wait at 85, the step at 90.
    assert step_us(scale(graph, select(graph, name="sgemm"), 0.5).check()) == [90]
    assert step_us(graph) == [120]


def test_a_negative_factor_is_refused(graph: Graph) -> None:
    with pytest.raises(GraphError, match="expected a factor of at least 0, found -1"):
        scale(graph, select(graph), -1)


def test_removing_a_kernel_removes_its_launch_and_keeps_the_order(graph: Graph) -> None:
    changed = remove(graph, select(graph, name="sgemm")).check()
    assert links(changed, "launch") == [("cudaLaunchKernel", "elementwise_kernel")]
    assert [name for name, _, _ in tasks(changed, "main")].count("cudaLaunchKernel") == 1
    # The other launch comes 4 earlier, at 16; its work starts 10 later (the latency seen), at 26,
    # and ends at 56; the wait returns at 61, the step ends at 66.
    assert step_us(changed) == [66]


def test_tasks_that_waited_for_removed_work_wait_for_the_work_before_it(graph: Graph) -> None:
    changed = remove(graph, select(graph, name="elementwise_kernel")).check()
    assert links(changed, "synchronization") == [("sgemm", "cudaDeviceSynchronize")]
    assert step_us(changed) == [90]


def test_a_removed_wait_waits_for_nothing(graph: Graph) -> None:
    changed = remove(graph, select(graph, name="cudaDeviceSynchronize")).check()
    assert not links(changed, "synchronization")
    assert step_us(changed) == [110]


def test_an_inserted_task_occupies_its_thread(graph: Graph) -> None:
    sgemm = np.flatnonzero(select(graph, name="sgemm"))
    changed, new = insert(graph, sgemm, ["encode"], duration_ns=[7 * US])
    assert changed.tasks.text("name")[int(new[0])] == "encode"
    assert starts(changed.check())["encode"] == 80
    assert step_us(changed) == [127]
    assert links(changed, "launch") == links(graph, "launch")


def test_inserted_device_work_is_launched(graph: Graph) -> None:
    call, work = (int(np.flatnonzero(select(graph, name=name))[-1]) for name in ("aten::relu", "elem*"))
    changed, new = insert_device_work(graph, call, work, ["decode"], 10 * US)
    assert names(changed, np.isin(np.arange(len(changed)), new)) == ["decode"]
    assert links(changed.check(), "launch")[-1] == ("launch", "decode")
    assert links(changed, "synchronization") == [("decode", "cudaDeviceSynchronize")]
    assert step_us(changed) == [130]


def test_several_kernels_are_inserted_at_once_each_with_its_launch(graph: Graph) -> None:
    call = np.flatnonzero(select(graph, name="aten::mm"))[-1]
    work = np.flatnonzero(select(graph, kind="gemm"))[0]
    changed, _ = insert_device_work(graph, [call, call], [work, work], ["a", "b"], [7 * US, 8 * US])
    assert links(changed.check(), "launch")[-2:] == [("launch", "a"), ("launch", "b")]
    assert starts(changed)["a"] == 80
    assert starts(changed)["b"] == 87
    assert step_us(changed) == [135]


def test_without_any_launch_new_ones_take_no_time() -> None:
    assert typical_launch(graph_of("main | 0 100 | ProfilerStep#0\nmain | 10 20 | aten::mm")) == (0, 0)


def test_a_task_inserted_in_front_takes_over_dependencies() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel    | corr=7
        main     | 13  14 | cudaStreamWaitEvent | corr=9
        main     | 14  16 | cudaLaunchKernel    | corr=10
        stream 7 | 20  60 | first               | corr=7
        stream 8 | 62 170 | second              | corr=10
    """)
    second = np.flatnonzero(select(graph, name="second"))
    changed, _ = insert(graph, second, ["unpack"], in_front=True, duration_ns=20 * US)
    assert links(changed.check(), "synchronization") == [("first", "unpack")]
    assert links(changed, "launch") == [("cudaLaunchKernel", name) for name in ("first", "second")]
    assert starts(changed)["unpack"] == 62
    assert step_us(changed) == [190]


def test_waits_are_redirected_to_another_task(graph: Graph) -> None:
    sgemm, relu = (int(np.flatnonzero(select(graph, name=name))[0]) for name in ("sgemm", "elem*"))
    changed = redirect(graph, [relu], [sgemm]).check()
    assert links(changed, "synchronization") == [("sgemm", "cudaDeviceSynchronize")]
    assert links(changed, "launch") == links(graph, "launch")


def test_tasks_are_appended_to_several_threads_at_once(graph: Graph) -> None:
    changed, first = add_thread(graph, "send", "communication", 0)
    changed, second = add_thread(changed, "receive", "communication", 0)
    changed, new = append(changed, [second, first, second], ["a", "b", "c"], duration_ns=5 * US)
    assert [changed.tasks.text("name")[int(task)] for task in new] == ["a", "b", "c"]
    assert [task[0] for task in tasks(changed.check(), "receive")] == ["a", "c"]
    assert links(changed, "launch") == links(graph, "launch")


def test_a_channel_runs_ready_tasks(graph: Graph) -> None:
    changed, channel = add_thread(graph, "network", "communication", 0)
    changed, new = append(changed, channel, ["all_reduce"], duration_ns=50 * US, category="communication")
    sgemm = np.flatnonzero(select(changed, name="sgemm"))
    changed = add_links(changed, sgemm, new, "communication", 5 * US).check()
    assert starts(changed)["all_reduce"] == 85
    assert step_us(changed) == [135]


def test_the_breakdown_adds_up_to_the_step(graph: Graph) -> None:
    parts = breakdown(simulate(graph))
    # The CPU works until it waits at 30 and from 110 on; the device from 20 to 110.
    assert parts.cpu_only_ms == pytest.approx(0.030)
    assert parts.device_only_ms == pytest.approx(0.080)
    assert parts.parallel_ms == pytest.approx(0.010)
    assert parts.idle_ms == 0


def test_the_critical_path_determines_the_length(graph: Graph) -> None:
    simulation = simulate(graph)
    assert names(graph, critical_path(simulation)) == [
        "step 0",
        "cudaLaunchKernel",
        "sgemm",
        "elementwise_kernel",
        "cudaDeviceSynchronize",
        "step 0",
    ]
    assert sum(critical_ms(simulation)["stages"].values()) == pytest.approx(0.120)


@pytest.mark.parametrize("rank", [0, 1])
def test_work_of_earlier_steps_is_no_part_of_the_critical_path(graph: Graph, rank: int) -> None:
    earlier = graph.tasks.text("name").mask("sgemm")  # it ends at 80 of 120
    window = replace(graph.window, rank=rank, steps=(1,), begin_ns=80 * US)
    later = replace(
        graph.with_tasks(step=np.where(earlier, 0, 1)),
        threads=graph.threads.with_columns(rank=np.full(len(graph.threads), rank)),
        window=window,
    )
    assert sum(critical_ms(simulate(later))["stages"].values()) == pytest.approx(0.040)


def test_a_cycle_is_named_by_its_tasks(graph: Graph) -> None:
    first, second = (int(np.flatnonzero(select(graph, name=name))[0]) for name in ("sgemm", "elem*"))
    with pytest.raises(GraphError) as caught:
        add_links(graph, second, first, "synchronization").check()
    names = [graph.tasks.text("name")[task] for task in (first, second)]
    sgemm, relu = (f"{name} (task {task})" for name, task in zip(names, (first, second), strict=True))
    assert f"has a cycle: {relu} waits for {sgemm} waits for {relu} (" in str(caught.value)


@pytest.mark.parametrize("through", [0, 1, 2])
@pytest.mark.parametrize("linked_first", [True, False])
def test_links_of_new_tasks_stay_where_waits_are_redirected(
    graph: Graph, through: int, linked_first: bool
) -> None:
    """What waited for the product waits for its copy, at the end of a chain of added tasks."""
    changed, stream = add_thread(graph, "copies", "device", 0)
    names = [*(f"pack {number}" for number in range(through)), "copy"]
    changed, new = append(changed, stream, names, duration_ns=US)
    relu = int(np.flatnonzero(select(changed, name="elem*"))[0])
    if linked_first:
        changed = redirect(add_links(changed, relu, new[0], "synchronization"), [relu], new[-1:])
    else:
        changed = add_links(redirect(changed, [relu], new[-1:]), relu, new[0], "synchronization")
    name = graph.tasks.text("name")[relu]
    expected = {(name, names[0]), ("copy", "cudaDeviceSynchronize")}
    assert set(links(changed.check(), "synchronization")) == expected
