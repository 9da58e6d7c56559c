"""What is fuzzed: each place where bytes of others come in, with the rule that must hold there.

A check raises nothing where a file is read or refused with one line, and an exception otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import struct
import sys
import tempfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
from mutations import (
    Mutate,
    mutate_bytes,
    mutate_json,
    mutate_messages,
    mutate_pickle,
    mutate_pickled,
    mutate_protobuf,
    mutate_sqlite,
    mutate_text,
    mutate_zip,
)

from stepscope.errors import StepscopeError
from stepscope.facts.annotate import annotate
from stepscope.read import read
from stepscope.read.chrome import trace_events
from stepscope.read.chrome.decode import EventReader
from stepscope.read.memory_snapshot import memory_snapshot
from stepscope.read.model_json import parse_model, read_model

CORPUS = Path(__file__).parent / "corpus"
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "read"))  # writers of small files
Check = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        check: raises for an input that breaks the rule.
        mutates: how to damage an input, besides by bytes.
        folder: of its seeds in the corpus.
        sources: whose lines count as its coverage, files and folders of `src/stepscope`.
    """

    check: Check
    mutates: tuple[Mutate, ...]
    folder: str
    sources: tuple[str, ...]

    def seeds(self) -> list[Path]:
        """The files of the corpus."""
        return sorted((CORPUS / self.folder).iterdir())


def check_message(error: StepscopeError) -> None:
    """A message is one line."""
    if "\n" in str(error):
        raise AssertionError(str(error))


@contextlib.contextmanager
def file_of(data: bytes, name: str = "file") -> Iterator[Path]:
    """A file of some bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


def check_file(data: bytes) -> None:
    """Read and annotate a file of some bytes."""
    with file_of(data) as path:
        try:
            trace = read(path)
            annotate(trace, trace.metadata.model or None)
        except StepscopeError as error:
            check_message(error)


def check_tolerant(data: bytes) -> None:
    """The same where all trace events are read as odd ones are."""
    odd = partial(EventReader, decode=lambda text, size: None)
    with mock.patch.object(trace_events, "EventReader", odd):
        check_file(data)


def check_snapshot_in_python(data: bytes) -> None:
    """The same of a memory snapshot without the compiled reader of its history."""
    with mock.patch.object(memory_snapshot, "CompiledHistory", return_value=None):
        check_file(data)


def check_member(name: str) -> Check:
    """A check of one member of a capture whose others are sound."""

    def check(data: bytes) -> None:
        parts = {
            "manifest.json": (CORPUS / "manifest/plain.json").read_bytes(),
            "modules.json": json.dumps({"roots": []}).encode(),
            "trace.json": (CORPUS / "file/kineto.json").read_bytes(),
            name: data,
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for member, content in parts.items():
                archive.writestr(member, content)
        check_file(file.getvalue())

    return check


def check_model(data: bytes) -> None:
    """A file given with `--model`."""
    try:
        parse_model(data)
    except StepscopeError as error:
        check_message(error)
        return
    check_member("modules.json")(data if b'"roots"' in data else b'{"roots":[' + data + b"]}")


def check_program(data: bytes) -> None:
    """A compiled program in an otherwise sound XLA profile."""
    from test_any_xplane import SAMPLE
    from xspaces import _Plane, message

    plane = _Plane("/host:metadata")
    plane.kinds["jit_step(1)"] = 1
    entry = message((5, plane.stat("Hlo Proto", data)))
    check_file(SAMPLE + message((1, plane.whole([], {"jit_step(1)": entry}))))


def check_onnx(data: bytes) -> None:
    """An ONNX file given with `--model`."""
    with file_of(data, "model.onnx") as path:
        try:
            tree = read_model(path)
        except StepscopeError as error:
            check_message(error)
            return
    check_member("modules.json")(json.dumps({"roots": [tree]}).encode())


def check_dump(data: bytes) -> None:
    """A dump of the flight recorder, and what it says of a job that hangs."""
    from stepscope.models.ranks.hangs import hang_of
    from stepscope.read.flight_recorder import read_dump

    with file_of(data, "nccl_trace_rank_0") as path:
        try:
            hang_of([read_dump(path)])
        except StepscopeError as error:
            check_message(error)


def check_execution_trace(data: bytes) -> None:
    """An execution trace, and what the graph of the trace of the same run makes of it."""
    from stepscope.graph import build_graph, simulate, with_execution_trace
    from stepscope.testing import drawn_trace

    calls = "".join(
        f"{thread} | {10 * n + at} {10 * n + at + 4} | {name} | Record_function_id={2 * n + at // 5 + 1}\n"
        for n in range(3)
        for at, thread, name in ((0, "main", "aten::mm"), (5, "worker", "aten::_foreach_add_"))
    )
    trace = annotate(drawn_trace(f"main | 0 40 | ProfilerStep#0\n{calls}"))
    with file_of(data, "et.json") as path:
        try:
            simulate(build_graph(with_execution_trace(trace, path)).check())
        except StepscopeError as error:
            check_message(error)


def check_watched(data: bytes) -> None:
    """A watched run: any bytes, or what a JSON text describes, as the recorder writes it."""
    from stepscope.facts.watched import bill_of, last_minute
    from stepscope.read.watched_run import read_watched_run

    with file_of(data, "run.watch") as path:
        with contextlib.suppress(
            ArithmeticError, ValueError, TypeError, LookupError, AttributeError, struct.error
        ):
            write_watched(json.loads(data), path)
        try:
            run = read_watched_run(path)
            last_minute(run, run.updated_unix_ns)
            bill_of(run)
        except StepscopeError as error:
            check_message(error)


def write_watched(described: Any, path: Path) -> None:
    """Write the run that a tree of JSON describes."""
    from stepscope.record.watch.watch_file import WatchFile

    file = WatchFile(path)
    try:
        for step in described["steps"]:
            file.add_step(step)
        file.put_text(described["facts"])
        file.put_samples(described["lines"], described["samples"])
    finally:
        file.close()


# -- commands

_COMMANDS = (
    ("report",),
    ("report", "--json"),
    ("analyze",),
    ("whatif", "--all"),
    ("contexts",),
    ("contexts", "--bottom-up"),
    ("memory",),
    ("ranks",),
    ("query", "select * from events"),
    ("report", "--html", "page.html"),
    ("report", "--svg", "page.svg"),
    ("diff",),
    ("contexts", "--format", "json"),
    ("analyze", "--json"),
)


def check_commands(data: bytes) -> None:
    """Two of the commands on a file; which, its bytes say."""
    number = zlib.crc32(data)
    with file_of(data) as path:
        for chosen in (number, number // 64):
            name, *options = _COMMANDS[chosen % len(_COMMANDS)]
            more = [str(path.with_name(one)) if one.startswith("page.") else one for one in options]
            files = [str(path)] * (2 if name == "diff" else 1)
            run_command(name, *files, *more)


def check_tables(data: bytes) -> None:
    """Two of the commands on a redacted capture."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", (CORPUS / "manifest/plain.json").read_bytes())
        archive.writestr("tables.msgpack", data)
    check_commands(file.getvalue())


