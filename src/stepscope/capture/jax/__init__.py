"""Records the training steps of a JAX program; imports jax only once the program has."""

OLDEST = "0.8"


def too_old(found: str) -> str:
    """What to say of a JAX that cannot be watched."""
    return (
        f"expected JAX {OLDEST} or later to record, found {found}; upgrade it, or record with "
        "jax.profiler.trace(FOLDER) and open that (stepscope report FOLDER)"
    )
