from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.models.memory import MemoryFacts, memory_facts

ReadFacts = Callable[[dict[str, Any]], MemoryFacts]


@pytest.fixture
def facts_of(tmp_path: Path) -> ReadFacts:
    """Facts of a snapshot, written and read as a file."""

    def read(snapshot: dict[str, Any]) -> MemoryFacts:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(snapshot))
        return memory_facts(stepscope.open(path, cache=False))[0]

    return read
