"""`stepscope.open`: from a file or a folder of ranks to an annotated trace, by way of the cache."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import IngestError
from stepscope.trace import cache as trace_cache
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor

Progress = Callable[[int, int], None]
Model = Mapping[str, Any] | None
_MADE_BY = ("ingest", "trace", "annotate")
_MERGED = (
    "several processes use the same correlation ids, as in a file that was merged from the traces "
    "of several ranks: what launched what is not sure; open a folder with the ranks' own files"
)


def open(
    path: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda done, total: None,
    cache: bool = True,
) -> Trace:
    """Open a capture, any supported trace file, or a folder with a file for each rank.

    Args:
        path: the file or folder.
        model: a JSON file with the model tree, used where the trace names no module itself.
        executor: where the files of a folder are read; by default processes on this machine.
        progress: called with the bytes read so far and the bytes in all.
        cache: keep the result, and use what was kept of the same file.

    Returns:
        The trace with all its tables.

    Raises:
        IngestError: if it cannot be read as a trace.

    Example:
        >>> trace = stepscope.open("train.stepscope")  # doctest: +SKIP
        >>> trace.query("select step, end_ns - start_ns from steps")  # doctest: +SKIP
    """
    if not os.fspath(path):
        raise IngestError("expected the path of a file or folder, found an empty one")
    source, tree = Path(path), _read_model(model)
    if source.is_dir():
        return _open_folder(source, tree, executor, progress, cache)
    return _kept(source, tree, cache) or open_file(source, tree, cache, progress)


def open_file(
    path: Path, model: Model, cache: bool, progress: Progress = lambda done, total: None
) -> Trace:
    """Read and annotate one file; a function of the file alone, so that any process can do it."""
    from stepscope.ingest import read

    key = _key(path, model) if cache else None
    trace = _annotated(read(path, _counted([path], progress)), model)
    if key and key == _key(path, model):  # else the file changed meanwhile
        trace_cache.keep(key, trace)
    return trace


def _annotated(trace: Trace, model: Model) -> Trace:
    """The trace with all that is derived, each rank for itself where a file holds several."""
    from stepscope.annotate import annotate
    from stepscope.annotate.merged import looks_merged, merged_ranks
    from stepscope.trace.concat import concat
    from stepscope.trace.ranks import of_rank
    from stepscope.trace.split import split

    merged = merged_ranks(trace)
    if merged:
        parts = zip(split(trace, merged.part), merged.ranks, strict=True)
        return concat([of_rank(annotate(part, model), rank) for part, rank in parts])
    told = [("merged_ranks", _MERGED, 1)] if looks_merged(trace) else []
    return annotate(trace, model).with_warnings(told)


def _read_model(path: str | os.PathLike[str] | None) -> Model:
    if path is None:
        return None
    from stepscope.ingest.model import read_model

    return read_model(Path(path))


def _counted(files: Iterable[Path], progress: Progress) -> Callable[[int], None]:
    """Turns sizes of pieces into bytes so far and in all."""
    total = sum(file.stat().st_size for file in files if file.exists())
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    return add


# -- cache


def _kept(path: Path, model: Model, cache: bool) -> Trace | None:
    key = _key(path, model) if cache else None
    trace = trace_cache.fetch(key) if key else None
    return trace.with_metadata(source=str(path)) if trace else None


def _key(path: Path, model: Model) -> trace_cache.Key | None:
    if not path.is_file():
        return None  # a pipe can be read but once
    try:
        return trace_cache.key_of(path, repr(model).encode(), _code())
    except OSError:
        return None  # reading the file will say why


def _code() -> bytes:
    """Stands for the code that makes a trace: whoever changes it need not think of the cache."""
    here = Path(__file__).parent
    files = sorted(file for name in _MADE_BY for file in (here / name).glob("*.py"))
    return repr([(file.name, zlib.crc32(file.read_bytes())) for file in files]).encode()


# -- folders


def _open_folder(
    folder: Path, model: Model, executor: Executor | None, progress: Progress, cache: bool
) -> Trace:
    from stepscope.ingest.folder import trace_files
    from stepscope.parallel import on_each

    files, warnings = trace_files(folder)
    found = {file: trace for file in files if (trace := _kept(file, model, cache))}
    waiting = [file for file in files if file not in found]
    add = _counted(waiting, progress)
    work = partial(open_file, model=model, cache=cache)
    made = on_each(waiting, work, executor, lambda file: add(file.stat().st_size))
    failed = [error for error in made.values() if isinstance(error, IngestError)]
    warnings += [("unreadable_file", str(error), 1) for error in failed]
    found |= {file: trace for file, trace in made.items() if isinstance(trace, Trace)}
    if not found:
        raise failed[0]
    traces = {file: found[file] for file in files if file in found}
    return _joined(traces).with_metadata(source=str(folder)).with_warnings(warnings)


def _joined(traces: Mapping[Path, Trace]) -> Trace:
    """The ranks of the files as one trace; a file of several ranks alone is that already."""
    merged = [file for file, trace in traces.items() if len(trace.metadata.ranks) > 1]
    if len(merged) == len(traces):
        first, *others = traces
        return traces[first].with_warnings(_left_out(others))
    single = {file: trace for file, trace in traces.items() if file not in merged}
    return _joined_ranks(single).with_warnings(_left_out(merged))


def _left_out(merged: Iterable[Path]) -> list[tuple[str, str, int]]:
    """Whoever merged the traces of the ranks may have put the file beside theirs."""
    said = "holds several ranks, and is not read beside other files"
    return [("merged_file", f"{file.name} {said}", 1) for file in merged]


def _joined_ranks(traces: Mapping[Path, Trace]) -> Trace:
    from stepscope.annotate.clocks import compare_clocks
    from stepscope.ingest.folder import number_ranks
    from stepscope.trace.concat import concat
    from stepscope.trace.ranks import of_rank

    ranks, warnings = number_ranks(list(traces), [trace.metadata for trace in traces.values()])
    ranked = sorted(zip(ranks, traces.values(), strict=True), key=lambda pair: pair[0])
    clocks = compare_clocks([trace for _, trace in ranked])
    joined = concat([of_rank(trace, rank) for rank, trace in ranked], clocks.ahead_ns)
    return joined.with_warnings([*warnings, *clocks.warnings([rank for rank, _ in ranked])])
