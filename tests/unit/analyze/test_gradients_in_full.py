"""Findings in full on gradients and what is computed besides: exchanges, repeated passes, functions."""

from __future__ import annotations

import pytest
from drawn_findings import BY_NAME, NODE, Case, Limit, alone, from_limit_on, in_full, repeated, told
from msgspec.structs import replace

from stepscope.analyze import Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import StagePlace
from stepscope.testing import drawn_trace

TRAINING = f"""
    main | 10 20 | aten::mm | seq=1
    main | 900 910 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 950 960 | Optimizer.step#SGD.step
"""

EXPERTS = {
    "name": "moe",
    "class": "MoE",
    "children": [{"name": f"experts.{number}", "class": "Expert"} for number in range(2)],
}

CALLS = f"""
    main | 10 90 | stepscope.module: net
    main | 20 80 | aten::mm | seq=7
    main | 110 190 | stepscope.module: net
    main | 120 {{end}} | aten::mm | seq=8
    main | 210 290 | stepscope.module: frozen
    main | 220 280 | aten::mm | seq=9
    main | 310 390 | stepscope.module: net
    main | 320 380 | aten::mm
    main | 400 480 | stepscope.module: net
    main | 410 470 | aten::relu | seq=10
    main | 500 600 | {NODE} MmBackward0 | seq=7 fwd=1
    main | 510 590 | aten::mm
    main | 700 800 | Optimizer.step#SGD.step
"""


def calls(end: float = 180, us: float = 1000) -> str:
    return repeated(CALLS.format(end=end), us)


LOSSES = f"""
    main | 10 100 | stepscope.module: net.trunk
    main | 20 90 | aten::mm | seq=1
    main | 110 130 | aten::mean | seq=2
    main | 140 160 | aten::sum | seq=3
    main | 170 180 | Optimizer.zero_grad#SGD.zero_grad
    main | 200 210 | {NODE} MeanBackward0 | seq=2 fwd=1
    main | 220 320 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 330 350 | {NODE} torch::autograd::AccumulateGrad
    main | 335 345 | aten::add_
    main | 400 410 | {NODE} SumBackward0 | seq=3 fwd=1
    main | 420 {{end}} | {NODE} MmBackward0 | seq=1 fwd=1
    main | 530 560 | {NODE} torch::autograd::AccumulateGrad
    main | 540 550 | aten::add_
    main | 570 580 | {NODE} torch::autograd::AccumulateGrad
    main | 572 575 | aten::detach
    main | 910 940 | Optimizer.step#SGD.step
"""

EXCHANGES = f"""
    main | 0 90 | aten::mm | seq=1
    main | 100 130 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 130 195 | {NODE} torch::autograd::AccumulateGrad
    main | 131 134 | c10d::allreduce_
    gloo | 134 {{end}} | gloo:all_reduce
    main | 200 290 | aten::mm | seq=2
    main | 300 330 | {NODE} MmBackward0 | seq=2 fwd=1
    main | 330 395 | {NODE} torch::autograd::AccumulateGrad
    main | 331 334 | c10d::allreduce_
    gloo | 334 394 | gloo:all_reduce
    main | 400 490 | Optimizer.step#SGD.step
    gloo | 420 440 | gloo:all_reduce
"""


def exchanges(end: float = 194, us: float = 500) -> str:
    return repeated(EXCHANGES.format(end=end), us)


FREE = f"""
    main | 5 520 | stepscope.module: net
    main | 10 20 | aten::arange
    main | 25 {{end}} | aten::triu
    main | {{end}} 320 | aten::randn
    main | 400 500 | aten::mm | seq=1
    main | 510 515 | aten::sum | seq=2
    main | 700 705 | {NODE} SumBackward0 | seq=2 fwd=1
    main | 710 800 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 900 950 | Optimizer.step#SGD.step
"""

ZEROING = """
    main | 10 500 | Optimizer.zero_grad#SGD.zero_grad
    main | 20 200 | aten::zero_
    main | 30 40 | aten::fill_
    main | 210 300 | aten::zero_
    main | 310 320 | aten::sum
    main | 600 610 | aten::mm | seq=1
    main | 700 750 | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    main | 710 740 | aten::add_
    main | 800 850 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 810 840 | aten::add_
"""

