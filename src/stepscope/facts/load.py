"""`stepscope.open`: loads a file or a folder of ranks as an annotated trace, using the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.base.plugins import OUTSIDE
from stepscope.errors import IngestError
from stepscope.trace import cache as trace_cache
from stepscope.trace.missing_records import MERGED_RANKS

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from stepscope.trace.trace import Trace, WarningRow

Progress = Callable[[int, int], None]
Model = Mapping[str, Any] | None
Captures = Mapping[str, Any] | None  # of CUDA graphs, as a property of a trace
# Those that make a trace of a file.
_PACKAGES = ("base", "read", "trace", "facts/annotate", "facts/correct", "facts/contexts")
_SOURCES = (".py", ".cpp", ".h", ".json")
_INSTALLED = {"site-packages", "dist-packages"}
_MOST_FAILURES = 8  # of a folder, told one by one; chosen: all fit on a screen
_MERGED = (
    "several processes use the same correlation ids, as in a file merged from several ranks; open a "
    "folder with one file per rank instead"
)


def open(
    path: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    as_recorded: bool = False,
    range_name: str = "",
    graph_capture: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda done, total: None,
    cache: bool = True,
) -> Trace:
    """Open a capture, any supported trace file, or a folder with one file per rank.

    Args:
        path: the file or folder.
        model: a JSON file with the model tree, used if the trace names no module itself.
        as_recorded: keep the times of captures as recorded; by default the cost of recording is
            removed where it is known (`Metadata.recording_cost`).
        range_name: the name of ranges, with or without a number: the marked steps in them are the
            steps, or each of them is one. By default the recorder's marks count, or names in use.
        graph_capture: a trace that shows the capture of the CUDA graphs that the file replays.
        executor: reads the files of a folder; by default processes on this machine.
        progress: called with the bytes read so far and the total.
        cache: whether to use and update the trace cache.

    Returns:
        The annotated trace.

    Raises:
        IngestError: if the path cannot be read as a trace, or has no such range.

    Example:
        >>> trace = stepscope.open("train.stepscope")  # doctest: +SKIP
        >>> trace.query("select step, end_ns - start_ns from steps")  # doctest: +SKIP
    """
    from stepscope.trace.trace import Trace

    Trace.picture = _picture
    if not os.fspath(path):
        raise IngestError("the path is empty; give a file or folder")
    source, tree = Path(path), _read_model(model)
    captures = _read_captures(Path(graph_capture), cache) if graph_capture else None
    how: dict[str, Any] = {"as_recorded": as_recorded, "range_name": range_name, "captures": captures}
    if source.is_dir():
        return _open_folder(source, tree, how, executor, progress, cache)
    key = _trace_key(source, tree, *how.values()) if cache else None
    return _cached(source, key) or open_file(source, tree, cache, progress, **how)


def open_file(
    path: Path,
    model: Model,
    cache: bool,
    progress: Progress = lambda done, total: None,
    as_recorded: bool = False,
    range_name: str = "",
    captures: Captures = None,
) -> Trace:
    """Read and annotate one file; depends on it and `captures` alone, so any process can run it."""
    from stepscope.read import read
    from stepscope.trace.portable import REDACTED

    key = _trace_key(path, model, as_recorded, range_name, captures) if cache else None
    trace = read(path, _byte_counter([path], progress))
    if trace.metadata.properties.get(REDACTED):
        refused: dict[str, object] = {"--as-recorded": as_recorded, "--range": range_name}
        refused |= {"--model": model, "--graph-capture": captures}
        return _as_redacted(trace, [option for option, value in refused.items() if value])
    trace = _with_chosen_range(trace, range_name)
    if captures:
        trace = trace.with_metadata(properties={**trace.metadata.properties, **captures})
    trace = _annotated(trace, model, as_recorded)
    if trace.metadata.capture and len(trace["contexts"]):
        trace = _with_windows(trace, path)
    kept = OUTSIDE not in trace.metadata.properties
    if key and kept and key == _trace_key(path, model, as_recorded, range_name, captures):  # else it changed
        trace_cache.keep(key, trace)
    return trace


def _as_redacted(trace: Trace, options: list[str]) -> Trace:
    """A redacted trace as it is: its facts were derived from names that it no longer has."""
    if options:
        raise IngestError(
            f"{trace.metadata.source} is redacted; give {options[0]} to stepscope redact instead"
        )
    return trace


def _with_chosen_range(trace: Trace, range_name: str) -> Trace:
    """The trace with the name of the ranges that the user asks for."""
    from stepscope.facts.annotate.steps.ranges import CHOSEN, chosen_ranges, longest_ranges

    if not range_name:
        return trace
    chosen = trace.with_metadata(properties={**trace.metadata.properties, CHOSEN: range_name})
    if not len(chosen_ranges(chosen)):
        known = ", ".join(map(repr, longest_ranges(trace))) or "none"
        raise IngestError(f"no range is called {range_name!r}; the longest ranges of the file: {known}")
    return chosen


def _read_captures(path: Path, cache: bool) -> Captures:
    """The property of a trace that has what another one shows of captured CUDA graphs.

    Raises IngestError if that shows none.
    """
    from stepscope.facts.annotate.links.cuda_graphs import recorded_captures, with_captures

    captured = open(path, cache=cache)
    if (captures := recorded_captures(captured)).graphs:
        return with_captures(captured.with_metadata(properties={}), captures).metadata.properties
    hint = "give a trace that was recorded while the graph was captured"
    raise IngestError(f"{path} shows no capture of a CUDA graph; {hint}")


def _annotated(trace: Trace, model: Model, as_recorded: bool) -> Trace:
    """The annotated trace; if a file holds several ranks, each is annotated separately."""
    from stepscope.facts.annotate import annotate
    from stepscope.facts.annotate.ranks import looks_merged, merged_ranks
    from stepscope.facts.correct import without_recording_cost
    from stepscope.trace.concat import concat, of_rank, split

    merged = merged_ranks(trace)
    if merged:
        parts = zip(split(trace, merged.part), merged.ranks, strict=True)
        return concat([of_rank(annotate(part, model), rank) for part, rank in parts])
    if looks_merged(trace):
        trace = trace.with_warnings([(MERGED_RANKS, _MERGED, 1)])
    if trace.metadata.capture and not as_recorded:
        trace = without_recording_cost(trace)
    return annotate(trace, model)


def _with_windows(trace: Trace, path: Path) -> Trace:
    """A capture of contexts with the compiled operations of its windows, where it has any."""
    from stepscope.facts.contexts.recorded_windows import with_windows
    from stepscope.read.recorded.capture_file import read_windows

    found = read_windows(path)
    if found is None:
        return trace
    windows = [_annotated(window, None, False) for window in found.traces]
    trace = with_windows(trace, windows, found.recorded_s, found.elapsed_s)
    return trace.with_warnings(found.warnings)


def key_of_text(
    path: Path, model: str | None, as_recorded: bool, what: tuple[Any, ...], packages: Iterable[str]
) -> trace_cache.Key | None:
    """The key of a text that is derived of a file, for `cache.keep_text`.

    Args:
        packages: of the code that derives it, besides what opens the file.

    Returns:
        The key; None if the file cannot be read again.
    """
    return _key(path, (_read_model(model), as_recorded, *what), (*_PACKAGES, *packages))


def _read_model(path: str | os.PathLike[str] | None) -> Model:
    if path is None:
        return None
    from stepscope.read.model_json import read_model

    return read_model(Path(path))


def _byte_counter(files: Iterable[Path], progress: Progress) -> Callable[[int], None]:
    """A function that adds up sizes of pieces and reports the bytes so far and the total."""
    total = sum(file.stat().st_size for file in files if file.exists())
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    return add


# -- cache


def _cached(path: Path, key: trace_cache.Key | None) -> Trace | None:
    trace = trace_cache.fetch(key) if key else None
    return trace.with_metadata(source=str(path)) if trace else None


def _key(path: Path, options: tuple[Any, ...], packages: Iterable[str]) -> trace_cache.Key | None:
    if not path.is_file():
        return None  # a pipe can be read only once
    try:
        return trace_cache.key_of(path, repr(options).encode(), _code(tuple(packages)))
    except OSError:
        return None  # reading the file will report the error


def _trace_key(path: Path, model: Model, *how: bool | str | Captures) -> trace_cache.Key | None:
    return _key(path, (model, *how), _PACKAGES)


@lru_cache
def _code(packages: tuple[str, ...]) -> bytes:
    """A fingerprint of the code and data that compute a result, besides the version.

    Only a checkout has one: times and sizes of its files. Installed code changes with the version.
    """
    here = Path(__file__).parents[1]
    if _INSTALLED & {*here.parts}:
        return b""
    inside = (file for name in packages for file in (here / name).rglob("*"))
    files = sorted(file for file in (*here.glob("*.py"), *inside) if file.suffix in _SOURCES)
    states = ((file, file.stat()) for file in files)
    return repr([(str(file), state.st_mtime_ns, state.st_size) for file, state in states]).encode()


# -- folders


def _open_folder(
    folder: Path,
    model: Model,
    how: dict[str, Any],
    executor: Executor | None,
    progress: Progress,
    cache: bool,
) -> Trace:
    from stepscope.base.parallel import on_each
    from stepscope.read.rank_folder import trace_files

    files, warnings = trace_files(folder)
    keys = {file: _trace_key(file, model, *how.values()) if cache else None for file in files}
    found = {file: trace for file, key in keys.items() if (trace := _cached(file, key))}
    uncached = [file for file in files if file not in found]
    sizes = {file: file.stat().st_size for file in uncached}
    add = _byte_counter(uncached, progress)
    work = partial(open_file, model=model, cache=cache, **how)
    results = on_each(sizes, work, executor, lambda file, _: add(sizes[file]))
    failed = [error for error in results.values() if isinstance(error, IngestError)]
    warnings += _unreadable(failed)
    found |= {file: trace for file, trace in results.items() if not isinstance(trace, IngestError)}
    if not found:
        raise failed[0]
    traces = {file: found[file] for file in files if file in found}
    return _joined(traces).with_metadata(source=str(folder)).with_warnings(warnings)


def _unreadable(failed: Sequence[IngestError]) -> list[WarningRow]:
    """A warning for each of the first files, one for all others."""
    rows = [("unreadable_file", str(error), 1) for error in failed[:_MOST_FAILURES]]
    more = len(failed) - len(rows)
    return rows + ([("unreadable_file", f"and {more} more files that cannot be read", more)] if more else [])


def _joined(traces: Mapping[Path, Trace]) -> Trace:
    """The ranks of the files as one trace; a file with several ranks is used alone."""
    merged = [file for file, trace in traces.items() if len(trace.metadata.ranks) > 1]
    if len(merged) == len(traces):
        first, *others = traces
        return traces[first].with_warnings(_skipped(others))
    single = {file: trace for file, trace in traces.items() if file not in merged}
    return _joined_ranks(single).with_warnings(_skipped(merged))


def _skipped(merged: Iterable[Path]) -> list[WarningRow]:
    """Warnings about files of several ranks, which may repeat the other files' content."""
    from stepscope.read.rank_folder import skipped

    message = "files of several ranks are skipped, since the folder has others"
    return skipped("merged_file", message, (file.name for file in merged))


