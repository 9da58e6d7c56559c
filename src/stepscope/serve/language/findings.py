"""What the analyzer says of the recorded steps, asked in a process of its own.

Rules ask the what-if engine, which compiles its simulation first: beside the protocol that would
hold up typing for seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from typing import Any


async def find_findings(capture: str) -> Sequence[Mapping[str, Any]]:
    """The findings of `stepscope analyze`; none where it fails, as nothing depends on them.

    Args:
        capture: the recorded steps.
    """
    command = (sys.executable, "-m", "stepscope", "analyze", capture, "--no-cache", "--json")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    try:
        told, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    found = json.loads(told) if process.returncode == 0 else {}
    return tuple(found.get("findings", ()))
