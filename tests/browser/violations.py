"""What axe-core objects to on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
# Of what it does not object to it keeps one example a rule, not where all of them are.
_RUN = """
async options => (await axe.run(document, {resultTypes: ['violations'], ...options})).violations
  .map(one => `${one.id}: ${one.nodes.map(node => node.target.join(' ')).join(', ')}`)
"""
_OF_COLORS = {"runOnly": ["color-contrast", "link-in-text-block"]}


def violations(page: Any, colors_only: bool = False) -> list[str]:
    """Each rule that the page breaks, and where; skips a test where axe-core is not installed.

    With `colors_only` the rules whose outcome depends on the theme.
    """
    if not AXE.exists():
        pytest.skip("no axe-core; run npm --prefix web ci")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    found: list[str] = page.evaluate(_RUN, _OF_COLORS if colors_only else {})
    return found
