"""Files that repeat what they hold by reference, or whose texts are the worst of a pattern.

Each is read or refused in one line, in seconds of CPU time, with less than 400 MB.
"""

from __future__ import annotations

import json
import pickle
import resource
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from test_hostile_files import outcome, peak_bytes
from xspaces import ORIGIN_NS, message, varint

from stepscope.errors import IngestError
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.ranks import _by_label
from stepscope.read import read
from stepscope.read.flight_recorder import read_dump
from stepscope.trace.redact import Words, redacted

pytestmark = pytest.mark.main  # families that take seconds
MANY = 6_000
FORWARD, BACKWARD = "jit(step)/jvp(Net)/dot", "jit(step)/transpose(jvp(Net))/dot"
SCALAR = message((2, 11))
DEFAULT = "9" * (1 << 20)


def tuple_of(count: int) -> bytes:
    return message((2, 13), *[(4, SCALAR)] * count)


def instruction(
    number: int,
    opcode: str,
    operands: Iterable[int] = (),
    called: Iterable[int] = (),
    shape: bytes = SCALAR,
    scope: str = "jit(step)/mul",
    fields: bytes = b"",
) -> bytes:
    ids = (b"".join(map(varint, numbers)) for numbers in (operands, called))
    texts = (1, f"i{number}"), (2, opcode), (3, shape), (7, message((2, scope)))
    return message(*texts, (35, number), *zip((36, 38), ids, strict=True)) + fields


def computation(number: int, instructions: Iterable[bytes], root: int = 2) -> bytes:
    return message((1, "c"), *((2, one) for one in instructions), (5, number), (6, root))


def profile(*computations: bytes, program: str = "jit_step", executed: int = 1) -> bytes:
    """An event for each of the first instructions of a program, whose last computation is its entry."""
    stats = dict(enumerate(("hlo_op", "hlo_module", "program_id"), 1))
    events, kinds = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
    for number in range(2, 2 + executed):
        name = f"i{number}"
        kinds.append((4, message((1, number), (2, message((1, number), (2, name))))))
        values = message((1, 1), (5, name)), message((1, 2), (5, "jit_step")), message((1, 3), (4, 1))
        times = (1, number), (2, number * 1_000_000), (3, 1_000_000)
        events.append((4, message(*times, *((4, value) for value in values))))
    names = [(5, message((1, key), (2, message((1, key), (2, name))))) for key, name in stats.items()]
    line = message((1, 1), (2, "worker/1"), (3, ORIGIN_NS), *events)
    host = message((2, "/host:CPU"), (3, line), *kinds, *names)
    module = message((1, program), *((3, one) for one in computations), (6, len(computations)))
    proto = message((1, 1), (6, message((1, module))))
    kind = (4, message((1, 1), (2, message((1, 1), (2, "jit_step(1)"), (5, proto)))))
    stat = (5, message((1, 1), (2, message((1, 1), (2, "Hlo Proto")))))
    return message((1, host), (1, message((2, "/host:metadata"), kind, stat)))


PARAMETER = instruction(1, "parameter")
GRADIENT = (PARAMETER, instruction(2, "dot", scope=BACKWARD), instruction(3, "dot", (2,), scope=FORWARD))
WHOLE = instruction(1, "parameter", shape=tuple_of(MANY))


def of_tuple(opcode: str) -> bytes:
    users = (instruction(3 + number, opcode, (1,)) for number in range(MANY))
    return profile(computation(1, [WHOLE, instruction(2, "dot", scope=BACKWARD), *users]))


def to_tuple() -> bytes:
    """Many scalars, all of which make each element of the result."""
    made = (instruction(2 + number, "add", (1,), scope=BACKWARD) for number in range(MANY))
    whole = instruction(MANY + 2, "custom-call", range(1, MANY + 2), shape=tuple_of(MANY))
    return profile(computation(1, [PARAMETER, *made, whole]))


def fusions_of_one() -> bytes:
    """Many fusions, all of the same many operations."""
    members = (
        instruction(1 + number, "add", scope=f"jit(step)/jvp(N{number})/add") for number in range(MANY)
    )
    fusions = (instruction(2 + number, "fusion", (1,), (1,)) for number in range(MANY))
    return profile(computation(1, members), computation(2, [PARAMETER, *fusions]), executed=1000)


def loops_around_one() -> bytes:
    loops = [instruction(2 + number, "while", (1,), (1,)) for number in range(3 * MANY)]
    return profile(computation(1, GRADIENT, 3), computation(2, [PARAMETER, *loops]))


