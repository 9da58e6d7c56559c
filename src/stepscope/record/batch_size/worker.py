"""The process that measures: `python -m stepscope.record.batch_size.worker`, one request a line.

On Linux each request runs in a fresh child. Where it may, this process imports the framework for
all of them, which spares a second or two each time. It may not where a GPU is in reach (CUDA does
not survive a fork), or when the parent names none: the script cares what happens before. On other
systems the request runs right here, and the process ends with it.
"""

import _io
import builtins
import faulthandler
import functools
import io
import json
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from stepscope.base.scratch import Scratch, WriteWatch, enter, original_path, relocated, relocated_word
from stepscope.errors import CaptureError
from stepscope.record.batch_size.request import RunRequest
from stepscope.record.call_sites import LIBRARIES, is_internal
from stepscope.record.patch import AfterImport
from stepscope.record.script_runner import Program
from stepscope.record.unreplaced import time

_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "unable to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)
Json = dict[str, Any]
_LOOKS = 100  # at threads that do not come to rest; then it is forked all the same


def describe_failure(error: BaseException, entry: str) -> dict[str, Any]:
    """An exception as plain data; its line is the innermost in the folder of `entry`, else of no library."""
    file, line = _place(error, str(Path(entry).absolute().parent))
    return {
        "outcome": "out_of_memory" if is_out_of_memory(error) else "failed",
        "error": {
            "type": type(error).__name__,
            "message": str(error).strip() or type(error).__name__,
            "file": file,
            "line": line,
        },
    }


def is_out_of_memory(error: BaseException) -> bool:
    torch: Any = sys.modules.get("torch")
    if isinstance(error, MemoryError):
        return True
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(w.lower() in words for w in _MEMORY_WORDS)


def _place(error: BaseException, folder: str) -> tuple[str | None, int | None]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_internal(frame.filename) and not frame.filename.startswith("<")
    ]
    own = [place for place in frames if not place[0].startswith(LIBRARIES)]
    near = [place for place in own if place[0].startswith(folder)]
    places = near or own or frames
    return places[-1] if places else (None, None)


def serve_edited(files: Mapping[str, bytes]) -> None:
    """From now on these files have this content, in this process."""
    if not files:
        return
    content = {os.path.realpath(path): data for path, data in files.items()}
    sys.dont_write_bytecode = True
    _serve_open(content)
    _serve_code(content)


def _serve_open(content: Mapping[str, bytes]) -> None:
    original: Any = io.open

    def open(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        data = _edited(content, file)
        if data is None or set(mode) & set("wax+"):
            return original(file, mode, *rest, **named)
        stream = io.BytesIO(data)
        stream.name = os.fspath(file)
        how = dict(zip(("buffering", "encoding", "errors", "newline"), rest, strict=False)) | named
        encoding, errors, newline = map(how.get, ("encoding", "errors", "newline"))
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding or "utf-8", errors, newline)

    builtins.open = io.open = open


def _serve_code(content: Mapping[str, bytes]) -> None:
    """Imports read through `open_code`; without stats, importlib looks for no cached bytecode."""
    original: Any = _io.open_code
    stats = SourceFileLoader.path_stats

    def open_code(path: Any) -> Any:
        data = _edited(content, path)
        return original(path) if data is None else io.BytesIO(data)

    def path_stats(self: Any, path: str) -> Any:
        if _edited(content, path) is not None:
            raise OSError("edited in memory")
        return stats(self, path)

    _io.open_code = io.open_code = open_code
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


def _edited(content: Mapping[str, bytes], file: Any) -> bytes | None:
    return content.get(os.path.realpath(file)) if isinstance(file, str | Path) else None


