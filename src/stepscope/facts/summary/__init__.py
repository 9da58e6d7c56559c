"""Facts about the training step of a trace: the content of every report."""
