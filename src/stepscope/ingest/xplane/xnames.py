"""Names and categories of the events of an XLA profile.

Source: xplane_schema.cc for the names of stats; JAX's python_tracer for `$file.py:12 name`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from stepscope.arrays import Codes
from stepscope.ingest.distinct_rows import distinct_rows
from stepscope.ingest.warning_log import WarningLog
from stepscope.ingest.xplane.xevents import Batch
from stepscope.ingest.xplane.xspace import Plane
from stepscope.ingest.xplane.xtracks import HOST, STEPS, WORK, Track
from stepscope.trace.frame_name import FrameName
from stepscope.trace.interner import Interner
from stepscope.trace.schema import CATEGORIES

_CODE = {name: code for code, name in enumerate(CATEGORIES)}
_CALL, _COMPILED = 1, 2
_DIGITS = 18
_API = re.compile(r"^(cu|cuda|hip|hsa_?)[A-Z]")
_RUNTIME = re.compile(
    r"::|^end: |^(Pjit|Py|pjit)\w*\(|^(ParseArguments|BlockHostUntilReady|"
    r"\w*(Executable|Executor|Thunk|Transfer\w*Device)\w*( \(.*\))?)$"
)
_WAIT = re.compile(r" \(wait for completion\)$")
_OUR_WAIT = "stepscope.wait: "  # of the program for a result, which our recorder marks
_PYTHON = re.compile(r"^\$(?:(.+\.py):(\d{1,9}) )?(.*)$", re.DOTALL)
_CONTROL = re.compile(r"^(while|conditional|call)(\.\d+)*$")
_NEXT_BATCH = "IteratorGetNextOp::DoCompute"  # TensorFlow's operation that waits for tf.data
_COPY = re.compile(r"^Memcpy|^copy-(start|done)(\.\d+)*$")  # a TPU's are named by the compiler


class Naming:
    """Names and categories of events; adds the names to `names`."""

    def __init__(self, names: Interner[str], log: WarningLog) -> None:
        self._names, self._log = names, log

    def of(
        self, plane: Plane, batch: Batch, tracks: list[Track], columns: Mapping[str, Codes]
    ) -> tuple[Codes, Codes]:
        """Codes of name and of category, computed once per distinct combination."""
        role = np.array([track.role for track in tracks])[batch.line]
        claim, step = _claims(batch, columns), batch.integers("step_num")
        keys, inverse = distinct_rows(batch.kind, role, claim, step)
        found = [self._name_and_category(plane, *key) for key in keys]
        table = np.array(found, np.int64).reshape(-1, 2)[inverse]
        return table[:, 0], table[:, 1]

    def _name_and_category(
        self, plane: Plane, kind: int, role: int, claim: int, step: int
    ) -> tuple[int, int]:
        name = self._recorded_name(plane, kind)
        if role == STEPS and name.isascii() and name.isdigit():
            name, step = "step", int(name[-_DIGITS:])
        if step >= 0:
            return self._names[f"{name}#step_num={step}"], _CODE["annotation"]
        if role == HOST and (found := _PYTHON.match(name)):
            file, line, function = found.groups()
            written = str(FrameName(file, int(line), function)) if file else function
            return self._names[written], _CODE["python"]
        if name.startswith(_OUR_WAIT):
            return self._names[name.removeprefix("stepscope.")], _CODE["runtime"]
        if role == HOST and self._is_operation(plane, kind):
            return self._names[name], _CODE["cpu_op"]
        return self._names[name], _CODE[_category(name, role, claim)]

    def _is_operation(self, plane: Plane, kind: int) -> bool:
        found = plane.kinds.get(kind)
        return found is not None and bool(found.operation or found.name == _NEXT_BATCH)

    def _recorded_name(self, plane: Plane, kind: int) -> str:
        found = plane.kinds.get(kind)
        if found is None:
            self._log("unnamed_event", "the name of an event is missing; shown by its number")
            return f"event {kind}"
        return found.display_name or found.name


def _claims(batch: Batch, columns: Mapping[str, Codes]) -> Codes:
    """The role of each event that follows from its ids: a call, compiled work, or 0."""
    has_id = [columns["correlation"] >= 0, batch.texts("hlo_op") >= 0, columns["run"] >= 0]
    return np.select(has_id, [_CALL, _COMPILED, _CALL], 0)


def _category(name: str, role: int, claim: int) -> str:
    if role == HOST:
        if claim == _COMPILED and not _API.match(name):
            return "cpu_op"
        if _WAIT.search(name):
            return "sync"
        return "runtime" if claim or _API.match(name) or _RUNTIME.search(name) else "annotation"
    if role != WORK or _CONTROL.match(name):
        return "annotation"
    if _COPY.match(name):
        return "memcpy"
    return "memset" if name.startswith("Memset") else "kernel"
