"""Predictions for other devices, in a separate process: simulations would delay typing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from stepscope.batch_size.entry_result import Result
from stepscope.devices import Wanted, parse_targets, project, read_prices
from stepscope.devices.device_answer import DevicesReply
from stepscope.errors import StepscopeError

NOT_MEASURED = "not measured yet"


async def predict_devices(result: Result | None, devices: str, wanted: Wanted) -> DevicesReply:
    """The answer of `stepscope batch --on`, or why there is none.

    Args:
        result: of the latest measurement.
        devices: names of devices or instances, between commas.
        wanted: what to predict.
    """
    if result is None:
        return DevicesReply(None, NOT_MEASURED)
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, _reply, result, devices, wanted)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _reply(result: Result, devices: str, wanted: Wanted) -> DevicesReply:
    try:
        targets = parse_targets(devices, read_prices())
        return DevicesReply(project(result, targets, wanted), None)
    except StepscopeError as error:
        return DevicesReply(None, str(error))
