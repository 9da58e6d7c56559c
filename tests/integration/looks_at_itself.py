"""A script that looks at itself before, while and after it trains: a line for each probe and moment.

`test_looks_at_itself.py` compares what it prints with and without stepscope.
"""

import asyncio
import atexit
import builtins
import contextvars
import copy
import decimal
import faulthandler
import fcntl
import gc
import hashlib
import inspect
import io
import linecache
import locale
import logging
import multiprocessing.util
import os
import pickle
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
import warnings
import weakref

import numpy as np
import torch
from torch.optim import optimizer as optimizers
from torch.nn.modules import module as modules
from torch.utils.data import DataLoader

random.seed(0), np.random.seed(0), torch.manual_seed(0)


class Saved:
    """Of `__main__`, for pickles."""


def about(function: object) -> tuple[object, ...]:
    names = ("__module__", "__qualname__", "__doc__", "__defaults__", "__dict__")
    return type(function).__name__, *(getattr(function, name, None) for name in names)


def proc(name: str, *fields: str) -> list[str]:
    with open(f"/proc/self/{name}") as file:
        return [line for line in file if line.startswith(fields)]


def forked(action: str) -> int:
    process = os.fork()
    if not process:
        try:
            exec(action)
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1]


def frames() -> list[str]:
    return [frame.name for frame in traceback.extract_stack()[:-3]]


def raised() -> str:
    try:
        model(torch.zeros(1, 9))
    except RuntimeError:
        return traceback.format_exc()
    return ""


def warned() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        warnings.warn("by the script", stacklevel=2)
    return [f"{one.category.__name__} {one.message} {os.path.basename(one.filename)}" for one in caught]


