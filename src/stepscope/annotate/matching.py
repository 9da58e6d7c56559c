"""Modules told by a model tree alone: its leaves matched with the names of operators, in order.

The tree's leaves tell which operators to look for (`operator_names`), the operators of each step
are laid out in a row (`operator_rows`), the calls that best explain them are searched
(`call_search`), and what lies between goes to a neighbour or to the block around
(`between_calls`). Backward follows forward where the file links them; otherwise it is matched too,
last node first.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.module_evidence import Evidence, tree_modules
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

Ids = NDArray[np.int32]
_LOSS = STAGES.index("loss")


def from_tree(trace: Trace) -> Evidence | None:
    """Modules from the model tree in the trace's metadata, matched with operators by name.

    Args:
        trace: with launches, backward links, steps and stages.

    Returns:
        The modules, those of the events that tell them, and how often each was called forward; None
        without a tree.

    Example:
        >>> evidence = from_tree(trace)  # doctest: +SKIP
        >>> evidence.modules[evidence.call_of[event]].path  # doctest: +SKIP
        'layer1.0.conv1'
    """
    modules = tree_modules(trace.metadata.model)
    if not modules:
        return None
    matcher = _Matcher(trace, modules)
    claims = np.full(len(trace.events), -1, np.int32)
    ...
