"""The analyzer's findings for the recorded steps, from a separate process.

Rules ask the what-if engine, which compiles its simulation first: in the server's process
that would delay typing for seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


async def find_findings(capture: str) -> Sequence[Mapping[str, Any]]:
    """The findings of `stepscope analyze`; none if it fails, as nothing depends on them.

    Args:
        capture: the recorded steps.
    """
    command = (sys.executable, "-m", "stepscope", "analyze", capture, "--no-cache", "--json")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        raise
    found = json.loads(output) if process.returncode == 0 else {}
    return tuple(found.get("findings", ()))