digest = lambda value: hashlib.sha1(repr(value).encode()).hexdigest()[:8]  # noqa: E731
PROBES = {
    # threads
    "threads": "[thread.name for thread in threading.enumerate()]",
    "active threads": "threading.active_count()",
    "native threads": "len(os.listdir('/proc/self/task'))",
    "thread of main": "threading.current_thread().name, threading.current_thread() is threading.main_thread()",
    "hooks of threads": "threading.excepthook.__module__, threading.gettrace(), threading.getprofile()",
    "size of stacks": "threading.stack_size()",
    "locals of threads": "len(threading.local().__dict__)",
    # hooks
    "excepthook": "sys.excepthook is sys.__excepthook__",
    "displayhook": "sys.displayhook is sys.__displayhook__",
    "breakpointhook": "sys.breakpointhook is sys.__breakpointhook__",
    "unraisablehook": "sys.unraisablehook is sys.__unraisablehook__",
    "finders": "[getattr(finder, '__name__', type(finder).__name__) for finder in sys.meta_path]",
    "path hooks": "len(sys.path_hooks)",
    "search path": "sys.path",
    "callbacks at exit": "atexit._ncallbacks()",
    "tracer": "sys.gettrace(), sys.getprofile()",
    "monitoring": "[sys.monitoring.get_tool(tool) for tool in range(6)] if hasattr(sys, 'monitoring') else 0",
    "import": "about(builtins.__import__)",
    "builtins": "sorted(vars(builtins))",
    "print": "about(print), about(open), about(exec), about(compile)",
    "generators": "sys.get_asyncgen_hooks()",
    "origin of coroutines": "sys.get_coroutine_origin_tracking_depth()",
    # signals
    "handlers": "[str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]",
    "masked signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [])",
    "timers": "[signal.getitimer(timer) for timer in (0, 1, 2)]",
    "wakeup": "signal.set_wakeup_fd(-1)",
    "signals of the kernel": "proc('status', 'SigBlk', 'SigIgn', 'SigCgt')",
    # collection
    "collector": "gc.isenabled(), gc.get_threshold(), gc.get_debug()",
    "callbacks of collection": "len(gc.callbacks)",
    "frozen": "gc.get_freeze_count()",
    "garbage": "gc.garbage",
    # flags
    "flags": "sys.flags",
    "options": "sys.warnoptions, sys._xoptions",
    "arguments": "sys.argv",
    "executable": "os.path.basename(sys.executable), sys.prefix, sys.exec_prefix",
    "bytecode": "sys.dont_write_bytecode, sys.pycache_prefix",
    "limits of the interpreter": "sys.getrecursionlimit(), sys.getswitchinterval()",
    "digits": "getattr(sys, 'get_int_max_str_digits', int)()",
    "interactive": "hasattr(sys, 'ps1'), bool(sys.flags.interactive)",
    # main
    "names of main": "sorted(vars(sys.modules['__main__']))",
    "main": "__name__, os.path.basename(__file__), __spec__, __package__, type(__loader__).__name__",
    "main is": "sys.modules['__main__'].__dict__ is globals(), type(__builtins__).__name__",
    "docstring": "__doc__",
    "annotations": "'__annotations__' in vars(sys.modules['__main__'])",
    "pickled class": "pickle.dumps(Saved)",
    "pickled object": "type(pickle.loads(pickle.dumps(Saved()))) is Saved",
    "source": "inspect.getsource(about).count('\\n'), inspect.getsourcefile(about) == __file__",
    "module of a class": "inspect.getmodule(Saved).__name__",
    # frames
    "stack": "frames()",
    "depth": "len(inspect.stack()) - len(frames())",
    "bottom": "[frame.name for frame in traceback.extract_stack()][:1]",
    "caller": "sys._getframe(1).f_code.co_name",
    "traceback": "raised()",
    "warnings": "warned()",
    "lines of warnings": "sorted(k for k in globals().get('__warningregistry__', {}) if k != 'version')",
    "filters": "len(warnings.filters)",
    "showwarning": "about(warnings.showwarning)",
    "recursion": "sys.getrecursionlimit() - len(inspect.stack())",
    # files
    "descriptors": "sorted(int(name) for name in os.listdir('/proc/self/fd'))",
    "next descriptor": "(lambda number: (number, os.close(number)))(os.dup(0))",
    "folder": "os.getcwd()",
    "files": "sorted(os.listdir())",
    "mask": "os.umask(0o22)",
    "temporary folder": "tempfile.gettempdir(), tempfile.tempdir",
    "temporary files": "sorted(os.listdir(tempfile.gettempdir()))",
    "mounts": "len(open('/proc/self/mounts').read()) > 0",
    "root": "os.readlink('/proc/self/root')",
    "stdout": "type(sys.stdout).__name__, sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering",
    "stdin": "type(sys.stdin).__name__, sys.stdin.encoding, sys.stdin.isatty()",
    "streams": "sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__",
    # process
    "environment": "sorted(os.environ.items())",
    "limits": "[resource.getrlimit(number) for number in range(16)]",
    "priority": "os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0)",
    "parents": "os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()",
    "children": "open('/proc/self/task/%d/children' % os.getpid()).read()",
    "user": "os.getresuid(), os.getresgid(), sorted(os.getgroups())",
    "privileges": "proc('status', 'NoNewPrivs', 'Seccomp:', 'Cap', 'Umask', 'TracerPid')",
    "name": "proc('status', 'Name'), open('/proc/self/comm').read()",
    "out of memory score": "open('/proc/self/oom_score_adj').read()",
    "slack": "open('/proc/self/timerslack_ns').read()",
    "personality": "open('/proc/self/personality').read()",
    # clocks
    "clocks": "about(time.time), about(time.perf_counter), about(time.sleep)",
    "zone": "time.tzname, time.timezone",
    "clock": "abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 5",
    # libraries
    "locale": "locale.setlocale(locale.LC_ALL, None), sys.getfilesystemencoding()",
    "decimal": "str(decimal.getcontext())",
    "fault handler": "faulthandler.is_enabled()",
    "memory tracer": "tracemalloc.is_tracing()",
    "loop": "type(asyncio.get_event_loop_policy()).__name__",
    "debug of loops": "asyncio.run(asyncio.sleep(0)), sys.flags.dev_mode, os.environ.get('PYTHONASYNCIODEBUG')",
    "start method": "multiprocessing.get_start_method(allow_none=True), multiprocessing.active_children()",
    "timeout of sockets": "socket.getdefaulttimeout()",
    "log": "logging.root.level, len(logging.root.handlers), logging.raiseExceptions, logging._srcfile is None",
    "loggers": "sorted(name for name in logging.root.manager.loggerDict if 'step' in name.lower())",
    "popen": "about(subprocess.Popen.__init__), about(os.fork), about(os.open)",
    "fork": "forked('threading.active_count() == 1 or os._exit(9)')",
    "fork and train": "forked('train(2)')",
    "program": "subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.path)'], capture_output=True)",
    # registries
    "handlers of logging": "len(logging._handlerList), logging.getLoggerClass(), logging.root.manager.disable",
    "registries of warnings": "sorted(n for n, m in [*sys.modules.items()] if getattr(m, '__warningregistry__', 0))",
    "finalizers": "len(weakref.finalize._registry), len(multiprocessing.util._finalizer_registry)",
    "callbacks of forks": "len(multiprocessing.util._afterfork_registry)",
    "threads that ended": "len(threading._dangling), len(threading._active), len(sys._current_frames())",
    "variables of contexts": "[variable.name for variable in contextvars.copy_context()]",
    "cached importers": "os.path.abspath(__file__) in sys.path_importer_cache",
    "cached lines": "len(linecache.cache)",
    "weak references": "weakref.getweakrefcount(optimizer), weakref.getweakrefcount(model)",
    "referrers of globals": "sorted(type(one).__name__ for one in gc.get_referrers(globals()))",
    # kernel
    "command": "open('/proc/self/cmdline').read().split('\0')[-3:]",
    "libraries": "sorted({line.split()[-1] for line in open('/proc/self/maps') if 'stepscope' in line})",
    "timers of the kernel": "open('/proc/self/timers').read()",
    "flags of descriptors": "[(n, fcntl.fcntl(n, fcntl.F_GETFD), fcntl.fcntl(n, fcntl.F_GETFL)) for n in (0, 1, 2)]",
    "environment of the kernel": "sorted(open('/proc/self/environ').read().split('\0'))",
    "environment of children": "subprocess.run('env', capture_output=True).stdout.split()",
    # What this process holds: others on the machine come and go.
    "shared memory": "sorted(line.split()[-1] for line in open('/proc/self/maps') if '/dev/shm/' in line)",
    # random states
    "random": "digest(random.getstate())",
    "random of NumPy": "digest(np.random.get_state())",
    "random of PyTorch": "digest(torch.get_rng_state().tolist())",
    # PyTorch
    "profiler flag": "torch.autograd.profiler._is_profiler_enabled, torch._C._autograd._profiler_enabled()",
    "profiler type": "str(torch._C._autograd._profiler_type())",
    "gradients": "torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()",
    "threads of PyTorch": "torch.get_num_threads(), torch.get_num_interop_threads()",
    "determinism": "torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()",
    "types": "torch.get_default_dtype(), torch.get_default_device()",
    "hooks of the optimizer": "len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)",
    "hooks of all optimizers": "len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)",
    "hooks of the model": "len(model._forward_hooks), len(model._forward_pre_hooks), len(model._backward_hooks)",
    "hooks of all modules": "len(modules._global_forward_hooks), len(modules._global_forward_pre_hooks)",
    "hooks of backward": "len(modules._global_backward_hooks), len(modules._global_backward_pre_hooks)",
    "hooks of registration": "len(modules._global_module_registration_hooks)",
    "hooks of parameters": "[parameter._backward_hooks for parameter in model.parameters()]",
    "call": "about(torch.nn.Module.__call__), about(torch.nn.Linear.forward)",
    "step": "about(torch.optim.SGD.step), about(torch.optim.SGD.zero_grad), about(optimizer.step)",
    "backward": "about(torch.Tensor.backward), about(torch.autograd.backward), about(torch.autograd.grad)",
    "loader": "about(DataLoader.__iter__), about(type(iter(loader)).__next__)",
    "save": "about(torch.save), about(torch.load), about(torch.compile)",
    "signatures": "inspect.signature(torch.optim.SGD.step), inspect.signature(torch.Tensor.backward)",
    "names of the model": "sorted(vars(model)), sorted(vars(optimizer)), sorted(vars(loader))",
    "copy": "sorted(vars(copy.deepcopy(optimizer))), sorted(vars(copy.deepcopy(model)))",
    "pickled model": "len(pickle.dumps(model)), len(pickle.dumps(optimizer.state_dict()))",
    "saved": "(lambda file: (torch.save(model.state_dict(), file), len(file.getvalue())))(io.BytesIO())",
    "task of backward": "torch._C._current_graph_task_id(), torch._C._get_tracing_state()",
    "backends": "torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled, torch.is_autocast_enabled()",
    "functions of a graph": "model(torch.ones(2, 4)).grad_fn.metadata",
    "weights": "digest([parameter.tolist() for parameter in model.parameters()])",
    "modes": "torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()",
    "saved tensors": "torch._C._autograd._top_saved_tensors_default_hooks(True)",
    "referrers of the model": "sys.getrefcount(model), sys.getrefcount(optimizer)",
}


class Model(torch.nn.Sequential):
    pass


model = Model(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.arange(80.0).reshape(20, 4), batch_size=2)


def look(moment: str) -> None:
    for name, probe in PROBES.items():
        try:
            seen = repr(eval(probe))
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        print(f"{moment}\t{name}\t{seen!r}", flush=True)


def train(steps: int, looked_at: int = -1) -> None:
    for step, batch in zip(range(steps), loader, strict=False):
        loss = model(batch).square().mean()
        if step == looked_at:
            look("while it trains")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    look("before")
    train(10, 5)
    look("after")
    atexit.register(look, "at exit")
