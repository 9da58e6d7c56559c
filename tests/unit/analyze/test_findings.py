"""Findings: their severity, JSON, tables; and the list of rules."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from drawn_findings import V100, findings
from msgspec.structs import replace
from rich.console import Console

from stepscope.analyze import (
    RULES,
    Finding,
    Gain,
    Place,
    Rule,
    RuleContext,
    apply_rules,
    load_rules,
    with_findings,
)
from stepscope.analyze.analysis import Analysis, Heading, group_findings
from stepscope.analyze.finding import Patch, callers
from stepscope.analyze.findings_text import gain_text, print_findings
from stepscope.errors import RuleError, TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

RULE_FILES = Path(__file__).parents[3] / "src" / "stepscope" / "analyze" / "rules"
LOADING = """
    main | 0 100 | ProfilerStep#0
    main | 10 70 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 70 99 | aten::mm
"""
PLACE = Place("aten::mm", "forward", "", "", None, "", 1.0, 1.0, (2,))


def finding(ms: float) -> Finding:
    return Finding(
        rule="rule", what="What.", advice="Do.", evidence=(PLACE,), gain=Gain(ms, "at most"), step_ms=100.0
    )


@pytest.mark.parametrize(
    ("ms", "severity"), [(1, "info"), (4.9, "info"), (5, "warning"), (19, "warning"), (20, "critical")]
)
def test_severity_follows_from_the_share_of_the_step(ms: float, severity: str) -> None:
    assert finding(ms).severity == severity


def test_the_worst_comes_first_and_less_than_a_hundredth_is_dropped() -> None:
    gains = [2.0, 0.9, 30.0]

    def three(context: RuleContext) -> list[Finding]:
        rows = context.search.find("aten::mm")
        return [
            context.finding("What.", "Do.", rows, context.gains.bound(ms / 1e3, "at most")) for ms in gains
        ]

    context = RuleContext(annotate(drawn_trace(LOADING)))
    found = apply_rules(context, [Rule(three)])
    assert [one.gain.ms for one in found] == [0.030, 0.002]
    assert {one.rule for one in found} == {"three"}


def test_gains_of_the_run_and_of_a_step_are_ordered_by_their_time() -> None:
    """Their shares are of different wholes."""

    def both(context: RuleContext) -> list[Finding]:
        of_step = finding(0.06)
        return [replace(of_step, of="run", gain=Gain(0.05), step_ms=0.06), replace(of_step, step_ms=0.1)]

    found = apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(both)])
    assert [one.of for one in found] == ["step", "run"]


def test_samples_of_a_line_and_a_finding_there_are_one() -> None:
    at_line = replace(PLACE, file="train.py", line=7)
    stall = replace(finding(40), evidence=(at_line,), cause="stall")
    sampled = replace(finding(30), evidence=(replace(at_line, events=()),), cause="sampled")
    elsewhere = replace(sampled, evidence=(replace(at_line, events=(), line=8),))
    groups = group_findings([stall, sampled, elsewhere])
    assert [(one.main, one.related) for one in groups] == [(stall, (sampled,)), (elsewhere, ())]


def test_no_finding_without_evidence() -> None:
    context = RuleContext(annotate(drawn_trace(LOADING)))
    with pytest.raises(ValueError, match="expected at least one event as evidence"):
        context.finding(
            "What.", "Do.", context.search.find("no such event"), context.gains.bound(1, "at most")
        )


def test_a_finding_in_words() -> None:
    place = replace(PLACE, name="autograd::engine::evaluate_function: MmBackward0")
    for high, shown in ((30.001, "30.00 ms, 30% of the step: why"), (40, "(30.00 to 40.00 ms)")):
        gain = Gain(30, "why", range_ms=(30, high))
        one = Finding(rule="rule", what="What.", advice="Do.", evidence=(place,), gain=gain, step_ms=100.0)
        out = io.StringIO()
        print_findings(Console(file=out, width=120), Analysis(Heading("trace", 1), (one,)))
        assert shown in out.getvalue()
        assert "  MmBackward0 × 1, 1.00 ms per step, forward" in out.getvalue()


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Gain(1.0), ""),
        (Gain(1.0, "why"), "why"),
        (Gain(1.0, "why", edit=0), "simulated, why"),
        (Gain(1.0, "why", ("scale:select=name=a,factor=0", "amp")), "why"),
        (Gain(1.0, "why", ("scale:select=name=a,factor=0",), edit=0), "simulated, why"),
        (Gain(1.0, "", ("amp", "pad_to_aligned")), "what-if amp and 1 more"),
        (Gain(1.0, "why", ("no_sync:name=a", "no_sync:name=b"), edit=3), "what-if no_sync, why"),
        (Gain(1.0, "", ("amp", "tf32", "sdpa"), edit=3), "what-if amp and 2 more"),
    ],
)
def test_the_basis_of_a_gain(gain: Gain, words: str) -> None:
    assert gain.words == words


@pytest.mark.parametrize(
    ("range_ms", "stated"),
    [
        (None, (0.0, 10.0)),
        ((9.0, 11.0), (9.0, 11.0)),
        ((9.99, 10.0), (0.0, 10.0)),  # narrower than 0.1 %
        ((9.989, 10.0), (9.989, 10.0)),
        ((999.0, 1000.0), (0.0, 10.0)),
        ((998.9, 1000.0), (998.9, 1000.0)),
        ((10.0, 10.0), (0.0, 10.0)),
        ((0.0, 0.0), (0.0, 10.0)),
    ],
)
def test_the_range_of_a_gain_as_shown(
    range_ms: tuple[float, float] | None, stated: tuple[float, float]
) -> None:
    assert Gain(10.0, range_ms=range_ms).stated_ms == stated


def test_gains_are_limited_scaled_and_compared() -> None:
    gain = Gain(10.0, "why", ("amp",), (8.0, 12.0), 3)
    assert gain.at_most(12.0) == gain
    assert gain.at_most(11.0).range_ms == (8.0, 11.0)
    half = gain.at_most(5.0)
    assert (half.ms, half.note, half.changes, half.range_ms, half.edit) == (
        5.0,
        "why",
        ("amp",),
        (5.0, 5.0),
        3,
    )
    assert Gain(10.0).at_most(5.0) == Gain(5.0)
    assert gain.scaled(1.5).range_ms == (12.0, 18.0)
    bound = gain.as_bound("at most")
    assert (bound.ms, bound.note, bound.range_ms, bound.changes) == (10.0, "at most", (0.0, 10.0), ("amp",))
    assert gain == replace(gain, edit=4)
    assert gain != replace(gain, changes=())
    assert gain != replace(gain, ms=11.0)
    assert gain != 10.0


@pytest.mark.parametrize(
    ("facts", "where", "code", "short"),
    [
        ({}, "", "", ""),
        ({"module": "a.b"}, "a.b", "", "a.b"),
        ({"file": "/x/y/z.py"}, "/x/y/z.py", "/x/y/z.py", "y/z.py"),
        ({"file": "/x/y/z.py", "line": 0}, "/x/y/z.py:0", "/x/y/z.py:0", "y/z.py:0"),
        ({"line": 3, "function": "f"}, "", "", ""),
        (
            {"file": "/x/y/z.py", "line": 3, "function": "f", "module": "a"},
            "a · /x/y/z.py:3 in f",
            "/x/y/z.py:3 in f",
            "y/z.py:3 in f",
        ),
    ],
)
def test_a_place_in_words(facts: dict[str, str], where: str, code: str, short: str) -> None:
    place = replace(Place("aten::mm", "forward", "", "", None, "", 1.0, 1.0), **facts)
    assert (place.where, place.code, place.short) == (where, code, short)


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ([], ""),
        (["f (/x/data.py:3)"], ", called in line 3"),
        (["f (/y/train.py:3)"], ", called in y/train.py:3"),
        (["f (/y/x (1)/train.py:3)"], ", called in x (1)/train.py:3"),
        (
            ["f (/x/data.py:3)", "g (/y/t (1).py:4)", "h (/y/t (1).py:5)"],
            ", called in line 3, from y/t (1).py:4, from line 5",
        ),
        ([f"f (/x/data.py:{n})" for n in range(3)], ", called in line 0, from line 1, from line 2"),
        ([f"f (/x/data.py:{n})" for n in range(5)], ", called in line 0, from line 1, from line 4"),
        (
            ["f (/x/data.py:3)", "g (/y/load.py:4)", "h (/y/train.py:5)", "k (/y/train.py:6)"],
            ", called in line 3, from y/load.py:4, from y/train.py:6",
        ),
        (
            [f"f (/site-packages/metrics/auc.py:{n})" for n in range(5)]
            + ["step (/y/train.py:7)", "run (/site-packages/loop.py:8)"],
            ", called in metrics/auc.py:0, from line 1, from y/train.py:7",
        ),
    ],
)
def test_the_lines_that_call_a_line(called: list[str], words: str) -> None:
    assert callers(called, "/x/data.py") == words


@pytest.mark.parametrize(
    ("ms", "facts", "share", "severity"),
    [
        (10, {}, 0.1, "warning"),
        (10, {"steady_ms": 50.0}, 0.2, "critical"),
        (10, {"step_ms": 0.0}, 0.0, "info"),
        (300, {}, 1.0, "critical"),
        (20, {"limit": "warning"}, 0.2, "warning"),
        (20, {"limit": "info"}, 0.2, "info"),
        (40, {"certain": 0.5}, 0.4, "critical"),
        (40, {"certain": 0.49}, 0.4, "warning"),
        (40, {"certain": 0.0}, 0.4, "info"),
    ],
)
def test_a_share_is_of_the_steady_step_and_severity_of_what_is_certain(
    ms: float, facts: dict[str, float], share: float, severity: str
) -> None:
    one = replace(finding(ms), **facts)
    assert (one.share, one.severity) == (pytest.approx(share), severity)


def test_a_finding_has_defaults_and_is_written_in_full() -> None:
    plain = Finding(what="W.", advice="A.", evidence=(), gain=Gain(1.0), step_ms=2.0)
    facts = (
        plain.rule,
        plain.rank,
        plain.cause,
        plain.limit,
        plain.steady_ms,
        plain.patch,
        plain.certain,
        plain.of,
    )
    assert facts == ("", 0, "", "critical", 0.0, None, 1.0, "step")
    place = replace(PLACE, events=tuple(range(1001)), contexts=(4,), called=("f (x.py:1)",))
    patch = Patch("train.py", 3, "a", "b")
    gain = Gain(30.0, "why", ("amp",), (20.0, 40.0), 1)
    whole = replace(
        finding(30),
        evidence=(place,),
        gain=gain,
        patch=patch,
        rank=2,
        cause="cause",
        of="run",
        steady_ms=60.0,
    )
    assert whole.to_json() == {
        "rule": "rule",
        "severity": "critical",
        "what": "What.",
        "advice": "Do.",
        "patch": {"file": "train.py", "line": 3, "before": "a", "after": "b"},
        "gain_ms": 30.0,
        "share": 0.5,
        "share_of": "run",
        "gain_by": "what-if amp, why",
        "range_ms": (20.0, 40.0),
        "changes": ("amp",),
        "rank": 2,
        "cause": "cause",
        "evidence": [
            {
                "name": "aten::mm",
                "stage": "forward",
                "module": "",
                "file": "",
                "line": None,
                "function": "",
                "count": 1.0,
                "ms": 1.0,
                "events": tuple(range(1000)),
                "contexts": (4,),
                "called": ("f (x.py:1)",),
            }
        ],
    }
    moved = whole.at_line("net.py", 9, "forward", ("main (net.py:1)",)).evidence[0]
    assert (moved.file, moved.line, moved.function, moved.called) == (
        "net.py",
        9,
        "forward",
        ("main (net.py:1)",),
    )
    assert whole.at_line("net.py", None, "").evidence[0].called == ()


def test_a_share_of_the_step_without_delays_says_so() -> None:
    delayed = replace(finding(30), step_ms=100.0, steady_ms=60.0)
    assert gain_text(delayed, "step").plain.startswith("saves up to 30.00 ms, 50% of the step without delays")
    assert "of the step:" in gain_text(replace(delayed, steady_ms=99.5), "step").plain


def test_findings_are_plain_json() -> None:
    facts = json.loads(json.dumps([one.to_json() for one in findings(LOADING)]))
    assert [one["rule"] for one in facts] == ["input_bound"]
    assert facts[0]["changes"] == ["dataloader"]
    assert facts[0]["gain_ms"] == pytest.approx(0.06)
    assert facts[0]["evidence"][0]["events"] == [1]


def test_findings_are_tables_of_the_trace() -> None:
    trace = annotate(drawn_trace(LOADING))
    found = with_findings(trace, apply_rules(RuleContext(trace), RULES))
    assert not len(trace["findings"])
    rows = found.query("""
        select rule, severity, gain_ns, changes, events.name
        from findings join evidence on evidence.finding = findings.id
        join events on events.id = evidence.event
    """).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (
            "input_bound",
            "critical",
            60000,
            "dataloader",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        )
    ]


def test_each_event_and_context_of_a_finding_is_a_row() -> None:
    places = (
        replace(PLACE, module="a", file="x.py", line=3, events=(4, 5), contexts=(6,)),
        replace(PLACE, events=(), contexts=(7,)),
    )
    one = replace(finding(30.0000004), evidence=places, gain=Gain(30.0000004, "why", ("amp", "tf32")), rank=1)
    trace, words = with_findings(Trace({}), [finding(10), one]), "what-if amp and 1 more, why"
    rows = [tuple(row.values()) for row in trace["findings"].rows()]
    assert rows == [
        (0, "rule", "warning", 0, "What.", "Do.", 10_000_000, pytest.approx(0.1), "at most", ""),
        (1, "rule", "critical", 1, "What.", "Do.", 30_000_000, pytest.approx(0.3), words, "amp tf32"),
    ]
    evidence = trace["evidence"]
    columns = zip(*(evidence[name].tolist() for name in ("finding", "event", "context", "line")), strict=True)
    assert list(columns) == [(0, 2, -1, -1), (1, 4, -1, 3), (1, 5, -1, 3), (1, -1, 6, 3), (1, -1, 7, -1)]
    assert list(evidence.text("module")) == ["", "a", "a", "a", ""]
    assert list(evidence.text("file")) == ["", "x.py", "x.py", "x.py", ""]
    assert not len(with_findings(Trace({}), [])["evidence"])


def test_a_step_without_a_defect_has_no_finding() -> None:
    assert (
        findings(
            """
        main     |  0 50  | ProfilerStep#0
        main     | 10 12  | aten::mm
        main     | 10 12  | cudaLaunchKernel | corr=1
        stream 7 | 14 900 | volta_fp16_s884gemm | corr=1
    """,
            devices=V100,
        )
        == []
    )


def test_the_first_step_is_left_out_where_it_warms_up() -> None:
    trace = annotate(
        drawn_trace("""
        main |    0 5000 | ProfilerStep#0
        main |   10 4900 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main | 5000 5100 | ProfilerStep#1
        main | 5001 5099 | aten::mm
        main | 5100 5200 | ProfilerStep#2
        main | 5101 5199 | aten::mm
    """)
    )
    assert RuleContext(trace).measures.step_ms == pytest.approx(0.1)
    assert apply_rules(RuleContext(trace), RULES) == []


def test_the_report_and_what_ifs_leave_out_the_same_steps_and_no_other() -> None:
    """The second step still warms up."""
    begins = [0, 1000, 1400, 1500, 1600, 1700]
    trace = annotate(
        drawn_trace(
            "\n".join(
                f"main | {begin} {end} | ProfilerStep#{step}"
                for step, (begin, end) in enumerate(pairwise([*begins, 1800]))
            )
        )
    )
    context = RuleContext(trace)
    assert context.steps["step"].tolist() == [2, 3, 4, 5]
    assert context.measures.summary.steps.numbers == summarize(trace).steps.numbers == [2, 3, 4, 5]
    assert context.gains.graph.window.steps == (2, 3, 4, 5)


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(TraceError, match="at least one recorded step"):
        RuleContext(Trace({}))


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceError, match="there is no rank 5; the trace has 0"):
        RuleContext(annotate(drawn_trace(LOADING)), rank=5)


# -- the list of rules


def test_every_rule_has_a_file_of_its_own_and_says_when_it_is_silent() -> None:
    files = {path.stem for path in RULE_FILES.glob("*.py")} - {"__init__"}
    assert files == {rule.name for rule in RULES}
    for rule in RULES:
        assert rule.summary.endswith("."), rule.name
        assert rule.silent.startswith("Silent"), rule.name


DECLARED = """
    allocator_churn: explains host synchronization
    anomaly_detection:
    broadcast_buffers: of communication
    checkpoint_in_loop: explains host synchronization
    copy_fusions:
    cpu_latency: of launches, explains host launch
    ddp_unused_parameters: of communication
    element_loop: of experts
    exchange_per_pass: of communication, explains communication
    expert_loop: of experts, explains host launch
    exposed_communication: of communication, explains communication, notice
    first_use: notice
    forward_backward:
    forward_without_backward:
    fp32_matmul:
    fp64_matmul:
    frequent_evaluation: explains host synchronization
    fsdp_prefetch: of communication, explains communication
    host_callbacks: explains synchronization host
    hotspot:
    idle_device: fallback
    index_backward:
    input_bound: of input, explains data
    kernel_fusion: of elementwise
    layout_conversions:
    low_utilization: of products
    many_embeddings: of forward_backward
    missing_donation: notice
    missing_kv_cache: explains host launch
    odd_shapes:
    one_hot_product:
    optimizer_loop: of optimizer, explains host launch
    padding:
    pageable_copies: explains synchronization
    pipeline_bubble: of communication, explains communication
    python_stall: of python, explains host
    recompilation: explains host
    recomputation:
    recurrent_loop: explains host launch
    repeated_backward:
    repeated_module: of experts
    restarted_workers: of input, explains data
    rollouts:
    slow_convolution:
    slow_fallback: of products
    slow_function: of work_between_stages, explains host cpu
    small_batch: of launches, explains host launch
    small_buckets: of communication
    small_programs: of launches, explains host launch
    stall_reasons:
    straggling_rank: of communication, explains communication
    synchronizing_calls: of synchronization, explains synchronization
    too_many_workers: of input, explains data
    unfused_attention: of attention
    unused_gradients:
    work_between_stages:
    work_without_gradient:
    zero_grad_memset:
