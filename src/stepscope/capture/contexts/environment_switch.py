"""Collect contexts in a job whose code and command cannot change: STEPSCOPE_CONTEXTS=FILE.

PyTorch calls `stepscope.autoload` when it is imported, as it calls every installed package that
names an entry point of the group `torch.backends` (2.5 and later; TORCH_DEVICE_BACKEND_AUTOLOAD=0
turns that off). Whatever goes wrong here, the import of PyTorch goes on.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "STEPSCOPE_CONTEXTS"
_OWNER = "STEPSCOPE_CONTEXTS_OWNER"


def begin() -> None:
    """Begin to collect; the file is written now and then, and when the process ends."""
    try:
        _begin(os.environ[VARIABLE])
    except Exception as error:
        print(f"stepscope: no contexts are collected: {error}", file=sys.stderr)


def _begin(output: str) -> None:
    import atexit
    import multiprocessing

    from stepscope.capture.capture_file import check_target
    from stepscope.capture.contexts.collection import Collection
    from stepscope.capture.contexts.context_options import ContextOptions
    from stepscope.capture.manifest import Run
    from stepscope.capture.options import RecordOptions, target_path

    is_worker = multiprocessing.current_process().daemon  # a data loader's
    is_ours = "stepscope.capture.run" in sys.modules  # `stepscope run` decides by itself
    if is_worker or is_ours or Collection.running is not None:
        return
    run = Run(list(sys.argv), RecordOptions())
    path = target_path(output, "", run.rank)
    if run.rank.world_size == 1 and _is_child():
        path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
    check_target(path)
    options = ContextOptions(
        native=_flag("NATIVE"), memory=_flag("MEMORY"), perf=_flag("PERF"), stalls=_flag("STALLS"),
        sample=_number("SAMPLE"), sample_real=_number("SAMPLE_REAL"),
    )  # fmt: skip
    collection = Collection(run, path, options, keep_empty=False)
    collection.start()
    atexit.register(collection.finish, "complete", "the run ended; collected its contexts")


def _is_child() -> bool:
    """Whether another process of the job has the file: a child gets one of its own."""
    owner = os.environ.setdefault(_OWNER, str(os.getpid()))
    return owner != str(os.getpid())


def _number(name: str) -> int:
    text = os.environ.get(f"{VARIABLE}_{name}", "") or "0"
    return int(text)


def _flag(name: str) -> bool:
    return bool(_number(name))