RECOMPUTED = f"""
    main | 10 200 | stepscope.module: net
    main | 20 190 | aten::addmm | seq=1
    main | 300 600 | {NODE} CheckpointBackward | seq=2 fwd=1
    main | 310 {{end}} | stepscope.module: net
    main | 311 312 | aten::addmm | seq=3
    main | 490 590 | {NODE} AddmmBackward0 | seq=3 fwd=1
    main | 700 800 | Optimizer.step#SGD.step
"""

CASES = {
    "calls without backward": Case(
        "forward_without_backward",
        calls(),
        """
        Trained modules run without backward once per step, 0.08 ms.
        Gradients are enabled there.
        -> If these calls evaluate, put them under torch.inference_mode(), and evaluate less
        often; else put them under torch.no_grad().
        warning: 0.08 of 1 ms, 0 to 0.08
        at most the time of these calls, if not each step needs them
        * stepscope.module: net × 1, 0.08 ms, forward net
        """,
    ),
    "two losses": Case(
        "repeated_backward",
        repeated(LOSSES.format(end=520)),
        """
        Backward goes through the same operators 2 times per update.
        All but one of these passes take 0.14 ms per step.
        Most is in net.trunk.
        -> Add up the losses and call backward() once, without retain_graph=True.
        warning: 0.17 of 1 ms, 0 to 0.2295
        all but one of these passes
        * autograd::engine::evaluate_function: MmBackward0 × 1, 0.1 ms, backward net.trunk
        * autograd::engine::evaluate_function: torch::autograd::AccumulateGrad × 2, 0.04 ms,
        backward net.trunk
        """,
    ),
    "exchanges of each pass": Case(
        "exchange_per_pass",
        exchanges(),
        """
        Gradients are exchanged after each of 2 backward passes per update.
        -> Exchange them after the last pass alone: run forward and backward of the others under
        model.no_sync() of DistributedDataParallel.
        warning: 0.065 of 0.5 ms, 0 to 0.065
        at most the time of these exchanges, and of the hooks that start them
        * gloo:all_reduce × 1, 0.06 ms, backward
        """,
    ),
    "what trains nothing": Case(
        "work_without_gradient",
        repeated(FREE.format(end=200)),
        """
        Forward operators that train nothing take 0.19 ms per step (19%).
        Most is in net.
        Longest: aten::triu once, aten::arange once.
        -> Compute once, before the loop, what does not change between steps (masks, tables, a
        graph's structure).
        warning: 0.19 of 1 ms, 0.095 to 0.285
        at most their time, with the Python between
        * aten::triu × 1, 0.175 ms, forward net
        * aten::arange × 1, 0.01 ms, forward net
        """,
    ),
    "zeros": Case(
        "zero_grad_memset",
        repeated(ZEROING),
        """
        2 operators per step fill gradients with zeros.
        -> Release gradients instead: optimizer.zero_grad(set_to_none=True), the default since
        PyTorch 2.0.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated, if gradients were neither zeroed nor added to
        * aten::zero_ × 2, 0.27 ms, zero_grad
        """,
    ),
    "a forward pass again": Case(
        "recomputation",
        repeated(RECOMPUTED.format(end=480)),
        """
        Checkpointing computes forward passes again, 0.17 ms per step (17%).
        See net.
        -> Checkpoint none or only some of these modules if there is memory for their activations.
        info: 0.17 of 1 ms, 0 to 0.31
        simulated, if nothing were computed again
        * stepscope.module: net × 1, 0.17 ms, backward net
        """,
    ),
    "indexing": Case(
        "index_backward",
        repeated(
            f"main | 10 50 | aten::index | seq=5\nmain | 100 300 | {NODE} IndexBackward0 | seq=5 fwd=1\n"
            "main | 105 290 | IndexBackward0 | seq=5 fwd=1\nmain | 400 410 | aten::mm"
        ),
        """
        The backward pass of indexing (tensor[indices]) takes 0.185 ms per step.
        -> To index one dimension use torch.index_select or, for rows, F.embedding.
        critical: 0.28 of 1 ms, 0 to 0.28
        at most the time of the indexing and its gradient
        * IndexBackward0 × 1, 0.185 ms, backward
        """,
    ),
    "a mask, whose gradient is taken at the positions that `nonzero` finds": Case(
        "index_backward",
        repeated(
            f"main | 10 50 | aten::index | seq=5\nmain | 100 300 | {NODE} IndexBackward0 | seq=5 fwd=1\n"
            "main | 105 290 | IndexBackward0 | seq=5 fwd=1\nmain | 110 280 | aten::_index_put_impl_\n"
            "main | 120 130 | aten::nonzero"
        ),
    ),
    "an exposed collective": Case(
        "exposed_communication",
        repeated("main | 10 100 | aten::linear\ngloo | 200 600 | gloo:all_reduce\nmain | 590 700 | aten::mm"),
        """
        Communication is exposed for 0.39 ms of the step (39%).
        Another 0.01 ms overlaps with computation.
        -> Overlap collectives with other work, send less data (16 bits), and check whether one
        rank is late.
        critical: 0.39 of 1 ms, 0 to 0.39
        at most the exposed time
        * gloo:all_reduce × 1, 0.4 ms, other
        """,
    ),
}