def main() -> None:
    """Serve requests from stdin until it ends; each is answered by one line on stdout."""
    forks = sys.platform == "linux"
    has_gpu = any(Path(gpu).exists() for gpu in ("/dev/nvidiactl", "/dev/kfd"))
    if forks and not has_gpu:
        _preload(sys.argv[-1])
    _send({"ready": True, "forks": forks})
    for line in sys.stdin:
        request = RunRequest.from_json(line)
        if not forks:
            _serve(request)
        _send({"status": _in_child(request)})


def _send(fact: Json) -> None:
    print(json.dumps(fact), flush=True)


def _preload(framework: str) -> None:
    """Import what all requests need, once for all."""
    if framework not in ("torch", "jax") or find_spec(framework) is None:
        return
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    if framework == "torch":
        _preload_torch()
    else:
        import jax.numpy  # noqa: F401  # its devices and their threads come when the script first computes


def _preload_torch() -> None:
    """Import torch and make its profiler ready, which takes as long again."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch.profiler

    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    profiler.stop_trace()


def _in_child(request: RunRequest) -> int:
    _wait_for_threads()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # so that it can be ended with all that it starts, and this process kept
        _serve(request)
    with suppress(OSError):  # whichever of the two comes first
        os.setpgid(child, child)
    _send({"child": child})
    with suppress(OSError):  # Linux before 5.3 cannot
        _end_with_parent(child)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _end_with_parent(child: int) -> None:
    """Wait for the child, and kill it if who asked for it has ended: nobody reads its result."""
    ended = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.register(sys.stdin.fileno(), 0)  # reported when its other end is closed
        if ended not in dict(waiting.poll()):
            os.killpg(child, signal.SIGKILL)
    finally:
        os.close(ended)


def _wait_for_threads() -> None:
    """Until all others sleep: a lock that one of them holds would never be free in the child.

    The profiler has one that reads its configuration, right after it was made and then now and
    again (libkineto's ConfigLoader).
    """
    me = str(os.getpid())
    for _ in range(_LOOKS):
        tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != me]
        if all(_sleeps(task) for task in tasks):
            return
        time.sleep(0.01)


def _sleeps(task: Path) -> bool:
    with suppress(OSError):  # it has just ended
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"
    return True


def _serve(request: RunRequest) -> NoReturn:
    """Measure in this process, write the result and leave, past all exit functions."""

    watches: list[WriteWatch] = []
    answers = os.dup(1)

    def write(facts: Json) -> None:
        for watch in watches:
            facts["outside_writes"] = watch.stop()
        request.write(facts)

    def finish(facts: Json) -> NoReturn:
        write(facts)
        os._exit(0)

    try:
        _redirect(request.log)
        if request.scratch:  # before there is a second thread: namespaces are for lone ones
            scratch = Scratch.from_json(request.scratch)
            watches.append(enter(scratch, request.store, [str(Path(request.result).parent)]))
        faulthandler.dump_traceback_later(request.timeout_s, exit=True)
        finish(_measure(request, finish))
    except BaseException as error:
        _write_failure(write, describe_failure(error, request.entry), answers)
    finally:  # exit functions of what was forked may wait forever, as Kineto's do
        os._exit(1)


def _write_failure(write: Callable[[Json], None], facts: Json, answers: int) -> None:
    """Write the result, or answer that it cannot be written."""
    try:
        write(facts)
    except OSError as error:
        failure = f"cannot write the result: {error.strerror}"
        os.write(answers, json.dumps({"failed": failure}).encode() + b"\n")


def _measure(request: RunRequest, finish: Callable[[Json], object]) -> Json:
    """Run the entry; `finish` ends the process, unless a script ends before enough is measured."""
    os.chdir(relocated(request.folder))
    serve_edited(
        {
            relocated(path): text.encode(request.encodings.get(path, "utf-8"))
            for path, text in request.edits.items()
        }
    )

    makers = steps_of_frameworks(request, finish)
    return run_providers(request, makers) if request.providers else run_steps(request, makers)


def _redirect(log: str) -> None:
    """The script's output goes to a file, its input is empty."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((empty, 0), (target, 1), (target, 2)):
        os.dup2(source, number)


# -- a training script, or SKYLINE's provider functions, run until the steps are measured
# Source: Yu et al., Skyline (UIST 2020), "Provider Functions".

Makers = Mapping[str, Callable[[], Any]]  # of `Steps`, or of `Estimate`
_MODULE = "__stepscope_entry__"


def steps_of_frameworks(request: RunRequest, finish: Callable[[Json], object]) -> Makers:
    """What makes the measured steps of each framework, or an estimate, by the name of its module."""
    if request.estimate:
        from stepscope.record.batch_size.fake_memory import Estimate
        from stepscope.record.batch_size.torch_steps import watch_optimizers

        return {"torch": lambda: watch_optimizers(Estimate(request, finish))}

    def torch_steps() -> Any:
        from stepscope.record.batch_size.torch_steps import TorchSteps, watch_optimizers

        return watch_optimizers(TorchSteps(request, finish))

    def jax_steps() -> Any:
        from stepscope.record.batch_size.jax_steps import JaxSteps

        return JaxSteps(request, finish)

    return {"torch": torch_steps, "jax": jax_steps}


def run_steps(request: RunRequest, makers: Makers) -> Json:
    """Run the script and report its steps to a watcher for each framework that it imports."""
    watched = watch_imports(makers)
    try:
        arguments = [relocated_word(word) for word in request.arguments]
        target = request.module or relocated(request.entry)
        Program(target, arguments, is_module=request.module is not None).execute()
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    if not watched:
        return {"outcome": "no_steps", "why": f"it never imported {' or '.join(makers)}"}
    steps = max(watched, key=lambda steps: steps.count)
    if steps.count == 0:
        return {"outcome": "no_steps", "why": "; ".join(steps.why_no_steps for steps in watched)}
    return dict(steps.result())


def watch_imports(makers: Makers) -> list[Any]:
    """A list that gets what each maker makes, when the module of its name has been imported."""
    made: list[Any] = []
    for name, make in makers.items():
        AfterImport(name, lambda make=make: made.append(make())).install()  # type: ignore[misc]
    return made


def run_providers(request: RunRequest, makers: Makers) -> NoReturn:
    """Make iterations until enough is measured, which ends the process."""
    watched = watch_imports(makers)
    model, inputs, iterate = prepare(request)
    for steps in watched:
        steps.begin_iterations(model, inputs)
    iterate()
    training = [steps for steps in watched if steps.trains] or watched
    if not training:
        raise CaptureError(f"{request.entry} imports neither torch nor jax")
    while True:
        training[0].ended()
        iterate()


def prepare(request: RunRequest) -> tuple[Any, Any, Callable[[], object]]:
    """The model, its inputs, and a function that makes one iteration on them."""
    entry = load_entry(relocated(request.entry))
    model_of, inputs_of, iteration_of = (
        _provider(entry, f"{request.providers}_{name}_provider", request.entry)
        for name in ("model", "input", "iteration")
    )
    model = model_of()
    inputs = inputs_of(batch_size=request.batch)
    iteration = iteration_of(model)
    if isinstance(inputs, dict):
        return model, inputs, functools.partial(iteration, **inputs)
    arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return model, inputs, functools.partial(iteration, *arguments)


def load_entry(path: str) -> ModuleType:
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.argv = [path]
    module = ModuleType(_MODULE)
    module.__file__ = path
    sys.modules[_MODULE] = module
    with io.open_code(path) as source:
        code = compile(source.read(), original_path(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _provider(entry: ModuleType, name: str, path: str) -> Callable[..., Any]:
    provider = getattr(entry, name, None)
    if callable(provider):
        return provider
    raise CaptureError(
        f"{path} has no function {name}; it needs stepscope_model_provider(), "
        "stepscope_input_provider(batch_size=…) and stepscope_iteration_provider(model)"
    )


if __name__ == "__main__":
    main()
