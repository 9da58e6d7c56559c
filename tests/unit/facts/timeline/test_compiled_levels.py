"""What the timeline shows of a step that was compiled whole: its stages stand on the device."""

from __future__ import annotations

from drawings import drawn, rows

STEP = """
    main     |   0 100 | train#step_num=3
    main     |   5  60 | PjitFunction(step) | cat=runtime
    main     |  10  11 | cuLaunchKernel     | corr=1
    main     |  12  13 | cuLaunchKernel     | corr=2
    main     |  14  15 | cuLaunchKernel     | corr=3
    main     |  16  17 | cuLaunchKernel     | corr=4
    main     |  18  19 | cuLaunchKernel     | corr=5
    stream 7 |  20  22 | prepare            | corr=1 scope=jit(step)/convert_element_type
    stream 7 |  22  26 | fusion             | corr=2 scope=jit(step)/jvp(MLP)/Dense_0/dot_general
    stream 7 |  26  30 | fusion_2           | corr=5 scope=jit(step)/jvp(MLP)/Dense_1/dot_general
    stream 7 |  32  48 | fusion_1           | corr=3 scope=jit(step)/transpose(jvp(MLP))/Dense_0/mul
    stream 7 |  48  50 | update             | corr=4 scope=jit(step)/sub
"""


def test_each_stage_has_the_work_of_its_own_scopes() -> None:
    timeline = drawn(STEP)
    assert rows(timeline.level("s3.0")) == [
        ("stage", "other", 100, 2),
        ("stage", "forward", 0, 8),
        ("stage", "backward", 0, 16),
        ("stage", "optimizer", 0, 2),
    ]


def test_a_stage_of_the_device_opens_into_its_modules() -> None:
    timeline = drawn(STEP)
    (forward,) = (one for one in timeline.level("s3.0").operations if one.name == "forward")
    inside = timeline.level(f"s3.0/{forward.id}")
    assert rows(inside) == [("module", "MLP", 0, 8)]
    inside = timeline.level(f"s3.0/{forward.id}/{inside.operations[0].id}")
    assert rows(inside) == [("module", "Dense_0", 0, 4), ("module", "Dense_1", 0, 4)]


def test_every_kernel_is_found() -> None:
    timeline = drawn(STEP)
    for event, name in enumerate(timeline.trace.events.text("name")):
        if name in ("fusion", "fusion_1", "update"):
            assert timeline.path_of(event).startswith("s3.0/t")