"""


def test_what_each_rule_declares() -> None:
    declared = []
    for rule in RULES:
        cause, explains = rule.cause and f" of {rule.cause}", " ".join(rule.explains)
        parts = (
            cause,
            explains and f" explains {explains}",
            " fallback" * rule.fallback,
            " notice" * rule.notice,
        )
        declared.append(f"{rule.name}:{','.join(filter(None, parts))}")
    assert declared == [line.strip() for line in DECLARED.strip().splitlines()]


def test_what_a_rule_is_by_its_function() -> None:
    def silent(context: RuleContext) -> list[Finding]:
        """First line.

        More.

        Silent here,
        and there.
        """
        return []

    rule = Rule(silent)
    assert (rule.name, rule.summary, rule.silent) == ("silent", "First line.", "Silent here, and there.")
    assert (rule.cause, rule.explains, rule.fallback, rule.notice) == ("", (), False, False)
    bare = Rule(lambda context: [])
    assert (bare.summary, bare.silent) == ("", "")


MINE = '''
from stepscope.analyze import Rule

def many_products(context):
    """Many matrix products."""
    rows = context.search.find(r"^aten::mm$")
    if len(rows):
        gain = context.gains.bound(context.measures.ms(rows), "at most")
        yield context.finding("Many.", "Fewer.", rows, gain)

RULES = [Rule(many_products)]
'''


def test_rules_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    context = RuleContext(annotate(drawn_trace(LOADING)))
    assert [one.rule for one in apply_rules(context, load_rules(file))] == ["many_products"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "cannot load rules: SyntaxError"),
        ("RULES = 3", "expected a list RULES of stepscope.analyze.Rule, found int"),
        ("", "found NoneType"),
        ("raise SystemExit('no')", "cannot load rules: SystemExit: no"),
        ("raise GeneratorExit", "cannot load rules: GeneratorExit"),
        (
            "class Stop(KeyboardInterrupt): ...\nraise Stop('two\\nlines')",
            "cannot load rules: Stop: two lines",
        ),
    ],
)
def test_a_file_without_rules_fails_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(RuleError, match=message) as error:
        load_rules(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit("x"), GeneratorExit("x"), BaseException("x")])
def test_a_rule_that_fails_is_named(error: BaseException) -> None:
    def broken(context: RuleContext) -> list[Finding]:
        raise error

    with pytest.raises(RuleError, match=rf"rule broken failed on .*{type(error).__name__}: '?x"):
        apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(broken)])


def test_control_c_ends_a_rule() -> None:
    def interrupted(context: RuleContext) -> list[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(interrupted)])


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/workspace/traces/train.py", "traces/train.py:23 in step"),
        ("C:\\Users\\me\\src\\train.py", "src/train.py:23 in step"),
        ("src/train.py", "src/train.py:23 in step"),
        ("train.py", "train.py:23 in step"),
        ("", "layer1"),
    ],
)
def test_a_sentence_shortens_the_path_of_a_file_or_names_the_module(file: str, short: str) -> None:
    place = Place("aten::mm", "forward", "layer1", file, 23, "step", 1.0, 1.0)
    assert place.short == short
