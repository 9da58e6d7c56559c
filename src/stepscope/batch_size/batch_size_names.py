"""Names of batch sizes, for training or evaluation."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words that may be next to "batch" without making it something else (num_batches, batch_norm).
_BESIDE = {
    "size", "sizes", "sz", "bs", "train", "training", "trainer", "per", "device", "gpu", "rank",
    "worker", "replica", "core", "micro", "mini", "global", "local", "total", "effective", "base",
    "default", "initial", "init", "max", "n", "num", "samples", "images", "ims", "imgs", "the",
    "step", "b",
}  # fmt: skip
_EVALUATE = {
    "eval", "evaluate", "evaluation", "val", "valid", "validation", "validate", "dev", "test",
    "testing", "infer", "inference", "pred", "predict", "prediction", "gen", "generation",
    "sample", "sampling", "benchmark", "calibration",
}  # fmt: skip
_SHORT = {"bs", "bsz", "batchsize", "minibatch", "microbatch", "batchsz"}


def words(name: str) -> list[str]:
    """`per_device_trainBatch` as per, device, train, batch."""
    return [word.lower() for word in _WORD.findall(name)]


def is_batch_size(name: str) -> bool:
    """Whether this is a name for a number of samples in a batch.

    Example:
        >>> is_batch_size("--train-batch-size"), is_batch_size("num_batches")
        (True, False)
    """
    found = words(name)
    core = [word for word in found if word not in _EVALUATE]
    if not core or not any(word == "batch" or word in _SHORT for word in core):
        return False
    known = all(word in _BESIDE or word == "batch" or word in _SHORT for word in core)
    return known and name.isascii()


def is_evaluation(name: str) -> bool:
    """Whether a name refers to evaluation data: `val_loader`, `test_set`."""
    return any(word in _EVALUATE for word in words(name)) and not is_training(name)


def is_training(name: str) -> bool:
    """Whether a name refers to training data."""
    return any(word in ("train", "training", "trainer") for word in words(name))
