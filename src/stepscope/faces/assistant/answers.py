"""Answers about recordings for a coding assistant: those of the page and of `--json`, by file.

Each public method of `Answers` and of `Programs` is a tool of the server: its signature is the
tool's, and its docstring the tool's description.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any

import msgspec
import numpy as np

from stepscope.base.parallel import own_command
from stepscope.errors import ChangeError, GraphError, ServeError
from stepscope.faces.assistant.explanation import all_nodes
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import pane_of
from stepscope.facts.contexts import ContextTree, default_measure, measure, measures
from stepscope.facts.load import open as open_trace
from stepscope.facts.roofline.rates import with_device
from stepscope.models.memory import memory_facts
from stepscope.models.memory.memory_findings import find_problems
from stepscope.models.ranks.files import files_at, paths_at
from stepscope.models.ranks.hangs import dumps_among, hang_in
from stepscope.models.ranks.job import files_of_many, sketched, sketched_trace
from stepscope.models.whatif import CHANGES
from stepscope.read import is_trace
from stepscope.read.rank_folder import shown
from stepscope.trace.trace import Trace

_MOST_OPEN = 4  # recordings kept in memory; chosen: two to compare, and two more
_MOST_ROWS = 200  # recordings, or call paths; chosen: more than an assistant reads
_LEVELS = 6  # of a call path that are shown, the innermost
_TREE = ("children", "copies", "modules")  # of a module; a row each instead
_TAIL = 3000  # characters of what a program wrote

TABLES = {
    "open": "steps, events",
    "overview": "steps, events, idle",
    "findings": "findings, evidence",
    "changes": "graph_nodes",
    "whatif": "graph_nodes, graph_edges",
    "fits": "allocations",
    "diff": "steps, events",
    "ranks": "steps, collectives",
    "memory": "allocations",
    "contexts": "contexts",
    "modules": "modules, events",
    "kernels": "events",
    "level": "events",
    "query": "as named in the statement",
}


class Recordings:
    """The recordings in some folders, or files: nothing else is ever opened."""

    def __init__(self, folders: Sequence[Path], cache: bool = True) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.cache = cache
        self.range_name = self.device = ""
        self.graph_capture: Path | None = None
        self._opened, self._lock = lru_cache(_MOST_OPEN)(self._read), RLock()

    def looking_at(self, range_name: str, graph_capture: str, device: str = "") -> "Recordings":
        """The same, opened at the ranges of a name, with the capture of their CUDA graphs, on a device."""
        chosen = copy(self)
        chosen.range_name, chosen.device = range_name, device
        chosen.graph_capture = self.path(graph_capture) if graph_capture else None
        return chosen

    def path(self, file: str) -> Path:
        """The path of a file or folder within the folders, links resolved; raises ServeError if it is outside
        of them, or does not exist."""
        for folder in self.folders:
            path = (folder if folder.is_dir() else folder.parent) / file
            with suppress(OSError, ValueError, RuntimeError):  # a loop of links, an invalid name
                real = path.resolve(strict=True)
                links = filter(Path.is_symlink, real.rglob("*") if real.is_dir() else ())
                if self._holds(real) and all(self._holds(link.resolve()) for link in links):
                    return real
        raise ServeError(f"no such recording within the folders of this server: {file[:200]!r}; see open")

    def _holds(self, real: Path) -> bool:
        return any(real == folder or real.is_relative_to(folder) for folder in self.folders)

    def view(self, file: str) -> TraceView:
        """An opened recording; the last few are kept."""
        path = self.path(file)
        if many := files_of_many(path):
            raise ServeError(f"{file} holds {len(many)} ranks; compare them with ranks, or name one's file")
        capture = self.graph_capture
        states = (path.stat().st_mtime_ns, capture.stat().st_mtime_ns if capture else 0)
        with self._lock:  # one at a time: each needs the memory of a whole trace
            return self._opened(path, self.range_name, capture, self.device, states)

    def _read(self, path: Path, range_name: str, capture: Path | None, device: str, _: object) -> TraceView:
        trace = open_trace(path, range_name=range_name, graph_capture=capture, cache=self.cache)
        return TraceView(with_device(trace, device) if device else trace)

    def names(self) -> Iterator[str]:
        """The recordings, as `path` takes them."""
        for folder in self.folders:
            above = folder if folder.is_dir() else folder.parent
            for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
                if path.is_file() and self._holds(path.resolve()) and is_trace(path):
                    name = str(path.relative_to(above))
                    yield name if self.path(name) == path.resolve() else str(path)  # one of two of a name


class Answers:
    """What can be asked about recordings; times are means per step unless a name says otherwise.

    Args:
        recordings: that may be opened.
        document: the document of `stepscope explain` about one of them, within a number of tokens.
    """

    def __init__(self, recordings: Recordings, document: Callable[[Recordings, str, int], str]) -> None:
        self.recordings, self.document = recordings, document

    def open(self, file: str = "") -> Any:
        """List the recordings; of one, say what it holds: ranks, steps, devices, doubts. Start here."""
        if not file:
            return {"recordings": [*islice(self.recordings.names(), _MOST_ROWS)]}
        overview: Any = self._page(file, "overview")
        keys = ("start", "job", "rank", "ranks", "has", "why", "warnings", "steps")
        facts = overview.facts
        about: dict[str, Any] = {"next": "ranks" if overview.job else "overview or findings"}
        if facts is not None:
            about |= {"framework": facts.framework, "verdict": facts.verdict, "step": facts.steps}
        elif overview.has.memory:
            about = {"next": "memory: there are no steps, and no other tool has an answer"}
        return about | {key: getattr(overview, key) for key in keys}

    def overview(self, file: str, limit_tokens: int = 1300) -> str:
        """Everything important in one Markdown document: verdict, stages, findings, what-ifs, kernels."""
        return self.document(self.recordings, file, max(500, min(limit_tokens, 20_000)))

    def findings(self, file: str, rank: int | None = None) -> Any:
        """What slows the step, the worst first: what to do, gain_ms with range_ms, places as evidence.

        Without range_ms, gain_ms is an upper bound. A finding is refuted where its change, run by
        `whatif`, gains nothing beyond its range. There is none where no rule found 1 % of the step.
        """
        return self._page(file, "findings", rank=rank)

    def changes(self, file: str) -> Any:
        """List every what-if change with its parameters, and whether it applies to this recording."""
        return self._page(file, "changes")

    def whatif(self, file: str, changes: list[str], rank: int | None = None, step: int | None = None) -> Any:
        """Predict the step with changes such as ["amp", "bandwidth:factor=2"], combined in this order.

        Without a change every one is tried alone, and those that apply are ranked. `range` is in ms.
        """
        from stepscope.models.whatif.ranking import rank_changes

        view = self.recordings.view(file)
        pane = pane_of(view, rank, step)
        if not changes:
            ranking = view.cached(("ranking", rank, step), lambda: rank_changes(pane.graph, rank, step))
            gains = [_gain(gain) for gain in ranking.gains]
            return {"notes": ranking.notes, "gains": gains, "not_applicable": ranking.reasons}
        try:
            return pane.answer(changes)
        except (ChangeError, GraphError) as refusal:
            raise ServeError(str(refusal)) from refusal

    def fits(self, file: str, capacity: str) -> Any:
        """Changes that make the step fit into a memory (`24GB`, or a device's name), cheapest first."""
        from stepscope.facts.roofline.rates import find_capacity
        from stepscope.models.whatif.ranking import find_fits

        limit = find_capacity(capacity)
        fits = find_fits(pane_of(self.recordings.view(file), None, None).graph, limit)
        return {"limit_bytes": limit.limit_bytes, "fits": fits}

    def diff(self, before: str, after: str, rank: int | None = None) -> Any:
        """Compare the steps of two recordings; `verdict` says what is within step-to-step noise."""
        from stepscope.models.diff import compare, explain

        compared = compare(self._trace(before), self._trace(after), rank=rank)
        return {"explanation": explain(compared), **compared.to_json()}

    def ranks(self, folder: str) -> Any:
        """Compare the ranks of a folder with one file per rank: which is slow, where, why, at what cost.

        Of dumps that PyTorch's flight recorder wrote: where the job hangs, and who is missing.
        """
        path = self.recordings.path(folder)
        if dumps := dumps_among(paths_at(str(path))):
            return hang_in(dumps)[0]
        files = files_at(path)
        alone, cache = len(files) == 1, self.recordings.cache  # one file may have several ranks
        many = sketched_trace(self._trace(files[0].name)) if alone else sketched(path, files, cache=cache)
        doubts = [one.error for one in many.results if one.error]
        if unsure := [Path(one.file).name for one in many.results if one.renumbered]:
            doubts.append(f"several jobs? then name the folder of one; without a rank: {shown(unsure)}")
        return {"doubts": doubts, "findings": many.findings.sentences, **many.report.to_json()}

    def memory(self, file: str) -> Any:
        """What fills each device's memory at the peak, by kind, module and line, and what to do."""
        devices = memory_facts(self._trace(file))
        return [{**msgspec.structs.asdict(facts), "findings": find_problems(facts)} for facts in devices]

    def contexts(self, file: str, by: str = "", rank: int | None = None, step: int | None = None) -> Any:
        """The hottest call paths: Python line, module, operator, kernel; totals over all recorded steps."""
        tree = self.recordings.view(file).contexts(rank, step)
        chosen = measure(tree, by or default_measure(tree))
        unit, own, inclusive = chosen.unit or "count", chosen.own, chosen.inclusive
        rows = [
            {"path": _call_path(tree, node), f"own_{unit}": own[node], f"inclusive_{unit}": inclusive[node]}
            for node in np.argsort(-own, kind="stable")[:_MOST_ROWS].tolist()
            if own[node] > 0
        ]
        return {"by": chosen.meaning, "measures": measures(tree), "paths": rows}

    def modules(self, file: str, rank: int | None = None, step: int | None = None) -> Any:
        """Time, FLOPs and parameters of each module, the costliest first."""
        modules: Any = self._page(file, "modules", rank=rank, step=step)
        rows = [
            {"path": node.path, "cpu_ms": node.cpu_ms, "device_ms": node.device_ms}
            | {key: getattr(node, key) for key in node.__struct_fields__ if key not in _TREE}
            for node in sorted(all_nodes(modules.tree), key=lambda node: -max(node.device_ms, node.cpu_ms))
        ]
        return {"step_ms": modules.step_ms, "evidence": modules.evidence, "modules": rows}

    def kernels(self, file: str, rank: int | None = None, step: int | None = None) -> Any:
        """Device work by name (operators without a device): time, count, kind, share of the peak rate."""
        return self._page(file, "kernels", rank=rank, step=step)

    def level(self, file: str, path: str = "") -> Any:
        """The operations inside one operation of the timeline; without a path the steps.

        Args:
            path: of an operation, as this tool lists it.
        """
        level = self.recordings.view(file).timeline.level(path)
        times = ("start_ns", "cpu_ns", "self_ns", "device_ns", "events")
        columns = {key: getattr(level.costs, key).tolist() for key in times}
        rows = [
            {"path": path, "name": one.name, "kind": one.kind, **{key: columns[key][at] for key in times}}
            for at, (path, one) in enumerate(zip(level.paths, level.operations, strict=True))
        ]
        return {"inside": level.name, "operations": rows}

    def query(self, file: str, sql: str) -> Any:
        """Run one reading SQL statement on the tables of the recording, within 20 s, 1 GB, 10,000 rows.

        `show tables` lists them, and `describe events` the columns of one; no file can be read.
        """
        return self._page(file, "query", sql=sql)

    def _page(self, file: str, name: str, **asked: str | int | None) -> Any:
        values = {key: str(value) for key, value in asked.items() if value is not None}
        return answer(self.recordings.view(file), name, Query(values))

    def _trace(self, file: str) -> Trace:
        return self.recordings.view(file).trace


def _gain(gain: Any) -> dict[str, Any]:
    keys = ("changes", "replayed_step_ms", "predicted_step_ms", "speedup", "range", "is_certain", "basis")
    parameters = CHANGES[gain.changes[0].partition(":")[0]].parameters.values()
    amounts = {one.name: one.default for one in parameters if isinstance(one.default, float)}
    return {key: getattr(gain, key) for key in keys} | ({"with": amounts} if amounts else {})


def _call_path(tree: ContextTree, node: int) -> str:
    """The innermost names of the path to a node."""
    parent, name = tree.nodes["parent"], tree.nodes.text("name")
    names: list[str] = []
    while node > 0 and len(names) < _LEVELS:
        names.insert(0, name[node] or "")
        node = int(parent[node])
    return " › ".join(names)


class Programs:
    """Tools that run the user's code, in a process of their own; only with `--allow-run`."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    def run(
        self, script: str, arguments: list[str], steps: int = 3, timeout_s: int = 600, options: str = ""
    ) -> Any:
        """Record a few steps of a script, with `options` such as --memory; says where the recording is."""
        path = self._recordings.path(script)
        words = ["run", "--steps", str(steps), *options.split(), str(path), *arguments]
        return _output(words, path.parent, timeout_s)

    def verify(self, change: str, script: str, arguments: list[str], timeout_s: int = 600) -> Any:
        """Run a script with and without a change, in a scratch view of its project, and compare."""
        if change.startswith("-"):
            raise ServeError(f"expected a change such as amp, found {change[:80]!r}")
        path = self._recordings.path(script)
        return _output(["verify", "--quiet", change, str(path), *arguments], path.parent, timeout_s)

    def calibrate(self, file: str, timeout_s: int = 120) -> Any:
        """Time the operators of a recording on this machine, which predictions for its CPU use."""
        path = self._recordings.path(file)
        return _output(["calibrate", str(path)], path.parent, timeout_s)


def _output(words: list[str], folder: Path, timeout_s: int) -> dict[str, Any]:
    """What a command of stepscope wrote; on a timeout its whole process group is ended."""
    with subprocess.Popen(
        own_command("stepscope", *words),
        cwd=folder,
        stdin=subprocess.DEVNULL,  # ours is the client's
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            return {"exit_code": None, "timed_out_after_s": timeout_s, "output_end": text[-_TAIL:]}
    return {"exit_code": process.returncode, "output_end": text[-_TAIL:]}
