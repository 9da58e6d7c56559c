"""Jobs of many ranks, made from a recorded one, with planted faults and their truth."""
