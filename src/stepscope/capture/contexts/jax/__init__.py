"""Contexts of a JAX program: calls of compiled functions, compilations, waits and transfers."""
