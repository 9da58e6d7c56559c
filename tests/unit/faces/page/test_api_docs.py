"""The page's types and the reference are those of the answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from api_docs import generated, glossary, typescript, typescript_type
from msgspec import UNSET, UnsetType

from stepscope.faces.page.routes import ROUTES

ROOT = Path(__file__).parents[4]


@cache
def pages() -> dict[Path, str]:
    return generated(ROOT)


@pytest.mark.parametrize("name", ["types.ts", "batch_types.ts", "glossary.ts", "web_api.md"])
def test_generated_files_are_current(name: str) -> None:
    ((file, text),) = [pair for pair in pages().items() if pair[0].name == name]
    assert file.read_text("utf-8") == text, "run python scripts/api_docs.py"


def test_every_request_documents_its_parameters() -> None:
    for name in ROUTES.keys() - {"axis", "memory", "schema"}:  # which have none
        function = ROUTES[name]
        assert "Query:" in (function.__doc__ or ""), name


@pytest.mark.parametrize(
    ("hint", "written"),
    [
        (int | float, "number"),
        (list[int | None], "(number | null)[]"),
        (tuple[float, float | None], "[number, number | null]"),
        (Literal["a", ""] | None, '"a" | "" | null'),
        (dict[str, Any], "Record<string, unknown>"),
        (str | UnsetType, "string"),
    ],
)
def test_annotations_in_typescript(hint: Any, written: str) -> None:
    assert typescript_type(hint) == written


def test_terms_are_plain_text() -> None:
    (text,) = [text for file, text in pages().items() if file.name == "glossary.ts"]
    assert '["Lane", "A row of a level:' in text
    assert not any(mark in text.split("TERMS")[1] for mark in ("](", "**", "|--"))
    with pytest.raises(KeyError):
        glossary("### Step\n\nOne iteration.\n")


class Inner(msgspec.Struct):
    """What is inside."""

    class_: str = msgspec.field(name="class")


class Outer(msgspec.Struct):
    """An answer.

    Attributes:
        inner: one that
            is inside.
    """

    inner: list[Inner]
    maybe: int | UnsetType = UNSET


def test_interfaces_have_the_meaning_of_each_field() -> None:
    assert (
        typescript([Outer]).split("\n", 2)[2]
        == """\
/** What is inside. */
export interface Inner {
  class: string;
}

/** An answer. */
export interface Outer {
  /** One that is inside. */
  inner: Inner[];
  maybe?: number;
}
"""
    )
