"""Planted hangs of 2 to 1,024 ranks are named from their dumps, and healthy jobs name nothing."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hung_job import CREATED_NS, WORLD, Call, Job, steps

from stepscope.errors import IngestError
from stepscope.faces.terminal.commands import stepscope
from stepscope.models.ranks.hangs import HangReport, hang_of
from stepscope.read.flight_recorder import read_dump

REDUCE = Call("all_reduce", 31)
BROADCAST = Call("broadcast", 32)


def job(ranks: int, *tail: Call, but: dict[int, Sequence[Call]] | None = None, **options: Any) -> Job:
    """A job that ends with some calls after two healthy steps, except for some ranks."""
    ends = {rank: list((but or {}).get(rank, tail)) for rank in range(ranks)}
    return Job({rank: steps(2) + end for rank, end in ends.items()}, options.pop("groups", {}), **options)


def report(folder: Path, planted: Job, **options: Any) -> HangReport:
    return hang_of([read_dump(path) for path in planted.write(folder, **options)])


def tensor_parallel(ranks: int, width: int) -> dict[str, list[int]]:
    return {f"tp{first}": list(range(first, first + width)) for first in range(0, ranks, width)}


def in_own_group(ranks: int, width: int) -> dict[int, list[Call]]:
    """Each rank reduces in its group, then in the job."""
    return {rank: [Call("all_reduce", 31, f"tp{rank - rank % width}"), BROADCAST] for rank in range(ranks)}


def pair(first: Iterable[Call], second: Iterable[Call]) -> dict[int, Sequence[Call]]:
    return {0: list(first), 1: list(second)}


def pipeline(tail: Callable[[int], Sequence[Call]], rounds: int = 2) -> Job:
    """Four stages send three micro-batches on, in batches; the inner ones have twice as many of these."""
    programs: dict[int, Sequence[Call]] = {}
    for rank in range(4):
        calls = [REDUCE]
        for batch in range(1, 1 + 6 * rounds, 2):
            calls += [Call("recv", 60, peer=rank - 1, batch=batch)] if rank > 0 else []
            calls += [Call("send", 61, peer=rank + 1, batch=batch + 1)] if rank < 3 else []
            calls += [BROADCAST] if batch == 5 else []
        programs[rank] = [*calls, *tail(rank)]
    return Job(programs, {})


def without(rank: int) -> Callable[[], Job]:
    return lambda: pipeline(lambda each: [REDUCE] if each != rank else [])


HANGS: dict[str, tuple[Callable[[], Job], dict[str, Any], str, list[str]]] = {
    "a rank that does not call": (
        lambda: job(2, REDUCE, but={1: []}),
        {},
        "missing",
        [
            "Rank 1 has not called all_reduce #5 (8 Float) of default_pg, in which rank 0 waits at "
            "/home/me/train.py:31 (step); the last call of rank 1 was reduce_scatter #4"
        ],
    ),
    "a rank in an evaluation of its own": (
        lambda: job(4, but={0: [Call("barrier", 50)]}),
        {},
        "missing",
        ["Rank 0 waits in barrier #5 of default_pg at /home/me/train.py:50 (step), which ranks 1-3 have not"],
    ),
    "one of a thousand": (
        lambda: job(1024, REDUCE, but={777: []}),
        {},
        "missing",
        ["Rank 777 has not called all_reduce #5"],
    ),
    "two machines of sixteen ranks": (
        lambda: job(128, REDUCE, but={rank: [] for rank in range(16, 32)}),
        {},
        "missing",
        ["Ranks 16-31 have not called", "in which ranks 0-15, 32-127 wait"],
    ),
    "a full buffer that has lost the steps before": (
        lambda: job(8, REDUCE, but={5: []}),
        {"capacity": 2},
        "missing",
        ["Rank 5 has not called all_reduce #5"],
    ),
    "dumps of waiting calls alone": (
        lambda: job(8, REDUCE, but={5: []}),
        {"only_active": True},
        "missing",
        ["Rank 5 has not called"],
    ),
    "JSON, without stacks": (
        lambda: job(8, REDUCE, but={5: []}),
        {"as_json": True},
        "missing",
        ["Rank 5 has not called all_reduce #5 (8 Float) of default_pg, in which ranks 0-4, 6-7 wait;"],
    ),
    "a rank that died without a dump": (
        lambda: job(8, REDUCE, but={5: []}),
        {"ranks": [0, 1, 2, 3, 4, 6, 7]},
        "no dump",
        ["All ranks with a dump have called all_reduce #5", "rank 5 left no dump"],
    ),
    "half of the dumps": (
        lambda: job(8, REDUCE, but={2: []}),
        {"ranks": [0, 1, 2, 3]},
        "missing",
        ["Rank 2 has not called"],
    ),
    "another operation": (
        lambda: job(4, REDUCE, but={2: [Call("broadcast", 42)]}),
        {},
        "disagree",
        [
            "Rank 2 calls broadcast #5 (8 Float) of default_pg at /home/me/train.py:42 (step), where "
            "ranks 0-1, 3 call all_reduce #5"
        ],
    ),
    "other sizes": (
        lambda: job(256, REDUCE, but={9: [Call("all_reduce", 31, count=7)]}),
        {},
        "disagree",
        ["Rank 9 calls all_reduce #5 (7 Float)", "ranks 0-8, 10-255 call all_reduce #5 (8 Float)"],
    ),
    "another type of elements": (
        lambda: job(4, REDUCE, but={3: [Call("all_reduce", 31, dtype="BFloat16")]}),
        {},
        "disagree",
        ["Rank 3 calls all_reduce #5 (8 BFloat16)"],
    ),
    "another order": (
        lambda: job(4, REDUCE, BROADCAST, but={1: [BROADCAST, REDUCE]}, is_async=True),
        {},
        "disagree",
        ["Rank 1 calls broadcast #5", "rank 1 makes these calls in another order"],
    ),
    "a call too many": (
        lambda: job(4, REDUCE, BROADCAST, but={1: [Call("barrier", 7), REDUCE, BROADCAST]}, is_async=True),
        {},
        "disagree",
        ["Rank 1 calls barrier #5", "rank 1 makes a call that the others do not"],
    ),
    "a call left out": (
        lambda: job(4, REDUCE, BROADCAST, but={1: [BROADCAST]}, is_async=True),
        {},
        "disagree",
        ["Rank 1 calls broadcast #5", "rank 1 has left out a call"],
    ),
    "the same operation on another group": (
        lambda: job(4, REDUCE, but={3: [Call("all_reduce", 33, "tp2")]}, groups=tensor_parallel(4, 2)),
        {},
        "missing",
        ["Ranks wait for each other", "the same operation on different groups"],
    ),
    "two groups in different orders": (
        lambda: job(
            2,
            Call("all_reduce", 31, "a"),
            Call("broadcast", 32, "b"),
            but={1: [Call("broadcast", 42, "b"), Call("all_reduce", 41, "a")]},
            groups={"a": [0, 1], "b": [0, 1]},
        ),
        {},
        "missing",
        [
            "Ranks wait for each other: rank 0 waits in all_reduce #1 (8 Float) of mesh_a (ranks 0-1) at "
            "/home/me/train.py:31 (step) for rank 1",
            "they call in different orders, or one has left out a call",
        ],
    ),
    "a hang that spreads from one group": (
        lambda: job(32, but={**in_own_group(32, 4), 13: []}, groups=tensor_parallel(32, 4)),
        {},
        "missing",
        [
            "Rank 13 has not called all_reduce #1 (8 Float) of mesh_tp12 (ranks 12-15), in which ranks 12, "
            "14-15 wait"
        ],
    ),
    "a rank that leaves out the call of its group": (
        lambda: job(32, but={**in_own_group(32, 4), 13: [BROADCAST]}, groups=tensor_parallel(32, 4)),
        {},
        "missing",
        ["Ranks wait for each other", "of mesh_tp12 (ranks 12-15)", "for rank 13", "has left out a call"],
    ),
    "two that send to each other first": (
        lambda: job(2, but=pair([Call("send", 60, peer=1)], [Call("send", 61, peer=0)])),
        {},
        "missing",
        ["Ranks wait for each other: rank 0 waits in send 0 to 1"],
    ),
    "a message that nobody receives": (
        lambda: job(
            4, but={0: [Call("send", 60, peer=1), Call("send", 62, peer=1)], 1: [Call("recv", 61, peer=0)]}
        ),
        {},
        "missing",
        [
            "Rank 1 has not called the recv of send 0 to 1 (8 Float) of default_pg, in which rank 0 waits at "
            "/home/me/train.py:62"
        ],
    ),
    "messages of other sizes in a batch": (
        lambda: job(
            2,
            but=pair(
                [Call("send", 60, peer=1, batch=1), Call("recv", 61, peer=1, batch=1)],
                [Call("recv", 62, peer=0, batch=1), Call("send", 63, peer=0, batch=1, count=9)],
            ),
        ),
        {},
        "disagree",
        ["Rank 0 calls recv 1 to 0 (8 Float)", "rank 1 calls send 1 to 0 (9 Float)"],
    ),
    "two groups in different orders, both queued": (
        lambda: job(
            2,
            but=pair(
                [Call("all_reduce", 31, "a"), Call("broadcast", 32, "b")],
                [Call("broadcast", 42, "b"), Call("all_reduce", 41, "a")],
            ),
            groups={"a": [0, 1], "b": [0, 1]},
            is_async=True,
            stalled=["a", "b"],
        ),
        {},
        "not finished",
        [
            "Rank 1 calls broadcast #1 (8 Float) of mesh_b (ranks 0-1) at /home/me/train.py:42 (step), then "
            "all_reduce #1",
            "rank 0 calls them in the other order, and neither finishes.",
        ],
    ),
    "a stage of a pipeline, whose batches of messages are counted as collectives": (
        without(2),
        {},
        "missing",
        ["Rank 2 has not called all_reduce #3 (8 Float) of default_pg, in which ranks 0-1, 3 wait"],
    ),
    "batches that share a number": (
        without(0),
        {"batches_count": False},
        "missing",
        ["Rank 0 has not called all_reduce #3 (8 Float) of default_pg, in which ranks 1-3 wait"],
    ),
    "a stage of a pipeline whose full buffer has lost batches": (
        without(0),
        {"capacity": 14},
        "missing",
        ["Rank 0 has not called all_reduce #", "in which ranks 1-3 wait"],
    ),
    "a stage of a pipeline that calls something else": (
        lambda: pipeline(lambda rank: [Call("all_gather", 77)] if rank == 2 else [REDUCE]),
        {"capacity": 14},
        "disagree",
        ["Rank 2 calls all_gather #", "where ranks 0-1, 3 call all_reduce #"],
    ),
    "a stage that died": (
        lambda: job(3, but={0: [Call("send", 60, peer=1)], 1: []}),
        {"ranks": [0, 2]},
        "no dump",
        ["Rank 0 waits in send 0 to 1 (8 Float) of default_pg", "and rank 1 left no dump."],
    ),
    "a network that stalls": (
        lambda: job(
            16,
            Call("all_reduce", 31, "tp4"),
            but={rank: [] for rank in (0, 1, 2, 3, *range(8, 16))},
            groups=tensor_parallel(16, 4),
            stalled=["tp4"],
        ),
        {},
        "not finished",
        ["Ranks 4-7 call all_reduce #1 (8 Float) of mesh_tp4", "alike, and it does not finish"],
    ),
}


THOUSAND = "one of a thousand"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.main] * (name == THOUSAND)) for name in HANGS]
)
def test_a_planted_hang_is_named(name: str, tmp_path: Path) -> None:
    build, options, cause, texts = HANGS[name]
    found = report(tmp_path, build(), **options)
    assert found.is_hang
    assert found.blocked[0].cause == cause
    assert [text for text in texts if text not in found.sentence] == [], found.sentence


def before_2_4(dump: dict[str, Any], version: str) -> Any:
    """A dump as older versions of PyTorch write it."""
    kept = ["pg_id", "profiling_name", "input_sizes", "output_sizes", "state", "frames"]
    kept += ["record_id", "time_created_ns", "is_p2p"] if version == "2.3" else []
    entries = list[dict[str, Any]]()
    for now in dump["entries"]:
        entries.append({key: value for key, value in now.items() if key in kept})
        entries[-1]["seq_id"] = now["collective_seq_id"]
        if version == "2.2":
            entries[-1]["time_created_us"] = now["time_created_ns"] // 1000
    return {"version": "1.4", "entries": entries} if version == "2.3" else entries


@pytest.mark.parametrize("version", ["2.2", "2.3"])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("group", [WORLD, "tp4"])
def test_dumps_of_older_versions_name_a_hang(version: str, as_json: bool, group: str, tmp_path: Path) -> None:
    """They do not list the ranks of a group: its number is taken for the same one on all ranks."""
    calls = [Call("all_reduce", line, group) for line in (31, 32)]
    but: dict[int, Sequence[Call]] = {5: calls[:1]}
    planted = job(8, *calls, but=but, groups={"tp4": range(8)})
    for path in planted.write(tmp_path, as_json=as_json):
        data = json.loads(path.read_bytes()) if as_json else pickle.loads(path.read_bytes())
        old = before_2_4(data, version)
        path.write_bytes(json.dumps(old).encode() if as_json else pickle.dumps(old, 2))
        os.utime(path, ns=(CREATED_NS + 600 * 10**9,) * 2)
    found = hang_of([read_dump(path) for path in sorted(tmp_path.iterdir())])
    assert "Rank 5 has not called all_reduce" in found.sentence
    assert ("PyTorch before 2.4 does not say which ranks are in it" in found.sentence) == (group != WORLD)


def drawn_job(seed: int, defect: str) -> tuple[Job, int]:
    """A job of two parallel axes whose ranks make one sequence of calls, but for a rank with a defect."""
    chance = random.Random(f"{seed} {defect}")
    width, rows = chance.choice([2, 4, 8]), chance.choice([2, 3, 8])
    ranks = width * rows
    groups = {f"row{row}": list(range(row * width, (row + 1) * width)) for row in range(rows)}
    groups |= {f"column{column}": list(range(column, ranks, width)) for column in range(width)}
    odd, programs = chance.randrange(ranks), {rank: list[Call]() for rank in range(ranks)}
    for line in range(chance.randrange(4, 20)):
        axis, name = chance.choice(["row", "column", WORLD]), chance.choice(["all_reduce", "all_gather"])
        for rank, program in programs.items():
            at = {"row": rank // width, "column": rank % width}.get(axis, "")
            program.append(Call(name, line, f"{axis}{at}"))
    at = chance.randrange(len(programs[odd]) - 1)
    if defect == "stops":
        del programs[odd][at:]
    else:
        changed = {"size": {"count": 7}, "operation": {"name": "broadcast"}}[defect]
        programs[odd][at] = replace(programs[odd][at], **changed)
    return Job(programs, groups, is_async=chance.random() < 0.5), odd


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("defect", ["stops", "size", "operation"])
def test_the_rank_with_a_planted_defect_is_named(seed: int, defect: str, tmp_path: Path) -> None:
    planted, odd = drawn_job(seed, defect)
    found = report(tmp_path, planted, as_json=seed % 2 == 0)
    blocked = found.blocked[0]
    named = blocked.missing if defect == "stops" else blocked.odd
    # Of two ranks that call different things none is the odd one.
    pair = len(blocked.waiting) == 2 and defect != "stops"
    assert odd in blocked.waiting if pair else named == (odd,), (seed, found.sentence)


HEALTHY: dict[str, Callable[[], Job]] = {
    "steps": lambda: job(64, REDUCE),
    "shapes that differ on purpose": lambda: job(
        4, Call("all_to_all", 9), but={2: [Call("all_to_all", 9)]}, is_async=True
    ),
    "groups": lambda: job(32, but=in_own_group(32, 4), groups=tensor_parallel(32, 4)),
    "a pipeline of batches": lambda: pipeline(lambda rank: [REDUCE]),
    "a pipeline": lambda: job(
        2,
        but=pair(
            [Call("send", 1, peer=1), Call("recv", 2, peer=1)],
            [Call("recv", 1, peer=0), Call("send", 2, peer=0)],
        ),
    ),
    "a batch": lambda: job(
        2,
        but=pair(
            [Call("send", 60, peer=1, batch=1), Call("recv", 61, peer=1, batch=1)],
            [Call("recv", 62, peer=0, batch=1), Call("send", 63, peer=0, batch=1)],
        ),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_healthy_job_names_nothing(name: str, as_json: bool, tmp_path: Path) -> None:
    found = report(tmp_path, HEALTHY[name](), as_json=as_json)
    assert (found.is_hang, found.blocked) == (False, ())
    assert found.sentence == "All recorded calls have finished: the dumps show no hang."


def test_calls_in_flight_are_no_hang(tmp_path: Path) -> None:
    """A dump on demand shows ranks a moment apart."""
    files = job(4, REDUCE, but={3: []}).write(tmp_path)
    for path in files:
        os.utime(path, ns=(CREATED_NS + 10**9,) * 2)
    found = hang_of([read_dump(path) for path in files])
    assert (found.is_hang, found.sentence) == (False, "No call had waited long: the dumps show no hang.")


def test_messages_of_gloo_are_not_recorded(tmp_path: Path) -> None:
    files = job(2, Call("all_reduce", 31)).write(tmp_path)
    dump = pickle.loads(files[0].read_bytes())
    dump["entries"][0]["profiling_name"] = "gloo:all_gather"
    files[0].write_bytes(pickle.dumps(dump))
    assert "gloo does not record its sends" in hang_of([read_dump(path) for path in files]).sentence


def test_a_call_that_timed_out_says_so(tmp_path: Path) -> None:
    planted = job(2, REDUCE, but={1: []})
    dump = planted.dump(0)
    dump["entries"][-1]["retired"] = True
    files = planted.write(tmp_path)
    files[0].write_bytes(pickle.dumps(dump))
    found = hang_of([read_dump(path) for path in files])
    assert found.sentence.endswith("It timed out after 600 s.")
    assert [stand.state for stand in found.stands] == ["timed out", "done"]


def test_the_command_prints_the_sentence_and_where_ranks_are(tmp_path: Path) -> None:
    job(8, REDUCE, but={2: []}).write(tmp_path / "dumps")
    result = CliRunner(env={"COLUMNS": "160"}).invoke(stepscope, ["ranks", str(tmp_path / "dumps")])
    assert result.exit_code == 0, result.output
    assert "▶ Rank 2 has not called all_reduce #5 (8 Float) of default_pg" in result.output
    assert "0-1, 3-7   waits   all_reduce #5 (8 Float) of default_pg" in result.output
    result = CliRunner().invoke(stepscope, ["ranks", str(tmp_path / "dumps"), "--json"])
    assert '"missing": [' in result.output


def test_uneven_inputs_of_a_gather_do_not_disagree(tmp_path: Path) -> None:
    """As FSDP gathers uneven shards: the outputs of all ranks are alike."""
    planted = job(3, Call("all_gather", 31), but={2: []})
    files = planted.write(tmp_path)
    dump = planted.dump(1)
    dump["entries"][-1]["input_sizes"] = [[5]]
    files[1].write_bytes(pickle.dumps(dump))
    found = hang_of([read_dump(path) for path in files])
    assert (found.blocked[0].cause, found.blocked[0].missing) == ("missing", (2,))


def test_other_files_next_to_dumps_do_not_hide_them(tmp_path: Path) -> None:
    job(2, REDUCE, but={1: []}).write(tmp_path)
    (tmp_path / "config.json").write_text('{"layers": 3}')
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps({"pg_config": os.system}))
    result = CliRunner().invoke(stepscope, ["ranks", str(tmp_path)])
    assert "▶ Rank 1 has not called all_reduce #5" in result.output
    assert "more than plain data" in result.output


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"{}", "rank_0", "not a dump of the flight recorder"),
        (b'{"version": 3, "pg_config": {}}', "rank_0", "not a dump"),
        (b'{"version": "2.4", "pg_config": {"0": 7}}', "rank_0", "not a dump"),
        (b'{"version": "2.4", "pg_config": {}}', "dump", "the name of a dump ends with its rank"),
        (pickle.dumps({"version": "2.4", "entries": [os.system]}), "rank_0", "more than plain data"),
        (b"\x80\x02}", "rank_0", "not a dump"),
        (
            b'{"version": "2.4", "entries": [{"profiling_name": "a", "record_id": 1e400}]}',
            "rank_0",
            "not a dump",
        ),
        (
            b'[{"profiling_name": "a", "seq_id": 1, "time_created_us": 100000000000000000}]',
            "rank_0",
            "not a dump",
        ),
        (b'[{"profiling_name": "a", "seq_id": -4611686018427387904}]', "rank_0", "not a dump"),
    ],
)
def test_files_that_are_no_dumps_say_so(content: bytes, name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(IngestError, match=message):
        read_dump(path)


def test_an_empty_dump_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b'{"version": "2.4", "pg_config": {}}')
    found = hang_of([read_dump(tmp_path / "rank_0")])
    assert (found.is_hang, found.sentence) == (False, "No call is recorded: the dumps show no hang.")


def pending_calls(names: Iterable[str], groups: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"profiling_name": name, "process_group": [group, ""], "collective_seq_id": at + 1}
        | {"p2p_seq_id": at, "is_p2p": "->" in name, "time_created_ns": CREATED_NS}
        for at, (name, group) in enumerate(zip(names, groups, strict=True))
    ]


COUNT = 8_000
MANY: dict[str, tuple[Callable[[], list[dict[str, Any]]], str | list[int]]] = {
    "messages to many ranks": (
        lambda: pending_calls((f"nccl:send 0->{n}" for n in range(COUNT)), ["0"] * COUNT),
        "",
    ),
    "groups of many ranks": (
        lambda: pending_calls(["nccl:send 0->1"] * 2_000, ["0"] * 2_000),
        [*range(100_000), *[7] * 100_000],
    ),
    "many groups": (lambda: pending_calls(["nccl:all_reduce"] * COUNT, map(str, range(COUNT))), ""),
    "a long name among others": (
        lambda: pending_calls([f"nccl:{n}" for n in range(1_000)] + ["x" * (1 << 20)], ["0"] * 1_001),
        "",
    ),
}


@pytest.mark.main
@pytest.mark.parametrize("name", MANY)
def test_calls_of_thousands_are_compared_once(name: str, tmp_path: Path) -> None:
    entries, ranks = MANY[name]
    for rank in (0, 1):
        dump = {"version": "2.4", "pg_config": {"0": {"ranks": ranks}}, "entries": entries()}
        (tmp_path / f"rank_{rank}").write_text(json.dumps(dump))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hang_of([read_dump(tmp_path / f"rank_{rank}") for rank in (0, 1)])
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - usage.ru_utime < 10  # s of CPU, not elapsed
    assert after.ru_maxrss - usage.ru_maxrss < 600 << 10  # KiB


def test_sizes_that_no_tensor_has_are_read(tmp_path: Path) -> None:
    (path,) = job(2, REDUCE).write(tmp_path, [0], as_json=True)
    dump = json.loads(path.read_text())
    dump["entries"][-1]["input_sizes"] = [[2**61] * 100_000]
    path.write_text(json.dumps(dump))
    assert read_dump(path).operations[-1].name == "all_reduce"