def run_command(*arguments: str) -> None:
    """Run a command in this process; it ends as the command line lets it end."""
    from stepscope.faces.terminal.commands import stepscope

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            stepscope.main([*arguments, "--no-cache"], standalone_mode=False)
        except StepscopeError as error:
            check_message(error)
        except (click.ClickException, click.exceptions.Exit):
            pass
        except SystemExit as error:
            if error.code not in (None, 0, 1, 2):
                raise


# -- the page

_PORT = 8765


@cache
def _application() -> tuple[Any, str]:
    from stepscope.faces.page.app import make_app
    from stepscope.faces.page.guard import Token
    from stepscope.faces.page.open_files import Workbench

    folder = Path(tempfile.mkdtemp(prefix="stepscope-fuzz-"))
    (folder / "run.json").write_bytes((CORPUS / "commands/job.json").read_bytes())
    workbench = Workbench([folder / "run.json"])
    workbench.load(cache=False).join()
    token = Token()
    return make_app(workbench, token, _PORT), token.secret


def check_request(data: bytes) -> None:
    """A request line and headers; TOKEN is replaced by the right one. No answer is a failure."""
    app, token = _application()
    line, *headers = data.replace(b"TOKEN", token.encode()).split(b"\n")
    method, _, target = line.partition(b" ")
    path, _, query = target.partition(b"?")
    statuses: list[int] = []
    bodies = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return bodies.pop() if bodies else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "path": urllib.parse.unquote(path.decode("ascii", "ignore")),
        "root_path": "",
        "headers": [
            (name.strip().lower(), value.strip())
            for name, _, value in (header.partition(b":") for header in headers)
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", _PORT),
        "app": None,
    }
    asyncio.run(app(scope, receive, send))
    if len(statuses) != 1 or statuses[0] == 500:
        raise AssertionError(f"status {statuses}")


# -- the language server


