"""Short names of kernels that stay distinct."""

from __future__ import annotations

from serving import ask, opened

from stepscope.facts.timeline.operation_labels import distinct_short_names


def test_names_that_differ_elsewhere_say_where() -> None:
    names = ["void at::k<float>(int)", "void at::k<float>(long)", "void at::other<1>()"]
    assert list(distinct_short_names(names).values()) == ["k<float> [int]", "k<float> [long]", "other<1>"]


def test_names_that_differ_in_too_much_are_numbered() -> None:
    names = [f"void n{'x' * 50}{number}::k<int>()" for number in range(3)]
    assert len(set(distinct_short_names(names).values())) == 3


def test_tables_and_search_name_kernels_alike() -> None:
    view = opened("""
        main     |  0 100 | ProfilerStep#1
        main     |  5  20 | aten::add
        main     |  6   8 | cudaLaunchKernel     | corr=1
        main     | 10  12 | cudaLaunchKernel     | corr=2
        stream 7 | 30  60 | at::k<float>(int) | corr=1
        stream 7 | 60  75 | at::k<float>(long) | corr=2
    """)
    rows = [row["short"] for row in ask(view, "kernels")["rows"]]
    assert len(set(rows)) == 2
    found = ask(view, "search_hits", text="k<float>")
    assert {one["short"] for one in found["names"]} == set(rows)
    events = found["events"]["event"]
    paths = [ask(view, "path", event=event)["path"] for event in events]
    shown = {ask(view, "details", path=path)["launch"]["event"] for path in paths}
    assert len(shown) == 2
