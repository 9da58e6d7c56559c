"""Records memory: allocations with what reads them, what is kept, and what happens when it ends."""
