"""Samples of the lines that the training loop's thread executes."""
