"""How `stepscope status` and `stepscope record` find and ask the watched runs of this machine.

Files in a folder that only the user may enter: `PID.watch` names the file of a run, and
`PID.record` exists while steps are asked for or recorded, with how many. The run looks there once
a second: it needs neither a thread nor a socket, and nothing in a request is executed.
"""

import json
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.base.input_files import content_of
from stepscope.base.unfinished_files import is_alive
from stepscope.base.watch_format import MOST_ASKED_STEPS
from stepscope.errors import StepscopeError
from stepscope.record.patch import ignoring
from stepscope.record.unreplaced import os

_KINDS = "watch", "record", "recorded", "new"  # of files of ours: the folder may have others


def _folder() -> Path:
    """The user's own folder; refused if somebody else made it, or others may enter."""
    if not hasattr(os, "getuid"):
        raise StepscopeError("Windows has no requests to watched runs")
    user = os.getuid()
    folder = Path(os.environ.get("STEPSCOPE_REQUESTS") or f"/tmp/stepscope-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != user or about.st_mode & 0o077:
        raise StepscopeError(f"cannot use {folder}: it is not a folder of this user alone")
    return folder


class Requests:
    """The requests to this process, until closed."""

    def __init__(self, watch_file: Path) -> None:
        self._pid, self._folder = os.getpid(), _folder()
        self._request = self._folder / f"{self._pid}.record"
        self._request.unlink(missing_ok=True)  # to an earlier process of this number
        self._write("watch", {"file": str(watch_file)})

    def wanted(self) -> int:
        """How many steps are to be recorded; 0 if none are."""
        with ignoring(OSError):
            about = os.lstat(self._request)  # mostly there is none; the program may have replaced `Path.open`
            if stat.S_ISREG(about.st_mode) and about.st_size <= 8:  # digits; and a pipe would be waited for
                text = self._request.read_bytes()
                return min(int(text), MOST_ASKED_STEPS) if text.isdigit() else 0
        return 0

    def answer(self, facts: Mapping[str, Any]) -> None:
        """Say what became of the request; the next one may come."""
        self._write("recorded", facts)
        self._request.unlink(missing_ok=True)

    def close(self) -> None:
        for kind in _KINDS if os.getpid() == self._pid else ():
            (self._folder / f"{self._pid}.{kind}").unlink(missing_ok=True)

    def _write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """At once, for those that read."""
        path = self._folder / f"{self._pid}.new"
        path.write_text(json.dumps(facts))
        path.replace(path.with_suffix(f".{kind}"))


def watched_runs() -> dict[int, Path]:
    """The file of each watched run of this user, by process; what is left of killed ones is removed."""
    runs = {}
    for path in sorted(path for kind in _KINDS for path in _folder().glob(f"*.{kind}")):
        with suppress(OSError, ValueError, StepscopeError):
            if not is_alive(int(path.stem)):
                path.unlink()
            elif path.suffix == ".watch":
                runs[int(path.stem)] = Path(_read(path, "file")["file"])
    return runs


def _read(path: Path, *keys: str) -> dict[str, str]:
    """The texts that a run wrote; refused if the file holds anything else."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        facts = json.loads(content_of(path))
        return {key: "" + facts[key] for key in keys}
    raise StepscopeError(f"{path} does not say what a watched run says")


def watch_file_of(pid: int) -> Path:
    """The file of a watched run; refused if there is none, or it is somebody else's."""
    if path := watched_runs().get(pid):
        return path
    try:
        why = "is not watched; start it with: stepscope watch SCRIPT" if is_alive(pid) else "does not exist"
    except PermissionError:
        why = "belongs to another user"
    raise StepscopeError(f"process {pid} {why}")


def ask_to_record(pid: int, steps: int) -> None:
    """Ask a watched run to record its next steps; refused while it records."""
    watch_file_of(pid)
    try:
        with (_folder() / f"{pid}.record").open("x") as file:
            file.write(str(steps))
    except FileExistsError:
        raise StepscopeError(f"process {pid} is recording already") from None


def withdraw(pid: int) -> None:
    (_folder() / f"{pid}.record").unlink(missing_ok=True)


def recorded(pid: int) -> dict[str, str] | None:
    """What became of the request; None while it is recording."""
    if pid not in watched_runs():
        return {"message": "its run ended before", "file": ""}
    if (_folder() / f"{pid}.record").exists():
        return None
    return _read(_folder() / f"{pid}.recorded", "message", "file")
