"""`hotspot`: one kernel, or one operator, takes a large part of the step (DEEPCONTEXT 4.3, 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject, glob
from stepscope.annotate.kernel_names import short_kernel


class Remedy(NamedTuple):
    """What to do about kernels and operators of such a name; `jax` where it differs there."""

    pattern: str
    advice: str
    jax: str = ""


# The first that matches counts.
REMEDIES = (
    Remedy(
        r"::(uniform_|normal_|trunc_normal|bernoulli_|random_|exponential_|erfinv_?|randn?|randint)$",
        "If these set up weights, do so once, before the training loop; noise and masks may be "
        "drawn in the data loader's workers, or on the device.",
    ),
    Remedy(
        r"(?i)softmax",
        "In attention use F.scaled_dot_product_attention, which never writes the softmax to "
        "memory; in a loss F.cross_entropy.",
        "In attention use jax.nn.dot_product_attention, which need not write the softmax to "
        "memory; in a loss optax.softmax_cross_entropy_with_integer_labels.",
    ),
    Remedy(
        r"(?i)naive_conv|slow_conv",
        "This is a library's fallback: see that shapes, type and layout suit a fast convolution "
        "(channels_last, multiples of 8), and let the library search "
        "(torch.backends.cudnn.benchmark=True).",
        "This is a library's fallback: see that shapes, type and layout suit a fast convolution "
        "(NHWC, multiples of 8).",
    ),
    Remedy(
        r"(?i)sort|topk|unique",
        "Sort fewer elements, or once for several steps; a mask or a running maximum may do.",
    ),
    Remedy(
        r"(?i)cumsum|cumprod|scan",
        "See whether a reduction does, or a matrix product with a triangular matrix.",
    ),
    Remedy(
        r"(?i)copy|cat|clone|contiguous|transpose",
        "See which copies are needed: write into one tensor allocated before (out=, slices), keep "
        "one layout, avoid .contiguous().",
        "See which copies are needed: donate what a step replaces (jax.jit with donate_argnums), "
        "update in place with .at[…].set under jax.jit, keep one layout.",
    ),
    Remedy(r"", "See whether it needs to run, runs on more than it must, or has a faster form."),
)
LEAST = 0.15
MOST_FINDINGS = 3
_RECURRENT = re.compile(r"(?i)_rnn|rnn_|rnncell|lstm|gru_|_gru")
EXPECTED = ("gemm", "convolution", "attention", "communication", "optimizer")


def hotspot(subject: Subject) -> Iterator[Finding]:
    """A kernel (without a device, an operator) that takes 15 % of the step or more.

    Silent about matrix products, convolutions, attention and recurrent layers, which are what a
    network computes and have rules of their own, and about the optimizer and communication.

    Source: DEEPCONTEXT section 4.3, "Hotspot Identification"; section 6.5 on what is expected.
    """
    rows = subject.find(category=("kernel", "memcpy", "memset"), on_device=True) \
        if subject.has_device else subject.find(category="cpu_op")  # fmt: skip
    time = subject.events["duration_ns" if subject.has_device else "self_ns"][rows]
    kinds = subject.events.text("kind").mask(*EXPECTED)[rows]
    kinds |= subject.events.text("name").where(lambda name: bool(_RECURRENT.search(name)))[rows]
    spent = np.bincount(subject.events["name"][rows[~kinds]], time[~kinds])
    whole = subject.step_ms * 1e6 * subject.count
    for code in np.argsort(-spent)[:MOST_FINDINGS].tolist():
        chosen = rows[(subject.events["name"][rows] == code) & ~kinds]
        if subject.share(chosen, own=not subject.has_device) < LEAST:
            continue
        name = subject.events.text("name").values[code]
        yield subject.finding(
            f"{short_kernel(name, 50)} takes {spent[code] / whole:.0%} of the step, "
            f"{_times(subject.calls(chosen))} a step{subject.most_in(chosen)}.",
            _advice(subject, name),
            chosen,
            subject.gain(chosen, f"scale:select=name={glob(name)},factor=0.5",
                         note="if it took half as long", part=0.5),
        )  # fmt: skip


def _advice(subject: Subject, name: str) -> str:
    found = next(one for one in REMEDIES if re.search(one.pattern, name))
    return subject.in_words(found.advice, jax=found.jax or found.advice)


def _times(calls: float) -> str:
    return "once" if calls == 1 else f"{calls:.4g} times"
