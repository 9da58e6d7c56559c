"""One scratch view for several processes that train together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stepscope.errors import ScratchError
from stepscope.scratch.copies import copy_roots
from stepscope.scratch.plan import COPY, OVERLAY, Scratch
from stepscope.scratch.write_protection import can_protect

_SOURCES = str(Path(__file__).parents[2])
_HOLD = (
    "import sys; sys.path.insert(0, {sources!r}); "
    "from stepscope.scratch.overlay import enter_overlay; "
    "enter_overlay({roots!r}, {store!r}, {kept!r}); print('ready', flush=True); sys.stdin.read()"
)


@contextmanager
def scratch_view(
    scratch: Scratch, processes: int, kept: Sequence[str]
) -> Iterator[tuple[Scratch, str]]:
    """Prepare the view of one run.

    Args:
        scratch: from `plan_scratch`.
        processes: how many processes see it.
        kept: folders that stay as they are: where results go.

    Yields:
        What each process passes to `enter`: the plan and the folder for its data.

    Raises:
        ScratchError: it cannot be made.
    """
    if scratch.method not in (OVERLAY, COPY):
        yield scratch, ""
        return
    with scratch.new_store() as store:
        if processes == 1:
            yield scratch, store
        elif scratch.method == COPY:
            copy_roots(scratch.roots, store, can_protect(), kept)
            yield scratch, store
        else:
            with _held(scratch, store, kept) as holder:
                yield replace(scratch, holder=holder), store


@contextmanager
def _held(scratch: Scratch, store: str, kept: Sequence[str]) -> Iterator[int]:
    """A process that has the overlays, for others to join, until this ends."""
    kept = [*scratch.kept, *(os.path.realpath(folder) for folder in kept)]
    code = _HOLD.format(sources=_SOURCES, roots=scratch.roots, store=store, kept=kept)
    holder = subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise ScratchError("cannot make a scratch view for several processes; use --in-place")
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()