def nested_loops() -> bytes:
    """They run 999,999,999 to the power of 600 times."""
    trips = message((43, '{"known_trip_count":{"n":"999999999"}}'))
    around = [
        computation(2 + depth, [PARAMETER, instruction(2, "while", (1,), (1 + depth,), fields=trips)])
        for depth in range(600)
    ]
    return profile(computation(1, GRADIENT, 3), *around)


def convolutions() -> bytes:
    """Each has windows of 65,000 positions in three dimensions."""
    shape = message((2, 11), (3, b"".join(map(varint, (1, 1, 65_000, 65_000, 65_000)))))
    places = message((7, 0), (8, 1), (10, 1), (11, b"\2\3\4"), (6, b"\2\3\4"), (12, b"\2\3\4"))
    found = []
    for number in range(3000):
        window = message(*((1, message((1, 3), (2, 1), (3, 3 * number + axis))) for axis in range(3)))
        fields = message((16, places), (15, window))
        found.append(instruction(2 + number, "convolution", (1, 1), shape=shape, fields=fields))
    return profile(computation(1, [instruction(1, "parameter", shape=shape), *found]))


def product(sizes: Iterable[int], contracted: bytes) -> bytes:
    shape = message((2, 11), (3, b"".join(map(varint, sizes))))
    fields = message((30, message((1, contracted))))
    whole = instruction(1, "parameter", shape=shape)
    return profile(computation(1, [whole, instruction(2, "dot", (1, 1), shape=shape, fields=fields)]))


def long_program_name() -> bytes:
    unnamed = [instruction(1 + number, "add", scope="") for number in range(MANY)]
    return profile(computation(1, unnamed), program="jit_" + "p" * (1 << 20))


def views() -> bytes:
    chain = [instruction(2 + number, "bitcast", (1 + number,)) for number in range(MANY)]
    whole = instruction(MANY + 2, "tuple", [MANY + 1] * MANY, shape=tuple_of(MANY))
    return profile(computation(1, [PARAMETER, *chain, whole], MANY + 2))