LIMITS = {
    "calls of 5 % of the step": Limit("forward_without_backward", calls(us=1590), calls(us=1610)),
    "passes of 5 % of the step": Limit(
        "repeated_backward", repeated(LOSSES.format(end=520), 2790), repeated(LOSSES.format(end=520), 2810)
    ),
    "exchanges of 5 % of the step": Limit("exchange_per_pass", exchanges(us=1200), exchanges(193, us=1200)),
    "free work of 10 % of the step": Limit(
        "work_without_gradient", repeated(FREE.format(end=110)), repeated(FREE.format(end=109.9))
    ),
    "checkpoints of 5 % of the step": Limit(
        "recomputation", repeated(RECOMPUTED.format(end=360)), repeated(RECOMPUTED.format(end=359.9))
    ),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)


def evaluating(us: float, name: str = "evaluate", inner: str = "aten::mm", more: str = "") -> str:
    return repeated(
        f"main | 10 {10 + us} | train.py(9): {name} | cat=python\nmain | 12 {5 + us} | {inner}\n{more}"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (evaluating(200), 1),
        (evaluating(199.9), 0),
        (evaluating(500, "step"), 0),
        (evaluating(500, inner="aten::add"), 0),
        (evaluating(500, inner="aten::scaled_dot_product_attention"), 1),
        (evaluating(500, inner="stepscope.module: net"), 1),
        (
            evaluating(
                500,
                more=f"main | 20 30 | aten::mm | seq=3\nmain | 800 900 | {NODE} MmBackward0 | seq=3 fwd=1",
            ),
            0,
        ),
    ],
)
def test_an_evaluation_of_20_percent_of_the_step(text: str, number: int) -> None:
    assert len(alone("frequent_evaluation", text)) == number


def buckets(count: int, size: int, name: str = "gloo:all_reduce") -> str:
    """All-reduces of 20 us on a CPU in and after the backward pass, one of a module, and a range."""
    lines = ["main | 10 20 | aten::mm | seq=1", f"main | 100 105 | {NODE} MmBackward0 | seq=1 fwd=1"]
    lines += [f"gloo | {110 + 25 * n} {130 + 25 * n} | {name} | bytes={size + n % 2}" for n in range(count)]
    lines += [
        "main | 5 60 | stepscope.module: net",
        "main | 30 50 | gloo:all_reduce | cat=communication bytes=99",
    ]
    lines += [
        "main | 600 601 | all_reduce | cat=annotation bytes=99",
        "main | 950 960 | Optimizer.step#SGD.step",
    ]
    return repeated("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (buckets(16, 1000), 1),
        (buckets(15, 1000), 0),
        (buckets(17, (1 << 20) - 1), 1),
        (buckets(17, 1 << 20), 0),
        (buckets(20, 1000, "gloo:reduce_scatter"), 0),
    ],
)
def test_16_collectives_of_less_than_1_mib(text: str, number: int) -> None:
    assert len(alone("small_buckets", text)) == number


def sampled_functions(*places: StagePlace, text: str = TRAINING, framework: str = "") -> list[Finding]:
    """What `slow_function` says where samples of the loop saw some functions."""
    context = RuleContext(annotate(drawn_trace(repeated(text, 10_000), framework=framework)))
    vars(context.measures)["summary"] = replace(context.measures.summary, places=list(places))
    return apply_rules(context, [BY_NAME["slow_function"]])


