"""`recurrent_loop`: a recurrent cell is called for each element of a sequence."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

EXPLAINS = ("host", "launch")
MANY = 16  # calls per step
CELL = r"^aten::(lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell)$"
_LAYERS = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn": "nn.RNN"}
ADVICE = (
    "If all elements of the sequence are known before, give the whole sequence to {} instead. "
    "It has the same weights, multiplies all elements at once and needs one call."
)


def recurrent_loop(context: RuleContext) -> Iterator[Finding]:
    """nn.LSTMCell, nn.GRUCell or nn.RNNCell in a Python loop over time, instead of nn.LSTM.

    Silent for fewer than 16 calls per step, and below 5 % of the step.
    """
    cells = context.search.outermost(context.search.find(CELL, category="cpu_op"))
    if context.context_trace or context.measures.calls(cells) < MANY:
        return
    calls = np.union1d(cells, context.search.backward_of(cells))
    spent = context.measures.longer_side_ms(calls)
    if not context.measures.has_device:
        spent = context.eager.ms(context.eager.around(calls))  # with Python between them
    if context.measures.is_small(spent):
        return
    longest = int(cells[np.argmax(context.events["duration_ns"][cells])])
    kind = context.search.name(longest).removeprefix("aten::").partition("_")[0]
    yield context.finding(
        f"A recurrent cell runs {context.times(cells)} per step, once per sequence element."
        f"{context.main_place(cells)} It takes {rounded(spent)} ms with its backward pass.",
        ADVICE.format(_LAYERS[kind]),
        calls,
        context.gains.bound(spent, "at most the time of these calls and of their backward pass"),
        limit="warning",
    )
