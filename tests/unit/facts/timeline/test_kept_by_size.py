"""What is kept by its size: the values used last, within the room."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from stepscope.facts.timeline.timeline import KeptBySize


def test_those_not_used_for_longest_are_dropped_first() -> None:
    kept = KeptBySize[str, str](9, len)
    for word in ("one", "two", "six"):
        kept.set(word, word)
    assert kept.get("one") == "one"
    kept.set("ten", "ten")
    assert kept.get("two") is None
    assert [kept.get(word) for word in ("one", "six", "ten")] == ["one", "six", "ten"]


def test_one_that_is_larger_than_the_room_is_kept_alone() -> None:
    kept = KeptBySize[str, str](5, len)
    kept.set("small", "small")
    kept.set("large", "l" * 50)
    assert kept.get("large") == "l" * 50
    assert kept.get("small") is None
    kept.set("small", "small")
    assert kept.get("large") is None


def test_a_value_that_is_set_again_counts_once() -> None:
    kept = KeptBySize[str, str](6, len)
    for _ in range(10):
        kept.set("one", "one")
    kept.set("two", "two")
    assert kept.get("one") == "one"


def test_threads_that_share_it_keep_within_the_room() -> None:
    kept = KeptBySize[int, bytes](1000, len)

    def use(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(2000):
            key = dice.randrange(40)
            if (value := kept.get(key)) is not None:
                assert len(value) % 41 == key
            kept.set(key, bytes(key + 41 * dice.randrange(10)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    held = [value for key in range(40) if (value := kept.get(key)) is not None]
    assert sum(map(len, held)) <= 1000
