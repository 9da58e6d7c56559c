"""Two-sided quantiles of Student's t, by confidence, for degrees of freedom from 1 on."""

import math
import statistics
from collections.abc import Sequence

# Source: the usual tables, such as NIST/SEMATECH, e-Handbook of Statistical Methods, 1.3.6.7.2.
_QUANTILES = {
    0.95: "12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 "
    "2.201 2.179 2.160 2.145 2.131 2.120 2.110 2.101 2.093 2.086",
    0.99: "63.66 9.925 5.841 4.604 4.032 3.707 3.499 3.355 3.250 3.169 "
    "3.106 3.055 3.012 2.977 2.947 2.921 2.898 2.878 2.861 2.845",
    0.995: "127.32 14.089 7.453 5.598 4.773 4.317 4.029 3.833 3.690 3.581 "
    "3.497 3.428 3.372 3.326 3.286 3.252 3.222 3.197 3.174 3.153",
}
STUDENT = {confidence: tuple(map(float, text.split())) for confidence, text in _QUANTILES.items()}


def student(freedom: float, confidence: float) -> float:
    """A quantile, that of fewer degrees of freedom where none is listed; of 0.95, 0.99 or 0.995."""
    quantiles = STUDENT[confidence]
    return quantiles[min(max(int(freedom), 1), len(quantiles)) - 1]


def error_of_mean(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half of the confidence interval of the mean of some values, in their unit; infinite for one."""
    if len(values) < 2:
        return math.inf
    return student(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