REPEATS = "the XLA profile repeats parts as no recorder does"
PROGRAMS: dict[str, tuple[Callable[[], bytes], str]] = {
    "additions of one tuple": (lambda: of_tuple("add"), REPEATS),
    "calls of one tuple": (lambda: of_tuple("custom-call"), REPEATS),
    "a tuple of all scalars": (to_tuple, ""),
    "fusions of the same operations": (fusions_of_one, REPEATS),
    "loops around one body": (loops_around_one, ""),
    "loops in loops": (nested_loops, ""),
    "huge windows": (convolutions, REPEATS),
    "a dimension contracted 100,000 times": (lambda: product([1 << 59], bytes(100_000)), ""),
    "sizes beyond all floats": (lambda: product([0, *[1 << 63] * 20], bytes(range(1, 20))), ""),
    "a program's name of a megabyte": (long_program_name, ""),
    "views of views": (views, ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_instructions_share_takes_no_square(name: str, tmp_path: Path) -> None:
    made, expected = PROGRAMS[name]
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(made())
    assert outcome(path).removeprefix(f"{path}: ") == expected


def test_names_of_threads_take_no_square_of_planes_or_letters(tmp_path: Path) -> None:
    words = ["Thunk" * 100_000, "Transfer" * 1000 + "Device" * 1000, "nan" * 100_000, "loss=1" * 50_000]
    kinds = [
        (4, message((1, number), (2, message((1, number), (2, f"{word}-")))))
        for number, word in enumerate(words)
    ]
    events = [(4, message((1, number), (2, number * 1000), (3, 9))) for number in range(len(words))]
    line = message((1, 1), (2, "t/1"), (3, ORIGIN_NS), *events)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(message((1, message((2, "/host:CPU"), (3, line), *kinds))))
    assert outcome(path) == ""
    assert spent(lambda: annotate(read(path))) < 10  # s of CPU, not elapsed


def spent(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


# -- databases whose columns have a default of a megabyte, which each row repeats

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


@pytest.mark.parametrize("default", [f"'{DEFAULT}'", f"x'{'41' * len(DEFAULT)}'"])
@pytest.mark.parametrize(("table", "column"), [("StringIds", "value"), (CALLS, "start")])
def test_a_default_that_each_row_of_a_database_repeats(
    table: str, column: str, default: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as file:
        file.execute(f"create table {CALLS} (end int, globalTid int, correlationId int, nameId int)")
        file.execute("create table StringIds (id int)")
        file.executemany(f"insert into {CALLS} values (?, 1, ?, 1)", [(n, n) for n in range(20_000)])
        file.executemany("insert into StringIds values (?)", [(n,) for n in range(20_000)])
        file.execute(f"alter table {table} add column {column} default {default}")
    file.close()
    assert outcome(path).removeprefix(f"{path}: ") in (
        "",
        "the SQLite database repeats long texts; export the recording again",
    )


def test_a_long_text_that_ranges_and_threads_share(tmp_path: Path) -> None:
    path, count = tmp_path / "a.sqlite", 20_000
    sizes = ",".join(["[2, 3]"] * 100_000)
    with sqlite3.connect(path) as file:
        columns = "start int, end int, globalTid int, eventType int, textId int, text text"
        file.execute(f"create table NVTX_EVENTS ({columns})")
        file.execute("create table StringIds (id int, value text)")
        file.execute("create table ThreadNames (globalTid int, nameId int)")
        file.execute("insert into StringIds values (1, ?)", (f"aten::mm, seq = 5, sizes = [{sizes}]",))
        file.executemany("insert into ThreadNames values (?, 1)", [(n,) for n in range(count)])
        ranges = [(10 * n, 10 * n + 5, n) for n in range(count)]
        file.executemany("insert into NVTX_EVENTS values (?, ?, ?, 59, 1, null)", ranges)
    file.close()
    assert outcome(path) == ""
    trace = read(path)
    assert max(map(len, trace["tracks"].text("name").values)) < 300
    assert "long_arguments" in [row["code"] for row in trace["warnings"].rows()]


# -- what records of rocprofv3 share


def rocprof(path: Path, name: str = "k", agents: int = 1, text: str = "", samples: int = 0) -> Path:
    records = [
        {
            "start_timestamp": 10 * n + 1,
            "end_timestamp": 10 * n + 5,
            "dispatch_info": {
                "kernel_id": 1,
                "dispatch_id": n,
                "agent_id": {"handle": agents - 1 - n % agents},
            },
        }
        for n in range(20_000)
    ]
    sampled = [
        {"inst_index": 0, "record": {"dispatch_id": 1, "pc": {"code_object_offset": n}}}
        for n in range(samples)
    ]
    process = {
        "agents": [{"type": 2, "id": {"handle": n}, "product_name": "x"} for n in range(agents)],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": name}],
        "strings": {"pc_sample_instructions": [text], "pc_sample_comments": [text]},
        "buffer_records": {"kernel_dispatch": records, "pc_sample_stochastic": sampled},
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    return path


@pytest.mark.parametrize(
    "shared",
    [{"agents": 20_000}, {"name": "k" * (1 << 20)}, {"text": "a:1" * (1 << 18), "samples": 20_000}],
    ids=["agents", "a name", "an instruction"],
)
def test_what_records_of_rocprofv3_share(shared: dict[str, Any], tmp_path: Path) -> None:
    assert outcome(rocprof(tmp_path / "a.json", **shared)) == ""


# -- dumps of the flight recorder whose pickle repeats lists


def entry(**more: Any) -> dict[str, Any]:
    return {"profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"), **more}


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
FRAMES = [{"name": "f", "filename": "a.py", "line": line} for line in range(20_000)]
SIZES = [[1] * 2000] * 2000
DUMPS = {
    "frames": [entry(frames=FRAMES) for _ in range(2000)],
    "sizes": [entry(input_sizes=SIZES) for _ in range(200)],
    "a list of itself": [entry(frames=ITSELF)],
}


@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_that_repeats_its_lists_is_refused(name: str, tmp_path: Path) -> None:
    path, before = tmp_path / "rank_0.pickle", peak_bytes()
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": DUMPS[name]}))
    with pytest.raises(IngestError, match="nests too deeply, or holds more than 8,000,000 values"):
        read_dump(path)
    assert peak_bytes() - before < 400 << 20


# -- texts that are the worst of a pattern


def test_white_space_after_a_damaged_event_is_passed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    event = {"ph": "X", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    good = json.dumps(event)
    blank = "\n" * 200_000
    path.write_text(f'{{"traceEvents":[{good},{{"name":bad}}{blank}x,\n{good}]}}')
    assert outcome(path) == ""
    assert len(read(path).events) == 2


@pytest.mark.parametrize("text", ["1", "-.", "/a", "ab:", "1_", "a."])
def test_long_texts_are_redacted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    event = {"ph": "X", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    path.write_text(json.dumps([{**event, "args": {"note": f"{text * 50_000} {text} secret"}}]))
    trace, found = annotate(read(path)), list[str]()
    assert spent(lambda: found.append(str(redacted(trace, Words(b"key")).event_arguments(0)))) < 10
    assert "secret" not in found[0]


def test_labels_of_thousands_of_processes_are_numbered_once() -> None:
    merged = _by_label([f"rank {number}: python" for number in range(20_000)])
    assert merged is not None
    assert merged.part[19_999] == merged.ranks[19_999] == 19_999
