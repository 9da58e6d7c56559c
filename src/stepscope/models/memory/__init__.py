"""What fills a device's memory, what fragments it, and what to do: from a snapshot or a capture."""

from stepscope.models.memory.device_facts import MemoryFacts, memory_facts

__all__ = ["MemoryFacts", "memory_facts"]
