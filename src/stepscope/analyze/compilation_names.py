"""Names of the events in which a function is compiled."""

COMPILING = (
    r"dynamo_timed|compile_inner|^_compile|CompilationMetrics|compile_fx|entire_frame_compile"
    r"|^backend_compile(_and_load)?$"  # of JAX
)
