"""PyTorch's DataParallel forward pass, whose parts no model names (HOTLINE appendix B.3).

Without Python frames its parts are operators on the loop's thread, in their hundreds: the inputs
are scattered, the parameters broadcast and every replica rebuilt, the replicas run on threads of
their own, each on its device, and their outputs are gathered. With frames the parts have names.
"""

from __future__ import annotations

from drawings import drawn, names, opened, rows

PARAMETERS = 80
DEVICES = 4


def forward() -> str:
    lines = [
        "main | 0 1000 | ProfilerStep#1",
        "main | 0 1000 | ## forward ##",
        "main | 0 60 | Scatter",
        "main | 10 50 | aten::chunk",
    ]
    lines += [f"main | {60 + 40 * i} {100 + 40 * i} | Broadcast" for i in range(10)]
    for parameter in range(PARAMETERS):
        at = 460 + 3 * parameter
        lines += [f"main | {at} {at + 2} | aten::view", f"main | {at + 2} {at + 3} | aten::detach"]
    for device in range(DEVICES):
        end = 900 + 10 * device
        lines += [
            f"replica {device} | 720 {end - 100} | aten::conv2d",
            f"replica {device} | 730 732 | cudaLaunchKernel | corr={device + 1}",
            f"replica {device} | {end - 100} {end} | aten::linear",
            f"stream {device} | 740 {end} | fprop | corr={device + 1}",
        ]
    return "\n".join([*lines, "main | 930 1000 | Gather"])


def test_its_parts_come_out_as_sections() -> None:
    """Scatter, replicate (two sections), the straggler of the replicas, gather."""
    level = opened(drawn(forward()), "step 1", "forward")
    assert rows(level) == [
        ("event", "Scatter", 60, 0),
        ("series", "Broadcast ×10", 400, 0),
        ("repeat", "aten::view (67%) and 1 other ×80", 240, 0),
        ("event", "aten::conv2d", 110, 190),
        ("event", "aten::linear", 100, 0),
        ("event", "Gather", 70, 0),
    ]


def test_replication_is_seen_to_take_two_thirds() -> None:
    level = opened(drawn(forward()), "step 1", "forward")
    replicate = level.costs.cpu_ns[1:3].sum()
    assert replicate / 1_000_000 == 0.64


def test_only_the_straggler_of_the_replicas_is_shown() -> None:
    timeline = drawn(forward())
    level = opened(timeline, "step 1", "forward")
    assert [one.name for one in level.resources if one.shown] == ["main", "stream 3"]
    every = opened(timeline, "step 1", "forward", every=True)
    assert names(every).count("aten::conv2d") == DEVICES


def test_what_is_done_for_each_parameter_opens_to_pieces_and_these_to_events() -> None:
    timeline = drawn(forward())
    rebuilt = opened(timeline, "step 1", "forward", "aten::view (67%) and 1 other ×80")
    assert set(names(rebuilt)) == {"aten::view (67%) and 1 other ×4"}
    assert len(rebuilt) == 20
    piece = timeline.level("/".join((*rebuilt.path, rebuilt.operations[0].id)))
    assert names(piece) == ["aten::view", "aten::detach"] * 4


def test_frames_name_the_parts() -> None:
    call = "torch/nn/parallel/data_parallel.py"
    level = opened(
        drawn(f"""
            main | 0 1200 | ProfilerStep#1
            main | 0 1000 | nn.Module: DataParallel_0
            main | 0 1000 | {call}(147): forward
            main |   0  60 | {call}(177): scatter
            main |  60 700 | {call}(168): replicate
            main | 100 600 | Broadcast
            main | 700 930 | {call}(181): parallel_apply
            main | 710 920 | <built-in method acquire of _thread.lock object at 0x7f01>
            main | 930 1000 | {call}(188): gather
            main | 1000 1200 | ## backward ##
        """),
        "step 1",
        "forward",
    )
    assert level.through == ("DataParallel_0", "forward data_parallel.py")
    assert rows(level) == [
        ("event", "scatter data_parallel.py", 60, 0),
        ("event", "replicate data_parallel.py", 640, 0),
        ("event", "parallel_apply data_parallel.py", 230, 0),
        ("event", "gather data_parallel.py", 70, 0),
    ]
