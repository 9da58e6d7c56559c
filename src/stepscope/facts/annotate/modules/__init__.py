"""Which module of the model each event belongs to."""
