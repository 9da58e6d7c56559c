"""The results of one part: a JSON file that is whole at every moment, and can be gone on with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Json = dict[str, Any]
MEASURED = "measured"
_MACHINE = ("processor", "cpu_count")
_TRIES = 2


class OtherRun(Exception):
    """The file holds results of another device or size."""


class Results:
    """One part's file.

    A measurement that was begun and never ended took the process with it: after two such tries it
    is given up as `died`, so that one bad measurement does not keep all that follow from running.
    """

    def __init__(self, path: Path, about: Json, run: Json) -> None:
        """`about` is what must be the same whenever the part goes on; `run` is what may differ."""
        self.path = path
        self._added = False
        self._content: Json = {
            **about,
            "complete": False,
            "not_measured": [],
            "tries": {},
            "runs": [],
            "measurements": {},
        }
        if path.exists():
            self._go_on(read_results(path), run)
        self._content["runs"].append(run)

    def _go_on(self, earlier: Json, run: Json) -> None:
        for key in ("device", "quick", "seed"):
            if earlier[key] != self._content[key]:
                raise OtherRun(
                    f"expected results of {key} {self._content[key]!r} in {self.path}, found "
                    f"{earlier[key]!r}; choose another folder with --out"
                )
        before, now = (
            [one.get("machine", {}).get(key) for key in _MACHINE] for one in (earlier["runs"][-1], run)
        )
        if before != now:
            raise OtherRun(
                f"expected results of the machine {before} in {self.path}, found {now}; results of two "
                "machines are not mixed: choose another folder with --out"
            )
        kept = ("complete", "tries", "runs", "measurements")
        self._content.update({key: earlier[key] for key in kept})

    @property
    def complete(self) -> bool:
        """Whether everything was tried."""
        return bool(self._content["complete"])

    @property
    def measurements(self) -> dict[str, Json]:
        """What was found so far."""
        return self._content["measurements"]

    @property
    def not_measured(self) -> list[str]:
        """What there was no time for."""
        return self._content["not_measured"]

    def forget_failures(self) -> None:
        """Try again whatever was not measured."""
        found = self.measurements.items()
        self._content["measurements"] = {key: one for key, one in found if one["outcome"] == MEASURED}
        self._content.update(complete=False, tries={})

    def begin(self, key: str) -> bool:
        """Note that a measurement begins; False where it is better not tried again."""
        tries = self._content["tries"]
        if tries.get(key, 0) >= _TRIES:
            self.add(key, {"outcome": "died", "tries": tries[key]})
            return False
        tries[key] = tries.get(key, 0) + 1
        self._write()
        return True

    def add(self, key: str, found: Json) -> None:
        """Keep what a measurement found."""
        self._added = True
        self._content["tries"].pop(key, None)
        self.measurements[key] = {**found, "run": len(self._content["runs"]) - 1}
        self._write()

    def put_off(self, key: str) -> None:
        """There is no time for a measurement."""
        self.not_measured.append(key)

    def end(self) -> None:
        """Everything was tried or put off; a run that added nothing leaves no trace."""
        was_complete = self.complete
        self._content["complete"] = not self.not_measured
        if not was_complete or self._added:
            self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps(self._content, indent=1) + "\n")
        partial.replace(self.path)


def read_results(path: Path) -> Json:
    """The content of a part's file."""
    content: Json = json.loads(path.read_text())
    return content
