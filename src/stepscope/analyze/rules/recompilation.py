"""`recompilation`: torch.compile or jax.jit compiles again while the training goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.search import Rows
from stepscope.analyze.subject import Subject
from stepscope.contexts import ContextTree

LEAST_TIMES = 2
_COMPILING = (
    r"dynamo_timed|compile_inner|^_compile|CompilationMetrics|compile_fx|entire_frame_compile"
    r"|^backend_compile(_and_load)?$"  # of JAX
)
_AGAIN = re.compile(
    r"^compilation of (?P<name>.+?)(?P<backward>, backward)?, again(?:: (?P<why>.+))?$"
)
_ADVICE = (
    "Something that it took for constant changes (see TORCH_LOGS=recompiles): mark a varying "
    "size with torch._dynamo.mark_dynamic or dynamic=True, pad batches to a few sizes, and "
    "keep numbers that change in tensors."
)
_OF_JAX = (
    "Shapes, types or static arguments change from call to call, or the function is made anew "
    "(jax.config.update('jax_explain_cache_misses', True) says which): pad batches to a few sizes, "
    "pass numbers as arrays, and call jax.jit once, outside the loop."
)
_WHY = "at most the time of compiling"


def recompilation(subject: Subject) -> Iterator[Finding]:
    """Compilation in the steps, after the warm-up; in the contexts of a run, again and again.

    Silent where nothing compiles in them, where the recorder does not tell compilation (PyTorch
    before 2.4), and in contexts where a function is compiled again once only: so torch.compile
    learns that a size varies.
    """
    if subject.unfolded and subject.contexts is not None:
        yield from _in_tree(subject, subject.contexts)
        return
    rows = subject.outermost(subject.find(_COMPILING, category=("annotation", "cpu_op")))
    if not len(rows):
        return
    who = subject.in_words("torch.compile", jax="jax.jit")
    yield subject.finding(
        f"{who} compiles {subject.calls(rows):.4g} times a step: {subject.ms(rows):.4g} ms.",
        subject.in_words(_ADVICE, jax=_OF_JAX),
        rows,
        subject.bound(subject.ms(rows), _WHY),
    )


def _in_tree(subject: Subject, tree: ContextTree) -> Iterator[Finding]:
    nodes = tree.search(_AGAIN.pattern, kind="annotation")
    if not len(nodes) or not tree.has("call_ns"):
        return
    nodes = _often(tree, nodes)
    if not len(nodes):
        return
    spent = tree.own("call_ns")
    nodes = nodes[(-spent.sum[nodes]).argsort(kind="stable")]
    ms = float(spent.sum[nodes].sum()) / 1e6
    yield subject.finding_in_tree(
        f"torch.compile compiled again {_times(tree, nodes):.4g} times, {ms:.4g} ms in all, "
        f"mostly {_told(tree.label(nodes[0]))}.",
        _ADVICE,
        nodes,
        subject.bound(ms / subject.count, _WHY),
    )


def _often(tree: ContextTree, nodes: Rows) -> Rows:
    """Those of the functions that are compiled again at least twice."""
    place = [_function(tree, node) for node in nodes.tolist()]
    times: Counter[tuple[str, int]] = Counter()
    for node, at in zip(nodes.tolist(), place, strict=True):
        times[at] += 0 if _is_backward(tree, node) else int(tree.own("call_ns").count[node])
    return nodes[[times[at] >= LEAST_TIMES for at in place]]


def _function(tree: ContextTree, node: int) -> tuple[str, int]:
    """File and line of what was compiled, or else who called it."""
    file = tree.nodes.text("file")[node] or ""
    return file, int(tree.nodes["line"][node] if file else tree.parent[node])


def _times(tree: ContextTree, nodes: Rows) -> int:
    """How often, counting a function and its backward once."""
    forward = [node for node in nodes.tolist() if not _is_backward(tree, node)]
    return int(tree.own("call_ns").count[forward].sum())


def _is_backward(tree: ContextTree, node: int) -> bool:
    found = _AGAIN.match(tree.label(node))
    return bool(found and found["backward"])


def _told(label: str) -> str:
    """The function, and why it was compiled again where torch told it."""
    found = _AGAIN.match(label)
    if found is None:
        return label
    return found["name"] + (f" ({found['why']})" if found["why"] else "")
