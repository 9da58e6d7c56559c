"""The page with its data in one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import pickle
import re
import sys
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from serving import STEP, ask, collected, opened

import stepscope
from stepscope.errors import ChangeError, ServeError, TraceError
from stepscope.faces.page import bundle
from stepscope.faces.page.app import Failure
from stepscope.faces.page.export_answers import report_of, request_key, tables
from stepscope.faces.page.open_files import Traces
from stepscope.faces.page.single_file import Archive, add_contexts, add_step, project_files, single_file
from stepscope.faces.page.step_answers import details_of_levels, step_of_levels
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat
from stepscope.trace.trace import Trace

sys.path.append(str(Path(__file__).parents[2] / "models/memory"))
from model_allocator import ModelAllocator, frame

pytestmark = pytest.mark.usefixtures("built_page")


@pytest.fixture
def trace() -> TraceView:
    return opened()


def told(html: str) -> dict[str, Any]:
    """The data in a file."""
    (data,) = re.findall(
        r'<script type="application/octet-stream" id="stepscope-data">([A-Za-z0-9+/=]+)</script>', html
    )
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return found


def written(trace: TraceView, **options: Any) -> dict[str, Any]:
    return told(single_file(report_of(trace, None, None, []), **options))


def test_every_answer_is_the_servers(trace: TraceView) -> None:
    answers = written(trace)["answers"]
    openings = trace.timeline.open_all("s1.0")
    step = step_of_levels(trace, "s1.0", openings)
    details = details_of_levels(trace, "s1.0", openings)
    assert answers["step?path=s1.0"] == msgspec.to_builtins(step)
    assert answers["step_details?path=s1.0"] == msgspec.to_builtins(details)
    assert answers["kernels"] == ask(trace, "kernels")
    assert answers["overview?rank=0&step=2"] == ask(trace, "overview", step=2)
    assert answers["trace?path=s1.0"] == ask(trace, "trace", path="s1.0")


def test_collectives_are_in_the_file_of_a_trace_that_has_any(trace: TraceView) -> None:
    assert "collectives" not in written(trace)["answers"]
    several = opened(STEP + "    comm 8 | 62 70 | ncclDevKernel_AllReduce | corr=2\n")
    answers = written(several)["answers"]
    assert answers["collectives"] == ask(several, "collectives")
    assert answers["collectives?rank=0&step=1"] == ask(several, "collectives", step=1)
    assert answers["overview"]["has"]["communication"]


def ranks_of_a_job(*lengths: int, more: str = "") -> TraceView:
    """A trace of several ranks, each with two steps of a length of its own, µs.

    `more` is a further event in each step, from `at` to `end`.
    """
    ranks = []
    for rank, length in enumerate(lengths):
        steps = "".join(
            f"main | {at} {at + length} | ProfilerStep#{step}\nmain | {at} {at + 50} | aten::mm\n"
            + more.format(at=at + 60, end=at + length)
            for step, at in ((1, 0), (2, length))
        )
        ranks.append(annotate(drawn_trace(steps, ranks=(rank,), world_size=len(lengths))))
    return TraceView(concat(ranks))


def test_any_two_ranks_are_compared_and_drawn() -> None:
    job = ranks_of_a_job(100, 140, 120)
    answers = written(job)["answers"]
    for rank, against in permutations(range(3), 2):
        key = request_key("diff", rank=str(rank), against_rank=str(against))
        assert answers[key] == ask(job, "diff", rank=rank, against_rank=against)
    first, step = (answers["overview"][name] for name in ("rank", "start"))
    shown = {"rank": first, "step": int(step[1:].split(".")[0])}
    for other in {0, 1, 2} - {first}:
        query = {**shown, "against_rank": other}
        assert answers[request_key("pair", **{key: str(value) for key, value in query.items()})] == ask(
            job, "pair", **query
        )


def test_comparisons_that_have_no_room_are_told() -> None:
    found = written(ranks_of_a_job(*range(100, 112)))
    pairs = [key for key in found["answers"] if key.startswith("diff?")]
    assert len(pairs) == 56
    assert "76 of 132 comparisons of two ranks" in found["left_out"]
    first = found["answers"]["overview"]["rank"]
    assert all(f"rank={first}" in pair for pair in pairs[:22])


def test_one_rank_is_compared_with_nothing(trace: TraceView) -> None:
    found = written(trace)
    assert not any(key.startswith(("diff", "pair")) for key in found["answers"])
    assert not any("comparison" in text for text in found["left_out"])


def test_another_trace_is_compared_with_each_of_its_ranks_and_drawn() -> None:
    before = ranks_of_a_job(90, 110)
    now = TraceView(ranks_of_a_job(130).trace, {"before": before.trace}.__getitem__)
    report = replace(report_of(now, None, None, []), compared={"before": before})
    found = told(single_file(report))
    answers, (own, other) = found["answers"], found["traces"]["traces"]
    usual = answers["diff?against=before&rank=0"]
    assert usual == ask(now, "diff", against="before", rank=0)
    for rank in range(2):
        key = f"diff?against=before&against_rank={rank}&rank=0"
        assert answers[key] == ask(now, "diff", against="before", against_rank=rank, rank=0)
    shown = {"rank": 0, "step": 1}
    assert answers["pair?against=before&rank=0&step=1"] == ask(now, "pair", against="before", **shown)
    graph = answers["contexts?against=before&by=cpu&rank=0"]
    assert graph["boxes"] == ask(now, "contexts", against="before", by="cpu", rank=0)["boxes"]
    assert (own["state"], other["state"], other["id"]) == ("ready", "compared", "before")


def test_collectives_of_several_ranks_are_there_by_rank() -> None:
    job = ranks_of_a_job(100, 140)
    assert "arrivals" not in written(job)["answers"]
    job = ranks_of_a_job(100, 140, more="main | {at} {end} | gloo:all_reduce\n")
    answers = written(job)["answers"]
    assert answers["arrivals"] == ask(job, "arrivals", rank=0)
    assert answers["arrivals?step=2"] == ask(job, "arrivals", rank=0, step=2)
    assert [row["last_rank"] for row in answers["arrivals"]["rows"]] == [0]


def test_flame_graphs_by_the_usual_measures_and_both_ways_up(trace: TraceView) -> None:
    answers = written(trace)["answers"]
    for query in ({}, {"by": "cpu"}, {"by": "device", "up": "1"}):
        graph = answers[request_key("contexts", rank="0", **query)]
        assert graph["boxes"] == ask(trace, "contexts", rank=0, **query)["boxes"]
        assert {one["name"] for one in graph["measures"]} == {"cpu", "device"}
        assert request_key("context_findings", rank="0", **query) in answers


def test_the_slowest_step_is_told_and_the_others_do_not_open(trace: TraceView) -> None:
    found = written(trace)
    assert found["answers"]["overview"]["start"] == "s1.0"
    steps = found["answers"]["level"]["level"]["operations"]
    assert (steps["id"], steps["opens"]) == (["s1.0", "s2.0"], [1, 0])
    assert "the timelines of 1 other step" in found["left_out"]


def test_a_file_begins_with_a_usual_step() -> None:
    """The first one warms up; medians are compared, so a file that compares begins at the one near them."""
    ends = [0, 1000, 1100, 1240, 1360]
    run = opened("\n".join(f"main | {a} {b} | ProfilerStep#{n}" for n, (a, b) in enumerate(pairwise(ends))))
    assert report_of(run, None, None, []).steps[0] == run.start == "s2.0"
    assert report_of(run, None, None, [], {"before": run}).steps[0] == "s3.0"


def test_another_step_can_be_chosen(trace: TraceView) -> None:
    found = told(single_file(report_of(trace, None, 2, [])))["answers"]
    assert found["overview"]["start"] == "s2.0"
    assert found["overview"]["facts"]["steps"]["numbers"] == [2]
    with pytest.raises(TraceError, match="rank 0 has no step 7; it has 1, 2"):
        report_of(trace, None, 7, [])
    with pytest.raises(TraceError, match="there is no rank 3"):
        report_of(trace, 3, None, [])


def test_the_first_level_with_all_ranks_is_there_too(trace: TraceView) -> None:
    answers = written(trace)["answers"]
    assert answers["level?every=1"]["level"]["path"] == ""


def test_what_is_chosen_in_a_pane_is_answered(trace: TraceView) -> None:
    answers = written(trace)["answers"]
    chosen = answers["select?kernel=winograd"]
    assert chosen["kernels"] == ["winograd"]
    assert chosen["target"]["level"].startswith("s1.0/")


def test_what_ifs_are_there_that_were_asked_for(trace: TraceView) -> None:
    half = "scale:select=stage=forward,factor=0.5"
    report = report_of(trace, None, None, [])
    answers = told(single_file(replace(report, whatifs=[half])))["answers"]
    for changes in ("", half):
        key = request_key("whatif", changes=changes)
        assert answers[key] == json.loads(json.dumps(ask(trace, "whatif", changes=changes)))
    assert not any(key.startswith("whatif") for key in told(single_file(report))["answers"])
    with pytest.raises(ChangeError):
        single_file(replace(report, whatifs=["no_such_change"]))


def test_the_file_is_whole_in_itself(trace: TraceView) -> None:
    html = single_file(report_of(trace, None, None, []))
    assert "src=" not in html
    assert "href=" not in html
    assert "<style>body { color: red }</style>" in html
    # The script's own text cannot end its element, or begin a comment.
    assert r'document.title = "\x3c/script>\x3c!-- built";' in html
    assert html.count("</script>") == 2
    # Nothing but that script may run, and nothing may be asked for.
    script = re.search(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in html
    assert "default-src 'none'" in html


def nested(operations: int) -> TraceView:
    """A step of operators in operators, with names that compress badly."""
    chance = Random(1)
    lines = [
        f"main | {9 * n + 2 + part} {9 * n + 10 - part} | {chance.randbytes(4).hex()}"
        for n in range(operations)
        for part in range(2)
    ]
    return opened("\n".join([f"main | 0 {9 * operations + 20} | ProfilerStep#1", *lines]))


def test_it_grows_to_no_more_than_it_may() -> None:
    report = report_of(nested(150), None, None, [])
    largest = len(bundle.page_in_one("")) + 160_000
    small = single_file(report, largest)
    assert len(small) <= largest
    assert any("small operations of step 1" in phrase for phrase in told(small)["left_out"])
    assert not any("small operations" in phrase for phrase in told(single_file(report))["left_out"])


def test_levels_inside_the_costliest_operations_go_first() -> None:
    """The more room there is, the more levels; those around a level are always there."""
    report = report_of(nested(400), None, None, [])
    counts = []
    for room in (80_000, *range(100_000, 130_000, 5_000), 500_000):
        archive = Archive(room)
        left_out = add_step(archive, report, "s1.0")
        data = archive.close(left_out, Traces(None, []))
        step = json.loads(gzip.decompress(data))["answers"].get("step?path=s1.0")
        counts.append(len(step["levels"]["opened"]) if step else 0)
        assert len(data) <= room
        some_left_out = any(one.startswith("what is inside ") for one in left_out)
        assert some_left_out == (counts[-1] < len(report.view.timeline.open_all("s1.0")))
    assert counts == sorted(counts)
    assert len(set(counts)) > 2


def test_a_trace_whose_tables_do_not_fit_is_refused(trace: TraceView) -> None:
    with pytest.raises(ServeError, match="the tables of the trace exceed"):
        written(trace, max_bytes=10_000)


def test_answers_are_written_all_or_none() -> None:
    archive, noise = Archive(room=80_000), Random(1).randbytes(50_000).hex()
    small, large = Failure("x"), Failure(noise)
    assert archive.add(("a", small))
    assert not archive.add(("b", small), ("c", large))
    assert not archive.add(("b", small), reserve=20_000)
    found = json.loads(gzip.decompress(archive.close(["b"], Traces(None, []))))
    assert found == {
        "answers": {"a": {"error": "x"}},
        "left_out": ["b"],
        "traces": {"perfetto": None, "traces": [], "whole": ""},
    }


@pytest.mark.parametrize("fixed", [0, 20_000, 60_000])
def test_the_largest_answer_with_room_for_it_is_written(fixed: int) -> None:
    """Also where most of the room goes to what answers of all sizes have."""
    random = Random(1)
    noise = random.randbytes(fixed).hex()
    sizes: list[int] = []

    def answer(size: int) -> tuple[int, Failure]:
        sizes.append(size)
        return size, Failure(noise + "".join(random.randbytes(25).hex() for _ in range(size)))

    archive = Archive(room=150_000)
    found = archive.add_largest("a", answer, 400, 94_488, reserve=0)
    compressed = 1.15  # hexadecimal digits of random bytes, of their bytes
    largest = (150_000 - (1 << 16) - compressed * fixed) / (compressed * 25)
    assert largest / 3 < found <= largest * 1.05
    assert len(archive.close([], Traces(None, []))) <= 150_000
    assert sum(sizes) < 4 * found


def test_source_text_is_there_where_it_was_agreed_to(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("secret = 1\n")
    model = {"name": "net", "class": "Net", "call_file": str(file), "call_line": 1}
    trace = opened("main | 0 9 | ProfilerStep#1\nmain | 1 5 | stepscope.module:", model)
    key = request_key("source", file=str(file))
    bare = told(single_file(report_of(trace, None, None, [])))
    assert bare["answers"][key]["text"] is None
    assert bare["answers"][key]["reason"] == "this report does not include its text"
    assert "the text of the source files" in bare["left_out"]
    agreed = told(single_file(report_of(trace, None, None, [str(file)])))
    assert agreed["answers"][key]["text"] == "secret = 1\n"
    assert "the text of the source files" not in agreed["left_out"]


def test_hostile_names_cannot_leave_their_element() -> None:
    hostile = "</script><script>alert(1)</script><!--"
    html = single_file(report_of(opened(f"{STEP}\nmain | 92 95 | {hostile}"), None, None, []))
    assert "alert" not in html
    assert hostile in told(html)["answers"]["step?path=s1.0"]["names"]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ({}, "level"),
        ({"path": "s5.0/t3", "every": "1"}, "level?every=1&path=s5.0%2Ft3"),
        ({"path": "", "every": ""}, "level"),
        ({"kernel": "f<A>(int, b&)!~*'"}, "level?kernel=f%3CA%3E(int%2C%20b%26)!~*'"),
        ({"file": "/ü.py"}, "level?file=%2F%C3%BC.py"),
    ],
)
def test_a_key_is_what_the_pages_script_makes_of_the_question(query: dict[str, str], key: str) -> None:
    """As encodeURIComponent of JavaScript writes it."""
    assert request_key("level", **query) == key


def test_a_page_that_is_not_built_says_how_to_build_it(trace: TraceView, built_page: Path) -> None:
    (built_page / "index.html").unlink()
    with pytest.raises(ServeError, match="npm --prefix web ci && npm --prefix web run build"):
        written(trace)


def test_contexts_of_a_whole_run_are_flame_graphs_findings_and_source(tmp_path: Path) -> None:
    """By all measures, and not of a rank or a step, as the page asks where there is no step."""
    run = collected(tmp_path, Trace({}))
    assert project_files(run) == []  # no folder is given
    run.source_root = tmp_path
    del run.sources
    found = told(single_file(report_of(run, None, None, project_files(run))))
    answers = found["answers"]
    assert answers["overview"] == ask(run, "overview")
    assert answers["findings"] == ask(run, "findings")
    measures = {one["name"] for one in ask(run, "contexts")["measures"]}
    assert {"cpu", "device", "calls"} <= measures
    for query in ({}, {"up": "1"}, *({"by": by, "up": up} for by in measures for up in ("", "1"))):
        assert answers[request_key("contexts", **query)] == ask(run, "contexts", **query)
        assert request_key("context_findings", **query) in answers
    (file,) = answers["sources"]["files"]
    assert "step()" in answers[request_key("source", file=file["file"])]["text"]
    assert found["left_out"] == []


def test_the_text_of_source_is_left_out_of_contexts_too(tmp_path: Path) -> None:
    run = collected(tmp_path, Trace({}))
    found = told(single_file(report_of(run, None, None, [])))
    assert found["left_out"] == ["the text of the source files"]
    assert "step()" not in json.dumps(found)


def test_large_trees_of_contexts_are_told_as_far_as_there_is_room(tmp_path: Path) -> None:
    run, asked = collected(tmp_path, Trace({})), []

    def add(*answers: tuple[str, dict[str, Any]]) -> bool:
        asked.append(len(answers))
        return len(asked) > 1

    report = report_of(run, None, None, [])
    assert add_contexts(add, report) == []  # the tree has fewer contexts than that
    assert len(asked) == 2
    assert add_contexts(lambda *_: False, report) == ["the flame graphs"]


def test_a_step_of_contexts_alone_or_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the file has the contexts of a whole run"):
        report_of(collected(tmp_path, Trace({})), None, 3, [])
    with pytest.raises(TraceError, match="expected at least one recorded step, found none"):
        report_of(opened(""), None, None, [])


def test_memory_alone_is_its_areas_and_what_lives_at_some_moments(tmp_path: Path) -> None:
    allocator = ModelAllocator()
    held = [allocator.alloc(1000, [frame("/home/me/model.py", 3)]) for _ in range(5)]
    allocator.free(held[0])
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    memory = TraceView(stepscope.open(path, cache=False))

    found = told(single_file(report_of(memory, None, None, [])))

    answers = found["answers"]
    assert answers["overview"] == ask(memory, "overview")
    assert answers["memory"] == ask(memory, "memory")
    (device,) = (one["id"] for one in answers["memory"]["devices"])
    assert answers[request_key("memory_moment", device=device)] == ask(memory, "memory_moment", device=device)
    coarsest = {"device": device, "by": "line", "zoom": "0", "tile": "0"}
    assert answers[request_key("memory_tile", **coarsest)] == ask(memory, "memory_tile", **coarsest)
    assert found["left_out"] == ["what lives at most moments of the memory"]


@pytest.mark.parametrize("sources", [[], ["train.py"]])
def test_a_patch_quotes_source_and_is_left_out_with_it(sources: list[str]) -> None:
    call = "torch.optim.AdamW(weights)"
    created = {
        "what": "optimizer",
        "class": "AdamW",
        "file": "train.py",
        "line": 3,
        "call": call,
        "source": f"optimizer = {call}",
    }
    update = [f"main | {100 + 5 * one} {104 + 5 * one} | aten::mul_" for one in range(100)]
    step = ["main | 0 1000 | ProfilerStep#0", "main | 90 900 | Optimizer.step#AdamW.step", *update]
    run = opened("\n".join(step), capture={"created": [created]})
    (served,) = (one for one in ask(run, "findings")["findings"] if one["patch"])
    assert served["patch"]["after"] == "optimizer = torch.optim.AdamW(weights, fused=True)"
    found = dict(tables(report_of(run, None, None, sources)))["findings"].findings
    assert [bool(one.patch) for one in found if one.rule == "optimizer_loop"] == [bool(sources)]


def test_the_step_that_a_file_opens_has_tables_of_its_own() -> None:
    """The slowest one, after the twenty steps that are told of each."""
    ends = [*range(0, 2500, 100), 2600]
    run = opened("\n".join(f"main | {a} {b} | ProfilerStep#{n}" for n, (a, b) in enumerate(pairwise(ends))))
    answers = written(run)["answers"]
    assert answers["overview"]["start"] == "s24.0"
    assert answers[request_key("overview", rank="0", step="24")]["facts"]["steps"]["numbers"] == [24]
