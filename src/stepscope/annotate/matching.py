"""Modules told by a model tree alone: its leaves matched, in order, with the names of operators.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.between_calls import Calls, owners
from stepscope.annotate.call_search import Search
from stepscope.annotate.expected_calls import Expectation, expect
from stepscope.annotate.module_evidence import Evidence, Module, tree_modules
from stepscope.annotate.operator_rows import Rows, backward_rows, forward_rows, recomputed_rows
from stepscope.trace.trace import Trace
