"""Pauses of the threads that run a compiled program belong to the stage that they pause in."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

STEP = "main | 0 1000 | train#step_num=0 | cat=annotation\n"
FORWARD = "hlo__op=dot scope=jit(step)/jvp(Net)/dot"
BACKWARD = "hlo__op=dot scope=jit(step)/transpose(jvp(Net))/dot"
UPDATE = "hlo__op=dot scope=jit(step)/sub"


def run(start: int, end: int, of: str) -> str:
    return f"pool | {start} {end} | dot.{start} | cat=cpu_op corr=1 {of}\n"


def main(start: int, end: int, name: str, category: str = "runtime") -> str:
    return f"main | {start} {end} | {name} | cat={category}\n"


def stages(text: str) -> list[tuple[str, int, int]]:
    trace = annotate(drawn_trace(STEP + text, framework="jax"))
    return [(row["stage"], row["start_ns"] // 1000, row["end_ns"] // 1000) for row in trace["stages"].rows()]


CALL = main(0, 100, "PjitFunction(step)")
WORK = run(200, 300, FORWARD) + run(400, 500, BACKWARD) + run(600, 700, BACKWARD)


@pytest.mark.parametrize("wait", ["CommonPjRtBuffer::Await", "wait: block_until_ready"])
def test_a_wait_is_of_the_work_that_it_waits_for(wait: str) -> None:
    """Starting the threads, their meeting, and waking up the thread that waits."""
    assert stages(CALL + WORK + main(100, 800, wait) + main(800, 1000, "log", "annotation")) == [
        ("other", 0, 100),
        ("forward", 100, 400),
        ("backward", 400, 800),
        ("other", 800, 1000),
    ]


def test_in_a_call_only_a_pause_within_one_stage_is_known() -> None:
    """What follows prepares the next program."""
    assert stages(WORK + main(0, 1000, "PjitFunction(step)")) == [
        ("other", 0, 200),
        ("forward", 200, 300),
        ("other", 300, 400),
        ("backward", 400, 700),
        ("other", 700, 1000),
    ]


def test_a_call_that_compiles_pauses_in_no_stage() -> None:
    """Work of the step before is done when XLA compiles for the next shapes."""
    text = WORK + run(950, 980, BACKWARD) + main(0, 1000, "PjitFunction(step)")
    text += main(720, 940, "backend_compile_and_load", "annotation")
    assert ("other", 700, 950) in stages(text)


def test_a_wait_after_the_work_is_of_the_last_of_it() -> None:
    """Reading the loss when the step is done."""
    found = stages(CALL + WORK + main(100, 700, "wait: float(x)") + main(800, 950, "wait: float(x)"))
    assert found[-3:] == [("other", 700, 800), ("backward", 800, 950), ("other", 950, 1000)]


def test_what_the_program_does_meanwhile_is_not_part_of_a_pause() -> None:
    """The loop logs while threads work, and goes on when they are done."""
    found = stages(CALL + WORK + main(150, 950, "log metrics", "annotation"))
    assert ("other", 700, 1000) in found


APPLY = "hlo__op=sub scope=jit(apply_gradients)/optimizer/sub"
SUM_FORWARD = "hlo__op=dot scope=jit(accumulate)/jvp(Net)/dot"
SUM_BACKWARD = "hlo__op=dot scope=jit(accumulate)/transpose(jvp(Net))/dot"


def accumulated(calls: int, until: int) -> str:
    """Gradients of some calls are summed; the call that applies them waits for the sum."""
    text = "".join(main(10 * call, 10 * call + 10, "PjitFunction(accumulate)") for call in range(calls))
    text += main(10 * calls, until, "PjitFunction(apply_gradients)")
    for call in range(calls):
        begin = 100 * (call + 1)
        text += run(begin, begin + 40, SUM_FORWARD) + run(begin + 40, begin + 100, SUM_BACKWARD)
    return text + run(100 * calls + 100, 100 * calls + 130, APPLY)


@pytest.mark.parametrize("calls", [1, 2, 4, 8])
def test_a_call_that_waits_for_earlier_work_is_that_work(calls: int) -> None:
    """Such as one whose donated arguments are not ready: its own stage is the optimizer."""
    end = 100 * (calls + 1)
    found = stages(accumulated(calls, end + 20))
    assert sum(stop - start for stage, start, stop in found if stage == "forward") == 40 * calls
    assert sum(stop - start for stage, start, stop in found if stage == "backward") == 60 * calls


def test_a_call_in_a_range_with_a_name_is_that_range() -> None:
    """The batch is prepared while the program of the step before still runs."""
    loading = main(0, 350, "load_batch", "annotation") + main(10, 340, "PjitFunction(crop)")
    found = stages(loading + WORK + main(350, 800, "wait: float(x)"))
    assert found[0] == ("data_loading", 0, 350)


def test_a_program_that_the_loop_runs_itself_is_not_a_wait() -> None:
    """A small program runs in its call, while another's threads work."""
    own = main(100, 400, "PjitFunction(apply_gradients)") + (
        f"main | 200 400 | sub.1 | cat=cpu_op corr=2 {APPLY}\n"
    )
    found = stages(own + run(0, 350, FORWARD) + run(400, 500, BACKWARD))
    assert found[:2] == [("forward", 0, 200), ("optimizer", 200, 400)]


