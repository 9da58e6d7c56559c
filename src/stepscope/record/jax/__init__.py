"""Records the training steps of a JAX program; imports jax only once the program has."""

MEMBER = "trace.xplane.pb"
OTHER_PROFILER = (
    "cannot start JAX's profiler: the script runs its own; open what that one writes "
    "(stepscope report FOLDER)"
)


def cannot_record(version: str, why: str) -> str:
    """The message for a version of JAX that cannot be recorded at all."""
    return (
        f"cannot record JAX {version}: {why}; upgrade it or stepscope, or record with "
        "jax.profiler.trace(FOLDER) and open that (stepscope report FOLDER)"
    )
