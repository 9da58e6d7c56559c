"""Several ranks: clock offsets, and files with more than one rank."""
