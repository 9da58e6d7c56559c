#!/usr/bin/env python
import functools


@functools.lru_cache(maxsize=32)  # not this 32
@timed("batch_size=32")
def train(
    epochs: int = 32,
    # The batch size. Was 32, then 64, now:
    batch_size: int = 32,  # type: ignore[assignment]
    *rest: int,
    **kwargs: dict[str, int],
) -> "list[int]":  # -> 32
    loader = DataLoader(load(32), batch_size=batch_size)
    return [32 for _ in loader]
