"""What fills a device's memory, what fragments it, and what to do: from a snapshot or a capture."""

from stepscope.models.memory.device_facts import memory_facts
from stepscope.models.memory.memory_facts import MemoryFacts

__all__ = ["MemoryFacts", "memory_facts"]
