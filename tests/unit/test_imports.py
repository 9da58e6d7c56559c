"""What a training process pays for: the heavy libraries stay out until a trace is opened."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.main
HEAVY = ("numpy", "pyarrow", "torch", "msgspec", "duckdb", "pandas")


def loaded(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after `statement`."""
    show = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import stepscope",
        "import stepscope.record",
        "import stepscope.faces.terminal",
        "import stepscope.faces.terminal.run",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    assert loaded(statement).isdisjoint(HEAVY)


def test_the_check_would_see_a_heavy_import() -> None:
    assert "numpy" in loaded("import stepscope.trace.table")


def test_a_trace_opens_without_any_framework() -> None:
    assert loaded("import stepscope.read.chrome.trace_events").isdisjoint({"torch", "jax", "pandas"})


def test_a_single_file_needs_no_web_server_and_no_recorder() -> None:
    names = loaded("import stepscope.faces.page.single_file\nfrom stepscope.analyze import RULES")
    assert names.isdisjoint({"starlette", "asyncio", "stepscope.record", "stepscope.models.batch_size"})
