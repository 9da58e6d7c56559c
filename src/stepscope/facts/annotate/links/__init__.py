"""Links between events: launches, forward and backward, recomputation."""