def _joined_ranks(files: Mapping[Path, Trace]) -> Trace:
    from stepscope.facts.annotate.ranks import compare_clocks
    from stepscope.read.rank_folder import number_ranks
    from stepscope.trace.concat import concat, of_rank

    traces, skipped = _without_earlier_cycles(files)
    ranks, warnings = number_ranks(list(traces), [trace.metadata for trace in traces.values()])
    ranked = sorted(zip(ranks, traces.values(), strict=True), key=lambda pair: pair[0])
    clocks = compare_clocks([trace for _, trace in ranked])
    joined = concat([of_rank(trace, rank) for rank, trace in ranked], clocks.ahead_ns)
    warnings += skipped + clocks.warnings([rank for rank, _ in ranked])
    return joined.with_warnings(warnings)


def _without_earlier_cycles(traces: Mapping[Path, Trace]) -> tuple[dict[Path, Trace], list[WarningRow]]:
    """The last recording of each process, and a warning about the others."""
    from stepscope.facts.annotate.ranks import last_cycles, recording_of
    from stepscope.read.rank_folder import rank_of, skipped

    files = list(traces)
    known = [(file.parent, rank_of(file, trace.metadata)) for file, trace in traces.items()]
    last = last_cycles(known, [recording_of(trace) for trace in traces.values()])
    kept = {file: traces[file] for row, file in enumerate(files) if last[row] == row}
    message = "one process wrote several files, one after the other: the last is read; to read another, "
    earlier = (file.name for file in files if file not in kept)
    return kept, skipped("earlier_cycle", f"{message}give it alone", earlier)


def _picture(trace: Trace) -> str | None:
    """The report of a trace with steps, as notebooks show it."""
    from stepscope.facts.annotate.steps.step_table import ranks_with_steps
    from stepscope.facts.summary.report_facts import summarize
    from stepscope.facts.summary.report_text import picture

    if not len(trace["steps"]):
        return None
    return picture([summarize(trace, rank) for rank in ranks_with_steps(trace)])