def place(
    share: float, function: str = "log", stage: str = "other", samples: int = 50, error: float = 0.0
) -> StagePlace:
    called = ("main (/me/train.py:64)",)
    return StagePlace(stage, function, "/me/train.py", 7, 10 * share, share, 0.0, samples, 10 * error, called)


def test_a_function_that_samples_saw() -> None:
    assert told(sampled_functions(place(0.2, error=0.05), place(0.3, "next_batch"))) == SAMPLED


SAMPLED = """
next_batch takes about 3 ms per step (30%).
It runs outside of forward, backward and the optimizer, in me/train.py:7, called in line
64.
-> Keep what it draws from in preallocated tensors, one for each field.
critical: 3 of 10 ms, 1.5 to 3
at most this time, by samples of the loop
* next_batch × 1, 3 ms, other /me/train.py:7 in next_batch
log takes about 2 ms per step (20%).
It runs outside of forward, backward and the optimizer, in me/train.py:7, called in line
64.
-> Replace loops over elements by operators on whole tensors, or do it every N steps.
critical: 2 of 10 ms, 0.75 to 2.5
at most this time, by samples of the loop
* log × 1, 2 ms, other /me/train.py:7 in log
""".strip()


@pytest.mark.parametrize(
    ("places", "text", "number"),
    [
        ([place(0.1)], TRAINING, 1),
        ([place(0.0999)], TRAINING, 0),
        ([place(0.2, error=0.1)], TRAINING, 1),
        ([place(0.2, error=0.1001)], TRAINING, 0),
        ([place(0.9, stage="forward")], TRAINING, 0),
        ([place(0.9, samples=0)], TRAINING, 0),
        ([place(0.9, "<module>")], TRAINING, 0),
        ([place(0.09), place(0.9, "<module>"), place(0.2, samples=0), place(0.2)], TRAINING, 1),
        ([place(0.9)], "main | 10 20 | aten::mm", 0),  # nothing trains
        ([place(0.2)], TRAINING + "main | 2000 3000 | dynamo_timed", 1),  # half of it compiles
        ([place(0.2)], TRAINING + "main | 2000 3001 | dynamo_timed", 0),
        ([place(0.2), place(0.3)], TRAINING + "main | 2000 3001 | dynamo_timed", 1),
    ],
)
def test_functions_of_10_percent_of_the_step(places: list[StagePlace], text: str, number: int) -> None:
    assert len(sampled_functions(*places, text=text)) == number


WORKS = "\nmain | 1 2 | cudaLaunchKernel | corr=1\nstream 7 | 3 9 | sgemm | corr=1"
OF_PYTORCH = {"repeated_backward": "two losses", "recomputation": "a forward pass again"}


@pytest.mark.parametrize("rule", OF_PYTORCH)
def test_what_only_pytorch_has(rule: str) -> None:
    text = CASES[OF_PYTORCH[rule]].trace
    assert len(alone(rule, text)) == 1
    assert alone(rule, text, framework="jax") == []


def test_what_trains_nothing_counts_on_a_cpu_of_pytorch_that_trains() -> None:
    text = repeated(FREE.format(end=200))
    assert len(alone("work_without_gradient", text)) == 1
    assert alone("work_without_gradient", text + WORKS) == []
    assert alone("work_without_gradient", text, framework="jax") == []
    sampled = sampled_functions(place(0.2), text=TRAINING + WORKS.replace("corr=1", "corr=9"))
    assert sampled == []


@pytest.mark.parametrize(
    ("each_us", "pause_us", "first"),
    [(19, 0, "Replace loops"), (20, 0, "Compute once"), (20, 30, "Replace loops")],
)
def test_a_function_of_large_operators_is_no_loop_over_elements(
    each_us: int, pause_us: int, first: str
) -> None:
    """A kernel matrix by some `aten::exp`, from 3 to 9 of 10 ms, half of that by small ones or by Python."""
    starts = range(3000, 9000, each_us + pause_us)
    text = TRAINING + "\n".join(f"main | {at} {at + each_us} | aten::exp" for at in starts)
    [finding] = sampled_functions(place(0.6, "gram"), text=text)
    assert finding.advice.startswith(first)


def test_a_slow_function_of_jax_goes_under_jit() -> None:
    [finding] = sampled_functions(place(0.6), framework="jax")
    assert finding.advice.startswith("Put loops over elements under jax.jit")
