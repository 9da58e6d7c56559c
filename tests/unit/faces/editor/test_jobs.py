"""One job a key at a time."""

from __future__ import annotations

import asyncio

from stepscope.faces.editor.background import Jobs


def test_a_newer_job_ends_the_older_before_it_begins():
    async def scenario():
        told, jobs, begun = [], Jobs(), asyncio.Event()

        async def first():
            begun.set()
            try:
                await asyncio.sleep(1000)
            finally:
                told.append("first ended")

        async def second():
            told.append("second begun")

        jobs.start("a", first)
        await begun.wait()
        jobs.start("a", second)
        await jobs._tasks["a"][-1]
        return told

    assert asyncio.run(scenario()) == ["first ended", "second begun"]


def test_jobs_that_never_began_do_not_hide_the_one_that_runs():
    async def scenario():
        told, jobs, begun, ended = [], Jobs(), asyncio.Event(), asyncio.Event()

        async def first():
            begun.set()
            try:
                await asyncio.sleep(1000)
            finally:
                await ended.wait()  # a process takes its time to end
                told.append("first ended")

        async def other(name):
            told.append(name)

        jobs.start("a", first)
        await begun.wait()
        jobs.start("a", lambda: other("second"))
        jobs.start("a", lambda: other("third"))
        for _ in range(5):
            await asyncio.sleep(0)
        ended.set()
        await jobs._tasks["a"][-1]
        return told

    assert asyncio.run(scenario()) == ["first ended", "third"]


def test_quick_repeats_are_one_job():
    async def scenario():
        runs, jobs = [], Jobs()

        async def job():
            runs.append(1)

        for _ in range(5):
            jobs.start("a", job, pause_s=0.01)
        await jobs._tasks["a"][-1]
        return len(runs)

    assert asyncio.run(scenario()) == 1


def test_keys_do_not_disturb_each_other_and_closing_ends_all():
    async def scenario():
        jobs, ended = Jobs(), []

        async def job(name):
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(name)

        jobs.start("a", lambda: job("a"))
        jobs.start("b", lambda: job("b"))
        await asyncio.sleep(0.05)
        assert jobs.cancel("a")
        assert not jobs.cancel("c")
        await jobs.close()
        return sorted(ended)

    assert asyncio.run(scenario()) == ["a", "b"]
