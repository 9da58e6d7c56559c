"""The tasks of somebody with a trace: the clicks to each answer, and whether the answer is true.

Answers are read as they are on screen and compared with the tables of the trace, not with what the
server tells the page.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Workbench
from conftest import single_file_of
from served_page import serving

import stepscope
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.models.whatif.ranking import graph_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.trace import Trace

_MODEL = "examples/resnet50.model.json"
_HITS = '.pane[data-pane="search"] tbody tr'
_UNITS = {"µs": 1e-3, "ms": 1.0, "s": 1e3}
_TIME = re.compile(r"([\d.]+)\s(µs|ms|s)\b")


@pytest.fixture(scope="module")
def trace(traces: Path) -> Trace:
    """The tables of the trace on screen, read without the server."""
    file = traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"
    return stepscope.open(file, model=_MODEL)


@pytest.fixture
def start(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    workbench.page.locator(".verdict").wait_for()
    assert workbench.clicks == 0
    return workbench


def text_of(bench: Workbench, selector: str) -> str:
    """The text of an element, with plain spaces."""
    return bench.page.locator(selector).first.inner_text().replace("\u202f", " ")


def times_in(text: str) -> list[float]:
    """The times in a text, ms.

    Example:
        >>> times_in("took 1.5 ms, not 20 µs")
        [1.5, 0.02]
    """
    return [float(number) * _UNITS[unit] for number, unit in _TIME.findall(text)]


def rows_of(trace: Trace, sql: str) -> list[dict[str, Any]]:
    return trace.query(sql).to_pylist()


def step_lengths(trace: Trace) -> list[float]:
    """How long each step takes, ms."""
    rows = rows_of(trace, "select (window_end_ns - window_start_ns) / 1e6 as ms from steps")
    return [row["ms"] for row in rows]


def test_the_bottleneck_is_on_screen_before_the_first_click(start: Workbench, trace: Trace) -> None:
    lost = rows_of(trace, "select cause, sum(end_ns - start_ns)::double as ns from idle group by 1")
    most = max(lost, key=lambda row: row["ns"])
    share = most["ns"] / 1e6 / sum(step_lengths(trace))
    assert most["cause"] == "data"
    said = text_of(start, ".verdict")
    assert said.startswith(f"The step waits for data: the device idles {share:.0%} of it")
    # The step on screen is the slowest of those that begin like the others.
    assert start.path == "s5.0"
    slowest = max(start.operations("s5.0"), key=lambda one: one["cpu_ns"])
    assert slowest["name"] == "data_loading"
    assert start.clicks == 0


def test_the_slowest_layer_in_backward(start: Workbench, trace: Trace) -> None:
    layers = rows_of(
        trace,
        "select path, backward_device_ns / 6e6 as ms from modules m where not exists "
        "(select 1 from modules inside where inside.parent = m.id) order by ms desc limit 1",
    )
    start.pane("modules")
    said = text_of(start, '.slowest-layers [data-phase="backward"]')
    assert start.clicks <= 2
    assert said.split()[1] == layers[0]["path"]
    assert times_in(said) == [pytest.approx(layers[0]["ms"], rel=0.01)]
    start.click('.slowest-layers [data-phase="backward"] button')
    start.until("location.hash.includes('subject=module')")
    assert start.page.locator(".pane tr.marked").count() == 1


@pytest.mark.parametrize("by", ["button", "key"])
def test_the_longest_kernel_of_the_step(start: Workbench, trace: Trace, by: str) -> None:
    (longest,) = rows_of(
        trace,
        "select name, duration_ns / 1e6 as ms from events where step = 5 and "
        "category in ('kernel', 'communication') order by duration_ns desc limit 1",
    )
    if by == "button":
        start.click('button:has-text("Longest kernel")')
    else:
        start.page.keyboard.press("g")
    start.until("document.querySelector('.details .pairs')")
    assert start.clicks <= 1
    assert times_in(start.details()["device, busy"].replace("\u202f", " ")) == [
        pytest.approx(longest["ms"], rel=0.005)
    ]
    assert start.ask(f"details?path={start.chosen}")["full_name"] == longest["name"]


def test_the_gain_of_mixed_precision(start: Workbench, trace: Trace) -> None:
    expected = predict(graph_of(trace, None, None), [parse_request("amp", CHANGES)])
    start.pane("whatif")
    start.click('[data-change="amp"] [role=switch]')
    start.until("document.querySelector('.whatif-sentence')?.innerText.includes('would take')")
    assert start.clicks <= 2
    said = text_of(start, ".whatif-sentence")
    assert times_in(said) == [
        pytest.approx(expected.predicted_step_ms, rel=0.005),
        pytest.approx(expected.replayed_step_ms, rel=0.005),
    ]
    assert f"{expected.speedup:.2f}× as fast" in said
    numbers = text_of(start, ".whatif-numbers")
    assert times_in(numbers)[-2:] == [pytest.approx(one, rel=0.005) for one in expected.range]


@pytest.fixture(scope="module")
def workers_url(home: Path, traces: Path) -> Iterator[str]:
    """The same training with and without processes that load its data."""
    folder = traces / "kineto_resnet50_v100"
    files = [str(folder / f"num_workers_{count}.json.gz") for count in (0, 4)]
    with serving(home, *files) as url:
        yield url


def test_which_of_two_traces_is_slower_and_why(
    workbench: Workbench, workers_url: str, traces: Path, trace: Trace
) -> None:
    other = stepscope.open(traces / "kineto_resnet50_v100" / "num_workers_4.json.gz")
    now, before = (float(np.median(step_lengths(one))) for one in (trace, other))
    assert now > before
    workbench.open(workers_url)
    workbench.pane("compare")
    said = text_of(workbench, ".compare-verdict")
    assert workbench.clicks <= 2
    assert f"takes {now / before:.2f} times as long" in said
    waits = [float(np.median(data_waits(one))) for one in (trace, other)]
    assert times_in(said) == [pytest.approx(one, rel=0.01) for one in (before, now, waits[0] - waits[1])]
    assert "mostly idle, waiting for data" in said
    sides = text_of(workbench, ".compare .pane-tools")
    assert "now (num_workers_0.json.gz)" in sides
    assert "num_workers_4.json.gz" in sides


@pytest.mark.parametrize(
    ("url", "trace", "clicks", "where", "answer"),
    [
        # A prediction above the step: the change of the first finding.
        ("resnet_url", "", ("Try it",), ".pair-title", "measured 188 ms above predicted 119 ms"),
        # The first operator that two runs do not share: one loads its data in the loop itself.
        ("workers_url", "", ("Other run", "First difference"), ".details h2", "aten::contiguous"),
        # Who slows a job down.
        ("several_url", "#trace=dlrm_8rank_v100", (), ".verdict", "No rank is slower than the others"),
    ],
)
def test_answers_are_so_many_clicks_away(
    workbench: Workbench,
    request: pytest.FixtureRequest,
    url: str,
    trace: str,
    clicks: tuple[str, ...],
    where: str,
    answer: str,
) -> None:
    workbench.open(request.getfixturevalue(url), trace)
    for button in clicks:
        workbench.click(f'button:text-is("{button}")')
    workbench.page.locator(where).first.wait_for()
    said = text_of(workbench, where)
    assert said.startswith(answer)
    assert where != ".verdict" or len(said.split()) <= 12


def data_waits(trace: Trace) -> list[float]:
    """For each step the time in which the device waits for data, ms."""
    rows = rows_of(
        trace,
        "select s.step, coalesce(sum(i.end_ns - i.start_ns), 0) / 1e6 as ms from steps s left join "
        "idle i on i.step = s.step and i.cause = 'data' group by 1",
    )
    return [row["ms"] for row in rows]


def test_the_late_rank_of_a_job(workbench: Workbench, traces: Path, home: Path) -> None:
    folder, out = traces / "dlrm_8rank_v100", home / "dlrm.html"
    command = [sys.executable, "-m", "stepscope", "ranks", str(folder), "--html", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    late = lateness(stepscope.open(folder))
    rank = max(late, key=late.__getitem__)
    workbench.open(out.as_uri(), shown=".job .heat canvas")
    said = text_of(workbench, ".job-latest")
    assert workbench.clicks <= 2
    assert said.startswith(f"rank {rank} arrives latest")
    assert times_in(said) == [pytest.approx(late[rank], rel=0.01)]


def test_the_late_rank_beside_the_timeline(workbench: Workbench, several_url: str, traces: Path) -> None:
    job = stepscope.open(traces / "dlrm_8rank_v100")
    late = lateness(job)
    rank = max(late, key=late.__getitem__)
    workbench.open(several_url, "#trace=dlrm_8rank_v100")
    workbench.pane("collectives")
    _, found, said = text_of(workbench, ".arrivals span").partition(f"Rank {rank} arrives latest: ")
    assert workbench.clicks == 1
    assert found
    assert times_in(said) == [pytest.approx(late[rank], rel=0.01)]
    chips = workbench.page.locator(".arrivals button").all_inner_texts()
    order = sorted(late, key=late.__getitem__, reverse=True)
    assert [int(chip.split()[1]) for chip in chips] == order
    workbench.click(".arrivals button")
    workbench.until(f"document.querySelector('.pane-line').innerText.startsWith('Rank {rank} ')")
    (exposed,) = rows_of(
        job,
        "select sum(end_ns - start_ns)::double / 1e6 as ms from idle "
        f"where cause = 'communication' and rank = {rank}",
    )
    assert times_in(text_of(workbench, ".pane-line"))[1] == pytest.approx(exposed["ms"], rel=0.01)
    workbench.page.locator(".pane tbody tr").first.click()
    workbench.until("location.hash.includes('/')")
    assert "nccl" in text_of(workbench, ".details h2")


def lateness(trace: Trace) -> dict[int, float]:
    """How much less each rank waits in collectives than the median rank, ms per step.

    All ranks leave a collective together, so a call that is longer than the shortest one of the
    same collective waited that long.
    """
    calls = rows_of(
        trace,
        "with calls as (select rank, events.name, duration_ns, row_number() over "
        "(partition by rank, events.name order by start_ns) as nth from events "
        "join tracks on tracks.id = track where category = 'communication' and device >= 0), "
        "waits as (select rank, name, sum(duration_ns - least) / 1e6 as ms from (select *, "
        "min(duration_ns) over (partition by name, nth) as least from calls) group by 1, 2) "
        "select rank, sum(usual - ms) as ms from (select *, median(ms) over (partition by name) "
        "as usual from waits) group by 1",
    )
    return {row["rank"]: row["ms"] for row in calls}


def test_all_hits_of_a_search_with_totals(start: Workbench, trace: Trace) -> None:
    expected = rows_of(
        trace,
        "select name, count(*) as count, sum(duration_ns) / 1e6 as ms from events "
        "where name ilike '%sgemm%' group by 1",
    )
    start.click("#search")
    start.page.keyboard.type("sgemm")
    start.page.locator(_HITS).first.wait_for()
    assert start.clicks == 1
    found = {
        row.get_attribute("data-key"): row.inner_text().replace("\u202f", " ")
        for row in start.page.locator(_HITS).all()
    }
    assert set(found) == {row["name"] for row in expected}
    for row in expected:
        assert f"\t{row['count']}\t" in found[row["name"]]
        assert any(ms == pytest.approx(row["ms"], rel=0.01) for ms in times_in(found[row["name"]]))
    start.page.get_by_role("button", name="Expand all").click()
    events = sum(row["count"] for row in expected)
    start.until(f"document.querySelector('.pane table').ariaRowCount > {events}")


def test_the_flame_graph_of_contexts(start: Workbench, trace: Trace) -> None:
    (work,) = rows_of(
        trace,
        "select sum(duration_ns) / 1e6 as ms, count(*) as count from events "
        "join tracks on tracks.id = track where device >= 0",
    )
    (layer,) = rows_of(
        trace,
        "select (forward_device_ns + backward_device_ns) / 1e6 as ms from modules where path = 'layer3'",
    )
    start.pane("flame")
    start.page.locator(".flame-frame canvas").first.wait_for()
    first = text_of(start, ".flame-chosen")
    assert start.clicks == 1
    assert "device time" in first
    assert times_in(first)[0] == pytest.approx(work["ms"], rel=0.005)
    assert f"count {work['count']:,}" in first
    start.page.fill('[aria-label="Search names in the flame graph"]', "layer3")
    start.until("document.querySelector('.flame-tools [role=status]').innerText.includes('box')")
    share = re.search(r"([\d.]+)%", text_of(start, ".flame-tools [role=status]"))
    assert share is not None
    assert float(share[1]) == pytest.approx(100 * layer["ms"] / work["ms"], abs=0.6)


def drag_half(bench: Workbench, top: Any, bottom: Any) -> None:
    """Drag over the third quarter of what is visible, from one track to another."""
    mouse = bench.page.mouse
    mouse.move(top["x"] + top["width"] * 0.5, top["y"] + 4)
    mouse.down()
    mouse.move(top["x"] + top["width"] * 0.75, bottom["y"] + 8, steps=4)
    mouse.up()


def test_the_statistics_of_a_dragged_area(start: Workbench, trace: Trace) -> None:
    thread, stream = (
        start.page.locator(f'[data-track="t{id}"] .track-bars').bounding_box()
        for id in (busiest(trace, "cpu"), busiest(trace, "device"))
    )
    drag_half(start, thread, stream)
    start.page.locator('.details [aria-label="Kernels in the area"]').wait_for()
    begin, end = (int(one) for one in start.said["area"].split(",")[0].split("-"))
    work = rows_of(
        trace,
        f"select events.name, greatest(start_ns, {begin}) as start_ns, "
        f"least(start_ns + duration_ns, {end}) as end_ns from events join tracks "
        f"on tracks.id = track where device = 0 and start_ns < {end} "
        f"and start_ns + duration_ns > {begin}",
    )
    busy = Intervals([one["start_ns"] for one in work], [one["end_ns"] for one in work]).total()
    device = cells(start, "Device 0 in the area")
    assert times_in(device["computing"]) == [pytest.approx(busy / 1e6, rel=0.005)]
    idle = sum(times_in(text)[0] for name, text in device.items() if name.startswith("idle"))
    assert idle == pytest.approx((end - begin - busy) / 1e6, rel=0.01)
    spent: dict[str, int] = {}
    for one in work:
        spent[one["name"]] = spent.get(one["name"], 0) + one["end_ns"] - one["start_ns"]
    longest = sorted((ns / 1e6 for ns in spent.values()), reverse=True)[:12]
    kernels = cells(start, "Kernels in the area")
    assert [times_in(text)[0] for text in kernels.values()] == pytest.approx(longest, rel=0.005)
    assert "TFLOP/s" in text_of(start, ".details .pairs")
    assert start.clicks == 0  # one drag
    start.page.keyboard.press("Escape")
    start.until("!location.hash.includes('area=')")
    assert start.page.locator(".details").count() == 0


def busiest(trace: Trace, kind: str) -> int:
    """The track of a kind with the most events."""
    (row,) = rows_of(
        trace,
        "select track from events join tracks on tracks.id = track "
        f"where tracks.kind = '{kind}' group by 1 order by count(*) desc limit 1",
    )
    return row["track"]


def cells(bench: Workbench, label: str) -> dict[str, str]:
    """The rows of a table in the side panel, by their first cells."""
    rows = bench.page.locator(f'.details [aria-label="{label}"] tbody tr').all_inner_texts()
    pairs = (row.replace("\u202f", " ").partition("\t") for row in rows)
    return {name.strip(): rest for name, _, rest in pairs}


def test_memory_at_a_moment(start: Workbench, trace: Trace) -> None:
    start.pane("memory")
    start.page.locator(".memory-plot canvas").wait_for()
    box = start.page.locator(".memory-plot").bounding_box()
    start.click(".memory-plot", position={"x": box["width"] * 0.5, "y": box["height"] / 2})
    start.until("location.hash.includes('memory=')")
    assert start.clicks <= 2
    moment = int(start.said["memory"].split(",")[0])
    changes = rows_of(trace, "select time_ns, bytes from memory where device = 'cuda:0' order by time_ns")
    used = np.cumsum([row["bytes"] for row in changes])
    now = np.searchsorted([row["time_ns"] for row in changes], moment, side="right") - 1
    known = used[now] - min(0, used.min())  # what was there before the recording is not known
    said = text_of(start, ".memory-living h2")
    assert said.split(" live")[0] == f"{known / 1e9:.2f} GB"


def test_a_url_shows_the_same_to_somebody_else(start: Workbench) -> None:
    start.click('[data-stage="forward"]')
    start.pane("kernels")
    start.page.locator(".pane tbody tr").nth(2).click()
    start.until("/chosen=.*subject=kernel/.test(location.hash)")
    other = Workbench(start.context)
    other.open(start.base, f"#{start.fragment}")
    assert on_screen(other) == on_screen(start)
    assert other.fragment == start.fragment
    assert other.problems == []


def test_a_file_shows_the_same_without_a_server(start: Workbench, capture: Path, home: Path) -> None:
    with serving(home, str(capture)) as url:
        start.open(url)
        start.click('[data-stage="backward"]')
        start.pane("modules")
        start.page.locator('.pane [data-key="stages"]').click()
        start.until("location.hash.includes('subject=module')")
        sent, shown = start.fragment, on_screen(start)
        start.page.goto("about:blank")  # nobody asks a server that is gone
    start.context.set_offline(True)
    start.open(single_file_of(capture).as_uri(), f"#{sent}")
    assert on_screen(start) == shown


def on_screen(bench: Workbench) -> list[str]:
    """What is chosen, at which levels, and what the pane shows."""
    bench.settle()
    texts = (".details h2", ".level-title strong", ".pane tbody tr", ".tabs [aria-selected=true]")
    return [" | ".join(bench.page.locator(one).all_inner_texts()) for one in texts]


def test_everything_with_the_keyboard_alone(start: Workbench, trace: Trace) -> None:
    press = start.page.keyboard.press
    rows = {one["name"]: one["path"] for one in start.operations("s5.0")}
    press("ArrowDown")  # into the step: its longest stage
    start.until(f"location.hash.includes({rows['data_loading']!r})")
    for name in ("transfer", "forward"):
        press("ArrowRight")
        start.until(f"location.hash.includes({rows[name]!r})")
    press("Enter")
    start.until("document.querySelectorAll('.level').length === 3")
    assert start.path == rows["forward"]
    press("Escape")
    start.until("document.querySelectorAll('.level').length === 2")
    press("2")  # the model
    start.page.locator('.pane[data-pane="modules"]').wait_for()
    for _ in range(60):  # Tab reaches the answer, and the focus is seen
        press("Tab")
        if start.page.evaluate("document.activeElement.closest('[data-phase=backward]') !== null"):
            break
    assert start.page.evaluate("document.activeElement.matches(':focus-visible')")
    press("Enter")
    start.until("location.hash.includes('subject=module')")
    press("?")
    start.page.locator("dialog[open]").wait_for()
    press("Escape")
    assert start.clicks == 0


def test_back_forward_and_reload(start: Workbench) -> None:
    places = [on_screen(start)]
    for stage in ("forward", "backward"):
        start.click(f'[data-stage="{stage}"]')
        start.until(f"document.querySelector('.details h2')?.innerText === '{stage}'")
        places.append(on_screen(start))
    start.page.go_back()
    start.until("document.querySelector('.details h2')?.innerText === 'forward'")
    assert on_screen(start) == places[1]
    start.page.go_back()
    start.until("document.querySelectorAll('.level').length === 2")
    assert on_screen(start) == places[0]
    start.page.go_forward()
    start.until("document.querySelector('.details h2')?.innerText === 'forward'")
    start.page.go_forward()
    start.until("document.querySelector('.details h2')?.innerText === 'backward'")
    assert on_screen(start) == places[2]
    start.page.reload()
    start.until("document.querySelector('.details h2')?.innerText === 'backward'")
    assert on_screen(start) == places[2]


# A window of 1440 px zoomed to 200 % has room for 720; a phone for 390.
@pytest.mark.parametrize("size", [(720, 450), (390, 844), (1024, 768), (3840, 2160)])
def test_the_answers_are_there_in_any_window(start: Workbench, size: tuple[int, int]) -> None:
    start.resize(size[0], size[1])
    assert is_in_sight(start, ".verdict")
    for pane in ("overview", "findings", "whatif", "flame", "modules", "kernels", "missing"):
        start.pane(pane)
        assert is_in_sight(start, f"#tab-{pane}")
        for part in ("html", ".header", ".headline", ".timeline-tools", ".stack", ".drawer"):
            assert overhang(start, part) <= 0, (part, pane)
    start.pane("modules")
    assert is_in_sight(start, '.slowest-layers [data-phase="backward"]')
    if size[1] > 450:
        assert is_in_sight(start, ".pane tbody tr:first-child td")
    start.click('button:has-text("kernel ↓")')
    start.page.locator(".details .pairs").first.wait_for()
    assert is_in_sight(start, ".details h2")
    way = start.page.locator(".way > *").all_inner_texts()
    assert (way[:2], way[2], len(way)) == (["trace", "step 5"], "…", 4)


@pytest.mark.parametrize("size", [(720, 450), (390, 844), (700, 900)])
def test_what_is_chosen_covers_nothing_else_where_there_is_little_room(
    start: Workbench, size: tuple[int, int]
) -> None:
    start.resize(size[0], size[1])
    start.click('button:has-text("kernel ↓")')
    start.page.locator(".details .pairs").first.wait_for()
    start.pane("findings")
    assert is_in_sight(start, "#tab-findings")
    dock, details = (start.page.locator(one).bounding_box() for one in (".dock", ".details"))
    assert dock["y"] + dock["height"] <= details["y"] + 1
    assert dock["height"] > details["height"]
    assert details["y"] + details["height"] <= size[1] + 1


@pytest.mark.parametrize("size", [(720, 450), (390, 844), (1024, 768), (1920, 1080)])
@pytest.mark.parametrize("trace", ["rank0_act_checkpoint", "dlrm_8rank_v100"])
def test_long_names_and_many_ranks_fit_into_any_window(
    workbench: Workbench, several_url: str, trace: str, size: tuple[int, int]
) -> None:
    workbench.resize(size[0], size[1])
    workbench.open(several_url, f"#trace={trace}")
    workbench.page.locator(".track").first.wait_for()
    for part in ("html", ".header", ".headline", ".timeline-tools"):
        assert overhang(workbench, part) <= 0, part
    cut = workbench.page.evaluate(
        "[...document.querySelectorAll('.counter-name .row-which, .track-device .row-which, "
        ".counter-scale')].filter(one => one.offsetParent && one.scrollWidth > "
        "(one.closest('.counter-name, .track-name')).clientWidth).map(one => one.innerText)"
    )
    assert cut == []


def is_in_sight(bench: Workbench, selector: str) -> bool:
    """Whether an element is within the window, in front of everything else."""
    bench.settle()
    return bench.page.evaluate(
        """selector => {
          const one = document.querySelector(selector);
          const {left, right, top, bottom} = one.getBoundingClientRect();
          const [x, y] = [(left + Math.min(right, innerWidth)) / 2, (top + bottom) / 2];
          const inside = left >= 0 && top >= 0 && bottom <= innerHeight && x < innerWidth;
          const front = document.elementFromPoint(x, y);
          return inside && front !== null && (one.contains(front) || front.contains(one));
        }""",
        selector,
    )


def overhang(bench: Workbench, selector: str) -> int:
    """By how many pixels something is wider than its room."""
    return bench.page.evaluate(
        "one => one.scrollWidth - one.clientWidth", bench.page.locator(selector).first.element_handle()
    )