BOTH_PASSES = (
    main(0, 20, "PjitFunction(accumulate)") + run(20, 200, SUM_FORWARD) + (run(200, 400, SUM_BACKWARD))
)


def update(start: int) -> str:
    """A program that has ended when its call returns."""
    work = f"main | {start + 10} {start + 90} | sub.{start} | cat=cpu_op corr={start} {APPLY}\n"
    return main(start, start + 100, "PjitFunction(apply_gradients)") + work


@pytest.mark.parametrize(
    "wait",
    [
        "wait: block_until_ready",
        "wait: effects_barrier",
        "wait: float(x)",
        "ArrayImpl.copy_to_host_async",
        "BlockHostUntilReady",
    ],
)
def test_a_wait_in_which_nothing_runs_is_of_the_call_before_it(wait: str) -> None:
    """`jax.block_until_ready` goes through the results in Python, whether they are ready or not."""
    inside = main(620, 640, "PythonRefManager::CollectGarbage") + main(700, 800, wait)
    found = stages(BOTH_PASSES + update(500) + main(610, 900, wait) + inside)
    assert found[-2:] == [("optimizer", 500, 900), ("other", 900, 1000)]


def test_each_wait_is_of_the_last_call() -> None:
    wait = "wait: block_until_ready"
    found = stages(BOTH_PASSES + main(420, 500, wait) + update(500) + main(650, 800, wait))
    assert found == [
        ("other", 0, 20),
        ("forward", 20, 200),
        ("backward", 200, 400),
        ("other", 400, 420),
        ("backward", 420, 500),
        ("optimizer", 500, 600),
        ("other", 600, 650),
        ("optimizer", 650, 800),
        ("other", 800, 1000),
    ]


def test_what_the_loop_does_between_a_call_and_waits_for_it_is_its_own() -> None:
    """Though the stage is the same on both sides: it logs what it has read, in Python."""
    waits = main(650, 700, "wait: float(x)") + main(800, 850, "wait: float(x)")
    assert stages(BOTH_PASSES + update(500) + waits)[-6:] == [
        ("optimizer", 500, 600),
        ("other", 600, 650),
        ("optimizer", 650, 700),
        ("other", 700, 800),
        ("optimizer", 800, 850),
        ("other", 850, 1000),
    ]


def test_a_wait_before_any_call_stays_other() -> None:
    begin = main(0, 100, "wait: float(x)") + main(100, 110, "PjitFunction(accumulate)")
    found = stages(begin + run(110, 200, SUM_FORWARD) + run(200, 400, SUM_BACKWARD) + update(500))
    assert found[:2] == [("other", 0, 110), ("forward", 110, 200)]


@pytest.mark.parametrize("put", ["shard_args", "DevicePutWithSharding"])
def test_a_wait_for_a_batch_is_data_loading(put: str) -> None:
    """The batch moves to its device in a range of the user's, and is waited for outside of it."""
    loading = main(600, 700, "load_batch", "annotation") + main(650, 690, put, "annotation")
    wait = main(750, 900, "wait: block_until_ready")
    found = stages(BOTH_PASSES + update(500) + loading + wait)
    assert found[-4:] == [
        ("data_loading", 600, 700),
        ("other", 700, 750),
        ("data_loading", 750, 900),
        ("other", 900, 1000),
    ]


def test_a_wait_for_data_that_no_range_names_is_not_of_the_program_before() -> None:
    put = main(600, 650, "DevicePutWithSharding", "annotation")
    found = stages(BOTH_PASSES + update(500) + put + main(650, 800, "wait: block_until_ready"))
    assert found[-2:] == [("optimizer", 500, 600), ("other", 600, 1000)]


def test_who_reads_a_value_does_not_wait_for_the_next_batch() -> None:
    """It is on its way to the device already."""
    loading = main(600, 700, "load_batch", "annotation") + main(650, 690, "shard_args")
    found = stages(BOTH_PASSES + update(500) + loading + main(750, 800, "wait: float(x)"))
    assert found[-2:] == [("optimizer", 750, 800), ("other", 800, 1000)]


def test_a_wait_in_a_range_with_a_name_is_that_range() -> None:
    saving = main(650, 800, "save_checkpoint", "annotation")
    found = stages(BOTH_PASSES + update(500) + saving + main(660, 780, "wait: np.asarray(x)"))
    assert ("checkpointing", 650, 800) in found
