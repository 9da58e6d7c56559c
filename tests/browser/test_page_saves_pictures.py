"""The timeline and the flame graph saved as pictures: shapes and text, or a bitmap."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from browsing import Workbench

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def forward(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url, "#pane=flame")
    workbench.click_bar(next(one["path"] for one in workbench.operations("s5.0") if one["name"] == "forward"))
    workbench.until("document.querySelectorAll('.level').length === 3")
    workbench.page.locator(".flame-room canvas").first.wait_for()
    return workbench


def saved(bench: Workbench, of: str, kind: str) -> bytes:
    bench.settle()
    with bench.page.expect_download() as saving:
        bench.page.get_by_label(f"Save a picture of the {of}").select_option(kind)
    assert saving.value.suggested_filename.endswith(f".{kind}")
    return Path(saving.value.path()).read_bytes()


def texts(picture: bytes) -> list[str]:
    root = ElementTree.fromstring(picture)
    return ["".join(one.itertext()) for one in root.iter(f"{_SVG}text")]


def test_the_timeline_is_saved_as_shapes_and_text(forward: Workbench) -> None:
    picture = saved(forward, "timeline", "svg")
    written = texts(picture)
    for name in ("layer1", "layer3", "ProfilerStep#5", "data loading", "stream 7"):
        assert any(name in one for one in written), name
    assert any(re.fullmatch(r"\d+\sms", one) for one in written)  # the ruler
    root = ElementTree.fromstring(picture)
    assert len(list(root.iter(f"{_SVG}rect"))) > 300
    inner = forward.page.locator(".stack-inner").bounding_box()
    assert float(root.get("height", "0")) > inner["height"]  # whole, whatever is scrolled
    assert b"<script" not in picture
    assert b"var(" not in picture


def test_the_flame_graph_is_saved_as_shapes_and_text(forward: Workbench) -> None:
    written = texts(saved(forward, "flame graph", "svg"))
    assert {"resnet50", "layer3", "kernel"} <= {one.strip() for one in written}


@pytest.mark.parametrize("of", ["timeline", "flame graph"])
def test_a_bitmap_has_two_pixels_for_each_of_the_page(forward: Workbench, of: str) -> None:
    width = float(ElementTree.fromstring(saved(forward, of, "svg")).get("width", "0"))
    bitmap = saved(forward, of, "png")
    assert bitmap.startswith(b"\x89PNG")
    assert struct.unpack(">I", bitmap[16:20])[0] == 2 * width


def test_there_is_no_picture_of_a_table(forward: Workbench) -> None:
    forward.page.keyboard.press("t")
    forward.page.locator(".level-tables").wait_for()
    assert forward.page.get_by_label("Save a picture of the timeline").is_disabled()
