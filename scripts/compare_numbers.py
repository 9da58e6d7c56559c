"""Compare what two versions of stepscope compute for every recording below some folders.

    PYTHONPATH=OLD/src python scripts/compare_numbers.py dump FOLDER... before.json
    PYTHONPATH=NEW/src python scripts/compare_numbers.py dump FOLDER... after.json
    python scripts/compare_numbers.py compare before.json after.json [OLD_KEY=NEW_KEY ...]

A dump holds, for each file and each folder of ranks, the JSON of `report`, `analyze`,
`whatif --all`, `memory`, `contexts`, `ranks` and `diff` (of two files in one folder), the answers
that the page asks for first, and one checksum per column of every table. `--only TEXT` takes the
recordings whose path contains it.

`compare` counts what is identical. It prints each group of differing values once: the key, its
traces, and the first pair of values. Sentences are left out, since they may be rewritten. Items of
lists are matched by their name, path or number, not by their place. OLD_KEY=NEW_KEY renames the
last part of a key of the old version (`busy_utilisation=busy_utilization`). Only recordings and
commands that both dumps hold are compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import runpy
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SUFFIXES = (".json", ".json.gz", ".xplane.pb", ".pickle", ".sqlite", ".stepscope")
COMMANDS = {
    "report": ["report", "FILE", "--json", "--no-cache"],
    "analyze": ["analyze", "FILE", "--json", "--no-cache"],
    "whatif": ["whatif", "FILE", "--all", "--json", "--no-cache"],
    "memory": ["memory", "FILE", "--json"],
    "contexts": ["contexts", "FILE", "--json", "--least", "2", "--no-cache"],
}
PAGE = (
    *("overview", "levels", "axis", "modules", "kernels", "collectives", "arrivals", "findings"),
    *("contexts", "context_findings", "memory", "changes", "step"),
)
IDENTITIES = ("path", "changes", "name", "stage", "device", "kind", "rule", "rank", "step")
PROCESSES = 2  # recordings that are read at the same time
LONGEST_ROWS = 400  # of one list: longer ones add time, not protection
Leaves = dict[str, Any]


def main() -> int:
    """Run the part that the first argument names."""
    match sys.argv[1:]:
        case ["dump", *folders, "--only", text, out]:
            Path(out).write_text(json.dumps(dump([Path(name) for name in folders], text), indent=1))
        case ["dump", *folders, out]:
            Path(out).write_text(json.dumps(dump([Path(name) for name in folders]), indent=1))
        case ["one", path]:
            json.dump(of_recording(Path(path)), sys.stdout)
        case ["compare", before, after, *renamed]:
            sides = [json.loads(Path(name).read_text()) for name in (before, after)]
            return compare(*sides, dict(pair.split("=") for pair in renamed))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


# -- dump


def dump(folders: list[Path], text: str = "") -> dict[str, Any]:
    """The answers for every recording below `folders`, by path, then by command."""
    named = {f"{top.name}/{path.relative_to(top)}": path for top in folders for path in inside(top)}
    wanted = {name: path for name, path in sorted(named.items()) if text in name}
    with ThreadPoolExecutor(PROCESSES) as pool:
        return dict(zip(wanted, pool.map(in_a_process, wanted.values()), strict=True))


def inside(top: Path) -> Iterator[Path]:
    """Every recording below a folder, and every folder with a file for each rank."""
    for path in sorted(top.rglob("*")):
        is_job = path.is_dir() and len(list(path.glob("*rank*"))) > 1
        if is_job or (path.is_file() and path.name.endswith(SUFFIXES)):
            yield path


def in_a_process(path: Path) -> dict[str, Any]:
    """The answers for one recording; a process that dies is an answer."""
    call = [sys.executable, __file__, "one", str(path)]
    run = subprocess.run(call, capture_output=True, text=True, check=False)
    print(path, run.returncode, file=sys.stderr, flush=True)
    if run.returncode:
        return {"process": {"exit code": run.returncode, "error": run.stderr[-300:]}}
    answers: dict[str, Any] = json.loads(run.stdout)
    return answers


def of_recording(path: Path) -> dict[str, Any]:
    """The answers for one recording."""
    commands = dict(COMMANDS)
    if path.is_dir():
        commands["ranks"] = ["ranks", "FILE", "--json"]
    after = next((file for file in inside(path.parent) if file > path and file.is_file()), None)
    if after is not None and path.is_file() and after.suffix == path.suffix:
        commands["diff"] = ["diff", "FILE", str(after), "--json", "--no-cache"]
    answers = {name: of_command(call, path) for name, call in commands.items()}
    return {**answers, "page": page(path), "tables": tables(path)}


def of_command(call: list[str], path: Path) -> Any:
    """What a command prints as JSON, flat; for a failure its exit code."""
    out, saved = io.StringIO(), sys.argv
    sys.argv = ["stepscope", *(str(path) if word == "FILE" else word for word in call)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_module("stepscope", run_name="__main__", alter_sys=True)
        code: Any = 0
    except SystemExit as error:
        code = error.code
    finally:
        sys.argv = saved
    return dict(leaves(json.loads(out.getvalue()))) if code in (0, None) else code


def page(path: Path) -> dict[str, Any]:
    """What the page's server answers, by request."""
    call = [sys.executable, "-m", "stepscope", "view", str(path), "--no-browser", "--no-cache"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            assert run.stdout is not None
            address = next(filter(None, map(_address, run.stdout)), None)
            return {} if address is None else dict(leaves(answers_of(*address)))
        finally:
            run.terminate()


def _address(line: str) -> tuple[str, str] | None:
    found = re.search(r"(http://[\d.]+:\d+)/\S*token=([\w-]+)", line)
    return (found[1], found[2]) if found else None


def answers_of(server: str, token: str) -> dict[str, Any]:
    """The page's answers about the first open file, once it is read."""
    while True:
        file = ask(server, token, "traces")["traces"][0]
        if file["state"] != "loading":
            break
        time.sleep(0.05)
    if file["state"] != "ready":
        return {"state": file["state"]}
    return {name: ask(server, token, f"traces/{file['id']}/{name}") for name in PAGE}


def ask(server: str, token: str, request: str) -> Any:
    """One answer of the server; for a refusal its status."""
    address = urllib.request.Request(f"{server}/api/{request}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(address) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"status": error.code}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each value below a JSON value with its key, but no sentence."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}")
    elif isinstance(value, list):
        value = value[:LONGEST_ROWS]
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
    commands = {command for side in (before, after) for answers in side.values() for command in answers}
    for command in sorted(commands):
        groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for trace in sorted({*before} & {*after}):
            sides = [side[trace].get(command) for side in (before, after)]
            if None in sides and command != "process":
                continue
            old, new = map(_flat, sides)
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
