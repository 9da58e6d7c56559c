"""Stages of a training step: data loading, forward, loss, backward, optimizer, and so on."""