class _Unmeasured:
    """Refuses to measure, as there is nothing to run."""

    async def __call__(self, *_: Any) -> Any:
        raise StepscopeError("nothing is measured")

    def describe_run(self, *_: Any) -> str:
        return ""

    def prepare(self) -> None: ...

    async def close(self) -> None: ...


class _Discarded:
    """A connection whose other end reads everything."""

    def __init__(self) -> None:
        self.transport = self

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def check_messages(data: bytes) -> None:
    """All that an editor sends on a connection; the token in it is `token`."""
    asyncio.run(_serve_messages(data))


async def _serve_messages(data: bytes) -> None:
    from stepscope.faces.editor.features import language_server
    from stepscope.faces.editor.start import connection_handler

    failures: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    writer: Any = _Discarded()
    make = partial(language_server, _Unmeasured())
    await connection_handler(make, "token")(reader, writer)
    for _ in range(3):
        await asyncio.sleep(0)
    for context in failures:
        raise context.get("exception") or AssertionError(str(context))


def check_alike(data: bytes) -> None:
    """The decoder of trace events and its oracle make the same of a file."""
    from test_decoders import CHUNKS, assert_alike

    assert_alike(data, chunk_bytes=CHUNKS[zlib.crc32(data) % len(CHUNKS)])


_CHROME = ("read/chrome", "read/byte_stream.py", "read/__init__.py")
_XPLANE = ("read/xplane",)
_SNAPSHOT = ("read/memory_snapshot",)
_RECORDED = ("read/recorded",)
_PICKLES = (mutate_pickle, mutate_pickled)
TARGETS: dict[str, Target] = {
    "file": Target(check_file, (mutate_json,), "file", _CHROME),
    "manifest": Target(check_member("manifest.json"), (mutate_json,), "manifest", _RECORDED),
    "tables": Target(check_tables, (mutate_bytes,), "tables", ("trace/portable.py",)),
    "contexts": Target(check_member("contexts.json"), (mutate_json,), "contexts", _RECORDED),
    "samples": Target(check_member("samples.json"), (mutate_json,), "samples", _RECORDED),
    "compiled": Target(check_member("compiled.json"), (mutate_json,), "compiled", _RECORDED),
    "model": Target(check_model, (mutate_json,), "model", ("read/model_json.py",)),
    "memory": Target(check_member("memory.json"), (mutate_json,), "memory", _RECORDED),
    "capture": Target(check_file, (mutate_zip,), "capture", _RECORDED),
    "odd events": Target(check_tolerant, (mutate_json,), "file", _CHROME),
    "both decoders": Target(check_alike, (mutate_json,), "file", _CHROME),
    "XLA profile": Target(check_file, (mutate_protobuf,), "xplane", _XPLANE),
    "XLA program": Target(check_program, (mutate_protobuf,), "program", _XPLANE),
    "Perfetto": Target(check_file, (mutate_protobuf,), "perfetto", ("read/perfetto",)),
    "Nsight Systems": Target(check_file, (mutate_sqlite,), "nsys", ("read/nsys",)),
    "memory snapshot": Target(check_file, _PICKLES, "snapshot", _SNAPSHOT),
    "snapshot in Python": Target(check_snapshot_in_python, _PICKLES, "snapshot", _SNAPSHOT),
    "flight recorder": Target(
        check_dump, (*_PICKLES, mutate_json), "dump", ("read/flight_recorder.py", "models/ranks/hangs.py")
    ),
    "execution trace": Target(
        check_execution_trace, (mutate_json,), "execution", ("read/execution_trace.py", "graph/data_flow.py")
    ),
    "watched run": Target(
        check_watched,
        (mutate_json,),
        "watched",
        ("read/watched_run.py", "facts/watched.py", "facts/slow_steps.py", "facts/slow_parts.py"),
    ),
    "ONNX model": Target(check_onnx, (mutate_protobuf,), "onnx", ("read/model_json.py",)),
    "memory timeline": Target(check_file, (mutate_json,), "timeline", ("read/memory_timeline.py",)),
    "commands": Target(check_commands, (mutate_json,), "commands", ("facts", "graph", "models", "analyze")),
    "page requests": Target(check_request, (mutate_text,), "requests", ("faces/page",)),
    "editor messages": Target(check_messages, (mutate_messages,), "messages", ("faces/editor",)),
}


def mutations(target: Target) -> tuple[Mutate, ...]:
    """How inputs of a target are damaged."""
    return (*target.mutates, *target.mutates, partial(mutate_bytes))
