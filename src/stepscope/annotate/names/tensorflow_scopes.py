"""What the names of TensorFlow's operations say: `gradient_tape/model/dense/MatMul/MatMul_1`.

`tf.GradientTape` puts the gradients of an operation below the operation's own name, Keras names the
operations of a layer, a loss and an optimizer after their classes, and a function that calls
another puts the call's name first. Names of JAX have transformations, with parentheses.

Source: tensorflow/python/eager/backprop.py; keras/src/backend/common/name_scope.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(
    r"^(?P<calls>(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*)"
    r"(?P<gradient>(?:gradient_tape|gradients)(?:_\d+)?/)?(?P<rest>[^()]*)$"
)
_OPTIMIZER = re.compile(
    r"(?i)^(adam\w?|adamax|nadam|adagrad|adadelta|adafactor|rmsprop|sgd|ftrl|lion|lamb|muon"
    r"|loss_scale_optimizer|gradientdescent|momentum)(_\d+)?$"
)
_LOSS = re.compile(r"(?i)(?<![a-z])loss(?![a-z])|cross_?entropy|mean_(squared|absolute)_error")


class OperationName(NamedTuple):
    """A parsed name.

    Attributes:
        stage: None where the name alone does not say it.
        layers: names of what encloses the operation, the outermost first; of a gradient those of
            the operation that it is of.
        primitive: the operation itself.
    """

    stage: str | None
    layers: tuple[str, ...]
    primitive: str


def operation_name(text: str) -> OperationName | None:
    """Parse a name; None if nothing in it is TensorFlow's own.

    Example:
        >>> operation_name("gradient_tape/model/dense/MatMul/MatMul_1")
        OperationName(stage='backward', layers=('model', 'dense'), primitive='MatMul_1')
        >>> operation_name("adam/Sub_2").stage
        'optimizer'
    """
    found = _NAME.match(text)
    if found is None:
        return None
    *around, primitive = found["rest"].split("/")
    if found["gradient"]:
        of = around[-1:] and around[-1][:1].isupper()  # an operation; layers are in lower case
        return OperationName("backward", tuple(around[:-1] if of else around), primitive)
    stage = _stage_of_layer(around[0]) if around else None
    if not (stage or found["calls"]):
        return None
    return OperationName(stage, tuple(around), primitive)


def _stage_of_layer(name: str) -> str | None:
    if _OPTIMIZER.match(name):
        return "optimizer"
    return "loss" if _LOSS.search(name) else None


def layers_with_gradients(texts: Iterable[str]) -> set[str]:
    """The outermost layers of which a profile has gradients."""
    names = filter(None, map(operation_name, texts))
    return {one.layers[0] for one in names if one.stage == "backward" and one.layers}


def loads_next_batch(name: str) -> bool:
    """Whether a thread waits for a batch of tf.data in an event of this name."""
    return name.startswith("IteratorGetNextOp::")
