"""Ranges around calls of a JAX program: loaders, savers, waits, transfers."""

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

from stepscope.record.patch import Hooks, holders, replace, subclasses

# Name as torch.profiler gives it; module and class of iterators, with all classes derived from it.
_LOADERS = (
    ("DataLoader", "torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("grain", "grain._src.python.data_loader", "DataLoaderIterator"),
    ("grain", "grain._src.python.dataset.dataset", "DatasetIterator"),
    ("tf.data", "tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
    ("tf.data", "tensorflow.python.data.ops.dataset_ops", "NumpyIterator"),
)
# Asks for each batch by the built-in `next`, whatever loads it: arrays, datasets, generators.
_KERAS = "keras.src.backend.jax.trainer"
_SESSIONS = ("profile_session", "session")  # what JAX calls that of its profiler; 0.12 the second
# Module, class with those derived from it, or nothing, and functions that write to a disk.
_SAVERS = (
    ("pickle", "", ("dump",)),
    ("numpy", "", ("savez", "savez_compressed")),
    ("orbax.checkpoint", "Checkpointer", ("save", "wait_until_finished")),
    ("orbax.checkpoint", "CheckpointManager", ("save", "wait_until_finished")),
    ("flax.training.checkpoints", "", ("save_checkpoint", "save_checkpoint_multiprocess")),
    ("equinox", "", ("tree_serialise_leaves",)),
    ("safetensors.flax", "", ("save_file",)),
    ("safetensors.numpy", "", ("save_file",)),
)


LOADING, SAVING = "enumerate(", "stepscope.checkpointing: "  # names of the ranges begin so


class LibraryRanges(Hooks):
    """Ranges around calls that load batches or save checkpoints, named as in PyTorch programs.

    Only libraries that the program has imported are watched, until removed. Iterators of loaders may
    ask each other, one for each element of a batch, also in threads that load ahead: the outermost
    call on the main thread counts. `ranging` makes the range of a name.
    """

    def __init__(self, ranging: Callable[[str], AbstractContextManager[object]] | None = None) -> None:
        self._ranging = ranging or jax.profiler.TraceAnnotation
        self._restore = []
        self._is_inside = False
        for loader, module, name in _LOADERS:
            base = getattr(sys.modules.get(module), name, None)
            for iterator in (base, *subclasses(base)) if isinstance(base, type) else ():
                label = f"{LOADING}{loader})#{iterator.__name__}.__next__"
                self._watch(iterator, "__next__", label)
        keras = sys.modules.get(_KERAS)
        if keras is not None:
            ours = self._around(getattr(keras, "next", next), f"{LOADING}keras)#next")
            self._restore.append(replace(keras, "next", ours))
        for module, name, functions in _SAVERS:
            holder = sys.modules.get(module)
            for function in functions if holder is not None else ():
                label = ".".join(filter(None, (module, name, function)))
                owner: Any = getattr(holder, name, None) if name else holder
                is_class, original = isinstance(owner, type), getattr(owner, function, None)
                for each in (owner, *subclasses(owner)) if is_class else holders(original, function):
                    self._watch(each, function, f"{SAVING}{label} ()")

    def _watch(self, holder: Any, name: str, label: str) -> None:
        original = vars(holder).get(name) if hasattr(holder, "__dict__") else None
        if callable(original):
            self._restore.append(replace(holder, name, self._around(original, label)))

    def _around(self, original: Any, label: str) -> Any:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                with self._ranging(label):
                    return original(*args, **kwargs)
            finally:
                self._is_inside = False

        return watched


_VALUE_USES = {
    "__float__": "float(x)",
    "__int__": "int(x)",
    "__bool__": "bool(x)",
    "__index__": "index",
    "__complex__": "complex(x)",
    "__array__": "np.asarray(x)",
    "__str__": "str(x)",
    "__repr__": "repr(x)",
    "__format__": "format(x)",
    "tolist": "x.tolist()",
    "tobytes": "x.tobytes()",
    "__iter__": "iteration",
    "__reduce__": "pickle",
}


Begin = Callable[[str], Any]  # opens the range of a name
End = Callable[[Any], object]  # closes what that returned


def watch_waits(begin: Begin, end: End, transfers: bool = True) -> tuple[list[Callable[[], None]], list[str]]:
    """Put a range around each wait and each transfer.

    JAX returns from a call before its work is done. The program waits where it asks for a value:
    explicitly (`block_until_ready`), or by using one (`float(x)`, `print(x)`). Returns functions
    that undo it, and the names of what this version of JAX lacks.
    """
    restore: list[Callable[[], None]] = []
    missing: list[str] = []
    places = [place for place in _places() if transfers or place[0].startswith("wait: ")]
    for name, holder, attribute in places:
        original = getattr(holder, attribute, None)
        if original is None:
            missing.append(name)
        elif isinstance(original, property):
            restore.append(replace(holder, attribute, _watched_value(begin, end, original)))
        else:
            restore.append(replace(holder, attribute, _watched(begin, end, name, original)))
    return restore, missing


def _places() -> list[tuple[str, Any, str]]:
    """The name of each context, and the attribute to watch for it."""
    arrays: Any = sys.modules.get("jax._src.array")
    array = getattr(arrays, "ArrayImpl", None)
    dispatch = sys.modules.get("jax._src.dispatch")
    has_lower = hasattr(dispatch, "_batched_device_put_impl")
    # below jnp.asarray too, where this version has it
    put = (dispatch, "_batched_device_put_impl") if has_lower else (jax, "device_put")
    return [
        ("wait: block_until_ready", jax, "block_until_ready"),
        ("wait: block_until_ready", array, "block_until_ready"),
        ("wait: effects_barrier", jax, "effects_barrier"),
        ("wait: values of arrays", array, "_value"),
        ("transfer: device_get", jax, "device_get"),
        ("transfer: device_put", *put),
    ]


def _watched(begin: Begin, end: End, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    names = ("__module__", "__name__", "__qualname__", "__doc__")  # of which methods in C++ may lack some
    named = [one for one in names if isinstance(getattr(function, one, None), str)]

    @functools.wraps(function, assigned=named)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        token = begin(name)
        try:
            return function(*arguments, **keywords)
        finally:
            end(token)

    return watched


def _watched_value(begin: Begin, end: End, original: property) -> property:
    """The property that every conversion of an array reads; its value is kept once it is known."""
    read = original.fget
    assert read

    def watched(array: Any) -> Any:
        if getattr(array, "_npy_value", None) is not None:
            return read(array)
        use = sys._getframe(1).f_code.co_name
        token = begin(f"wait: {_VALUE_USES.get(use, 'value')}")
        try:
            return read(array)
        finally:
            end(token)

    return property(watched, doc=original.__doc__)


def profiler_sessions() -> list[Any]:
    """The session of the profiler that the program runs, or None; nothing where JAX keeps none."""
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    return [getattr(state, name) for name in _SESSIONS if hasattr(state, name)]
