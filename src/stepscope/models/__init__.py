"""Models built on the facts: what-if, batch size, memory, ranks, differences, verification."""
