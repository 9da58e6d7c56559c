"""`stepscope cache`: show or clear cached data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stepscope.faces.terminal.output import show_answer

_KINDS = ("traces", "calibrations", "collectors")


@click.command()
@click.argument("kinds", metavar=f"[{'|'.join(_KINDS)}]...", nargs=-1, type=click.Choice(_KINDS))
@click.option("--clear", is_flag=True, help="Delete the data.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cache(kinds: tuple[str, ...], clear: bool, as_json: bool) -> None:
    """Show or clear cached data; all kinds by default.

    \b
    traces        tables of opened files; the least recently used are deleted first
    calibrations  benchmarks of `stepscope calibrate`
    collectors    compiled extensions of `stepscope run --contexts`

    $STEPSCOPE_CACHE sets the folder (`off` disables the cache of traces and calibrations),
    $STEPSCOPE_CACHE_BYTES the size limit for traces, $STEPSCOPE_BUILDS the folder of collectors.
    """
    rows = [_row(kind, clear) for kind in kinds or _KINDS]
    show_answer(rows, map(_line, rows), as_json)


def _line(row: dict[str, Any]) -> str:
    from stepscope.trace.cache import limit_bytes

    words = f"{row['entries']}{' deleted' * row['deleted']}, {row['bytes'] / 1e6:.1f} MB"
    where = row["folder"] or "off ($STEPSCOPE_CACHE)"
    bound = f" of at most {limit_bytes() / 1e6:.0f} MB" if row["kind"] == "traces" else ""
    return f"{row['kind']:<14}{words}{bound}   {where}"


def _row(kind: str, clear: bool) -> dict[str, Any]:
    folder, paths = _kept(kind)
    size = sum(map(_bytes, paths))
    if clear:
        _delete(paths)
    return {
        "kind": kind,
        "entries": len(paths),
        "bytes": size,
        "deleted": clear,
        "folder": str(folder) if folder else None,
    }


def _kept(kind: str) -> tuple[Path | None, list[Path]]:
    if kind == "collectors":
        from stepscope.record.contexts import native_build as build

        return build.folder(), build.kept()
    from stepscope.models.calibration.calibration import kept_calibrations
    from stepscope.trace import cache as traces
    from stepscope.trace.cache_folder import cache_folder

    kept = traces.entries() if kind == "traces" else kept_calibrations()
    return cache_folder(), kept


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _delete(paths: Sequence[Path]) -> None:
    from stepscope.errors import TraceError
    from stepscope.trace import cache_folder as entry_folder

    for path in paths:
        try:
            if path.is_dir():
                entry_folder.remove(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise TraceError(f"cannot delete {path}: {error.strerror}") from error
