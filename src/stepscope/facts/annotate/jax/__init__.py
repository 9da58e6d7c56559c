"""Profiles of JAX and TensorFlow: compiled operations, their calls, stages and modules."""
