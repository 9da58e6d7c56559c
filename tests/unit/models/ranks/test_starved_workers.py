"""Workers of a Dask cluster that cannot work: one line says which, and what to set."""

from __future__ import annotations

from queue import Queue
from typing import Any

import pytest

from stepscope.errors import EngineError
from stepscope.models.ranks import map_ranks
from stepscope.models.ranks.files import RankFile

FILES = [RankFile("job/rank0.json", 1, 1), RankFile("job/rank1.json", 1, 1)]


class Client:
    """Of a cluster whose workers are in some states, one after the other."""

    def __init__(self, *states: list[str]) -> None:
        self._states = list(states)

    def scheduler_info(self) -> dict[str, Any]:
        states = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        workers = {
            f"tcp://{number}": {"status": status, "memory_limit": 120_000_000}
            for number, status in enumerate(states)
        }
        return {"workers": workers}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_ranks, "_LOOK_S", 0.01)
    monkeypatch.setattr(map_ranks, "_GONE_S", 0.05)


def test_paused_workers_are_told() -> None:
    with pytest.raises(EngineError) as told:
        map_ranks._next_done(Client(["paused", "paused"]), Queue(), FILES)
    assert str(told.value) == (
        "no worker can work: tcp://0 is paused at its limit of 120 MB of memory; not read: job/rank0.json, "
        "job/rank1.json; give each worker more, as with: dask worker --memory-limit 4GB"
    )


def test_lost_workers_are_told() -> None:
    with pytest.raises(EngineError, match=r"all workers of the cluster are gone; not read: job/rank0.json$"):
        map_ranks._next_done(Client([]), Queue(), FILES[:1])


def test_a_worker_that_runs_is_waited_for() -> None:
    done: Queue[str] = Queue()

    class Restarted(Client):
        def scheduler_info(self) -> dict[str, Any]:
            info = super().scheduler_info()
            if "running" in [one["status"] for one in info["workers"].values()]:
                done.put("future")
            return info

    client = Restarted(["paused"], [], ["running"])
    assert map_ranks._next_done(client, done, FILES) == "future"


def test_a_worker_that_was_killed_is_a_reason() -> None:
    class KilledWorker(Exception):
        pass

    class Failed:
        def exception(self) -> Exception:
            return KilledWorker("sketch-0")

    told = map_ranks._result(Failed(), FILES[0])
    assert str(told) == (
        "job/rank0.json: every worker that read it ended, possibly out of memory; give each more, as with: "
        "dask worker --memory-limit 4GB"
    )
