"""Compare what two versions of stepscope compute for every trace of a folder.

    PYTHONPATH=OLD/src python scripts/compare_numbers.py dump TRACES before.json
    PYTHONPATH=NEW/src python scripts/compare_numbers.py dump TRACES after.json
    python scripts/compare_numbers.py compare before.json after.json [OLD_KEY=NEW_KEY ...]

A dump holds the answers of `report`, `analyze`, `whatif --all` and `memory` as JSON, and one
checksum per column of every table. `WHATIF_ALL=--rank` is for versions before 0.1.0, whose option
had that name.

`compare` counts what is identical. It prints each group of differing values once: the key, its
traces, and the first pair of values. Sentences are left out, since they may be rewritten. Items of
lists are matched by their name, path or number, not by their place. OLD_KEY=NEW_KEY renames the
last part of a key of the old version (`busy_utilisation=busy_utilization`).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUFFIXES = (".json", ".json.gz", ".xplane.pb", ".pickle", ".sqlite")
WHATIF_ALL = os.environ.get("WHATIF_ALL", "--all")
COMMANDS = (["report"], ["analyze"], ["whatif", WHATIF_ALL], ["memory"])
IDENTITIES = ("path", "changes", "name", "stage", "device", "kind", "rule", "rank", "step")
Leaves = dict[str, Any]


def main() -> int:
    """Run the part that the first argument names."""
    match sys.argv[1:]:
        case ["dump", traces, out]:
            Path(out).write_text(json.dumps(dump(Path(traces)), indent=1))
            return 0
        case ["compare", before, after, *renamed]:
            sides = [json.loads(Path(name).read_text()) for name in (before, after)]
            return compare(*sides, dict(pair.split("=") for pair in renamed))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


# -- dump


def dump(traces: Path) -> dict[str, Any]:
    """The answers for every trace below `traces`, by file, then by command."""
    files = sorted(file for file in traces.rglob("*") if file.name.endswith(SUFFIXES))
    folders = [path for path in (traces, *traces.iterdir()) if len(list(path.glob("rank*"))) > 1]
    return {str(path.relative_to(traces)): of_trace(path) for path in [*files, *folders]}


def of_trace(path: Path) -> dict[str, Any]:
    """The answers for one trace."""
    print(path, file=sys.stderr)
    answers = {command[0]: of_command(command, path) for command in COMMANDS}
    return {**answers, "tables": tables(path)}


def of_command(command: list[str], path: Path) -> Any:
    """What a command prints with `--json`, flat; for a failure its exit code."""
    name, *options = command
    call = [sys.executable, "-m", "stepscope", name, str(path), *options, "--json", "--no-cache"]
    if name == "memory":  # it has no such option in every version
        call.remove("--no-cache")
    run = subprocess.run(call, capture_output=True, text=True, check=False)
    return dict(leaves(json.loads(run.stdout))) if run.returncode == 0 else run.returncode


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each value below a JSON value with its key, but no sentence."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for name, inner in zip(item_names(value), value, strict=True):
            yield from leaves(inner, f"{key}[{name}]")
    elif not (isinstance(value, str) and " " in value):
        yield key, value


def item_names(items: list[Any]) -> list[str]:
    """What names each item of a list: a field that identifies it, else its place."""
    found = [_identity(item) for item in items]
    seen = Counter[str]()
    names = []
    for place, name in enumerate(found):
        name = str(place) if name is None else name
        names.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _identity(item: Any) -> str | None:
    if not isinstance(item, dict):
        return None
    field = next((field for field in IDENTITIES if item.get(field) is not None), None)
    return None if field is None else f"{field} {item[field]}"


def tables(path: Path) -> dict[str, Any]:
    """Rows and a checksum per column of every table."""
    import stepscope

    try:
        trace = stepscope.open(path, cache=False)
        names = trace.query("select table_name from information_schema.tables order by 1")
        sums = {name: checksums(trace, name) for name in names.column(0).to_pylist()}
        return dict(leaves(sums))
    except stepscope.errors.StepscopeError as error:
        return {"error": type(error).__name__}


def checksums(trace: Any, table: str) -> dict[str, Any]:
    """Rows of a table, and a checksum per column that does not depend on the rows' order."""
    columns = trace.query(f'select * from "{table}" limit 0').column_names
    sums = ", ".join(f'sum(hash("{name}") % 1000003) as "{name}"' for name in columns)
    row = trace.query(f'select count(*) as "count(*)", {sums} from "{table}"').to_pylist()[0]
    return {name: str(value) for name, value in row.items()}


# -- compare


def compare(before: dict[str, Any], after: dict[str, Any], renamed: dict[str, str]) -> int:
    """Print what differs, in groups; 1 if anything does."""
    total, failed = Counter[str](), False
    for command in ("report", "analyze", "whatif", "memory", "tables"):
        groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for trace in sorted({*before, *after}):
            old, new = (_flat(side.get(trace, {}).get(command)) for side in (before, after))
            for kind, key, pair in differing(rename(old, renamed), new):
                total[kind] += 1
                if kind != "identical":
                    groups[kind, pattern(key)][trace].append(f"{key}: {pair}")
        failed |= any(kind in ("changed", "gone") for kind, _ in groups)
        _print(command, groups)
    print(", ".join(f"{count:,} {kind}" for kind, count in total.items()))
    return int(failed)


def _flat(answer: Any) -> Leaves:
    return answer if isinstance(answer, dict) else {"exit code": answer}


def rename(found: Leaves, renamed: dict[str, str]) -> Leaves:
    """The values with the last part of their keys renamed."""
    heads = ((key.rpartition("."), value) for key, value in found.items())
    return {head + dot + renamed.get(last, last): value for (head, dot, last), value in heads}


def differing(before: Leaves, after: Leaves) -> Iterator[tuple[str, str, str]]:
    """For each key: identical, changed, gone or new, and both values."""
    for key in sorted({*before, *after}):
        if key not in after:
            yield "gone", key, f"{before[key]}"
        elif key not in before:
            yield "new", key, f"{after[key]}"
        elif same(before[key], after[key]):
            yield "identical", key, ""
        else:
            yield "changed", key, f"{before[key]} → {after[key]}"


def same(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of a sum in another order."""
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pattern(key: str) -> str:
    """A key without what names the items of its lists."""
    parts, depth = [], 0
    for character in key:
        depth -= character == "]"
        if depth == 0:
            parts.append(character)
        depth += character == "["
    return "".join(parts)


def _print(command: str, groups: dict[tuple[str, str], dict[str, list[str]]]) -> None:
    for (kind, key), traces in sorted(groups.items()):
        count = sum(map(len, traces.values()))
        print(f"{command} {kind} {key}: {count} in {', '.join(traces)}")
        print(f"    {next(iter(traces.values()))[0]}")


if __name__ == "__main__":
    sys.exit(main())
