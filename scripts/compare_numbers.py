"""Compare the numbers of two versions of stepscope on every trace of a folder.

    PYTHONPATH=OLD/src python scripts/compare_numbers.py dump TRACES before.json
    PYTHONPATH=NEW/src python scripts/compare_numbers.py dump TRACES after.json
    python scripts/compare_numbers.py compare before.json after.json

A dump holds every number and key of `report`, `analyze` and `whatif --all` (`WHATIF_ALL=--rank` in
versions before 0.2) as JSON, and one
checksum per column of every table. Texts are left out: they may be rewritten, numbers may not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUFFIXES = (".json", ".json.gz", ".xplane.pb")
COMMANDS = (["report"], ["analyze"], ["whatif", os.environ.get("WHATIF_ALL", "--all")])


def main() -> int:
    """Run the part that the first argument names."""
    match sys.argv[1:]:
        case ["dump", traces, out]:
            Path(out).write_text(json.dumps(dump(Path(traces)), indent=1))
            return 0
        case ["compare", before, after]:
            return compare(*(json.loads(Path(name).read_text()) for name in (before, after)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def dump(traces: Path) -> dict[str, Any]:
    """The numbers of every trace below `traces`, by file, then by command."""
    files = sorted(file for file in traces.rglob("*") if file.name.endswith(SUFFIXES))
    folders = [folder for folder in traces.iterdir() if len(list(folder.glob("rank*"))) > 1]
    return {str(path.relative_to(traces)): of_trace(path) for path in [*files, *folders]}


def of_trace(path: Path) -> dict[str, Any]:
    """The numbers of one trace."""
    print(path, file=sys.stderr)
    answers = {" ".join(command): of_command(command, path) for command in COMMANDS}
    return {**answers, "tables": tables(path)}


def of_command(command: list[str], path: Path) -> Any:
    """What a command prints with `--json`, its texts left out; for a failure its exit code."""
    name, *options = command
    call = [sys.executable, "-m", "stepscope", name, str(path), *options, "--json", "--no-cache"]
    run = subprocess.run(call, capture_output=True, text=True, check=False)
    return dict(numbers(json.loads(run.stdout))) if run.returncode == 0 else run.returncode


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each number below a JSON value, with its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from numbers(inner, f"{key}[{place}]")
    elif not isinstance(value, str):
        yield key, value


def tables(path: Path) -> dict[str, Any]:
    """Rows and a checksum per column of every table."""
    import stepscope

    try:
        trace = stepscope.open(path, cache=False)
        names = trace.query("select table_name from information_schema.tables order by 1")
        return {name: checksums(trace, name) for name in names.column(0).to_pylist()}
    except stepscope.errors.StepscopeError as error:
        return {"error": type(error).__name__}


def checksums(trace: Any, table: str) -> dict[str, Any]:
    """Rows of a table, and a checksum per column that does not depend on the rows' order."""
    columns = trace.query(f'select * from "{table}" limit 0').column_names
    sums = ", ".join(f'sum(hash("{name}") % 1000003) as "{name}"' for name in columns)
    row = trace.query(f'select count(*) as "count(*)", {sums} from "{table}"').to_pylist()[0]
    return {name: str(value) for name, value in row.items()}


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print each number that differs; 1 if any does."""
    differences = list(differing(before, after, ""))
    for line in differences:
        print(line)
    print(f"{len(differences)} differences in {len(before)} traces")
    return int(bool(differences))


def differing(before: Any, after: Any, key: str) -> Iterator[str]:
    """One line for each leaf that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from differing(before.get(name), after.get(name), f"{key} {name}")
    elif before != after:
        yield f"{key}: {before} -> {after}"


if __name__ == "__main__":
    sys.exit(main())
