"""Records the training steps of a JAX program; imports jax only once the program has."""

OLDEST = "0.8"


def too_old(found: str) -> str:
    """The message for an unsupported version of JAX."""
    return (
        f"recording needs JAX {OLDEST} or later, found {found}; upgrade it, or record with "
        "jax.profiler.trace(FOLDER) and open that (stepscope report FOLDER)"
    )
