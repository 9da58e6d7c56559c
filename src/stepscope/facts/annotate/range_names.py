"""Names of ranges: the stage, step, module or source lines that a range marks.

Source: HOTLINE section 4.2 (recognizable names), and the ranges that PyTorch writes itself.
"""

import re

import numpy as np

from stepscope.base.arrays import Ids, Mask, Rows
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table, Text

CODE = {stage: code for code, stage in enumerate(STAGES)}
MODULE_RANGE = "stepscope.module:"
MODULE_FRAME = "nn.Module: "
ENGINE = "autograd::engine::evaluate_function: "  # what begins the names of nodes that autograd runs

# Ranges of pipelined schedules: an action of torch.distributed.pipelining (`PP:1F3`: stage 1,
# forward, micro-batch 3), and a part of a chunk (`attn(F)`, `mlp(W)`: the gradient of weights).
_PIPELINE, _CHUNK = r"^PP:", r"^[\w.\[\] -]+ ?\("
# A range around both passes, such as `forward_backward`, is neither.
_NOT_BOTH = r"(?i)^(?!.*(forward|fwd).*(backward|bwd)|.*(backward|bwd).*(forward|fwd)).*"

# Gradients and updates of other frameworks: TensorFlow (`ReluGrad`, `ResourceApplyAdam`), MXNet
# (`_backward_Activation`, `sgd_mom_update`) and Paddle (`matmul_grad dygraph`). TensorFlow's are
# listed: functions of PyTorch users have names like `ScaleGrad` and `ApplyRotaryEmb`.
_GRADIENT_OP = (
    r"(\w*Backprop(Input|Filter)\w*|(Relu6?|LeakyRelu|Elu|Selu|Gelu|Tanh|Sigmoid|Softplus|Softsign"
    r"|Sqrt|Rsqrt|Reciprocal|Inv|(Fractional)?(Avg|Max)Pool(3D)?|BiasAdd|_?FusedBatchNorm(Ex)?|LRN"
    r"|LayerNorm|Resize\w+|MirrorPad|StridedSlice|ROIAlign|\w*(RNN|LSTM|GRU)\w*)Grad\w*)$"
)
_GRADIENT = rf"^{_GRADIENT_OP}|^_backward_\w|GradNode\w*$|^\w+_grad (dygraph|infer_meta|kernel launch)$"
_UPDATE_OP = (
    r"(Resource)?(Sparse)?Apply(Ada(m\w*|Max|grad\w*|delta)|GradientDescent|(Keras)?Momentum"
    r"|Ftrl\w*|(Centered)?RMSProp|(Add|Power)Sign|Proximal\w+)$"
)
_UPDATE = rf"^{_UPDATE_OP}|^\w*(sgd|nag|adam\w?|rmsprop\w*|ftrl|ftml|lamb|lars|signum)(_mom)?_update\w*$"

# What a name says of a batch, such as `get_batch_size`, that is not loaded but computed.
_OF_A_BATCH = r"[ _-]?(size|norm|loss|log|metric|stat|grad|pred|output|embed|reward|score|acc|parallel)"

# (categories, pattern, stage): the first match counts.
_RULES = tuple(
    (categories.split(), re.compile(pattern), stage)
    for categories, pattern, stage in (
        ("cpu_op", r"^autograd::engine::evaluate_function|^torch::autograd::", "backward"),
        (
            "cpu_op",
            r"^(?!aten::|prim::)\w*Backward\d*$|^CompiledFunctionBackward|^AccumulateGrad$",
            "backward",
        ),
        ("annotation cpu_op", r"^(Eager\w*Execute: )?IteratorGetNext", "data_loading"),
        ("cpu_op", _GRADIENT, "backward"),
        ("annotation", r"^EagerLocalExecute: " + _GRADIENT_OP, "backward"),
        ("cpu_op", _UPDATE, "optimizer"),
        ("annotation", r"^EagerLocalExecute: " + _UPDATE_OP, "optimizer"),
        ("cpu_op", r"^aten::(\w*_loss|nll_loss\w*|binary_cross_entropy\w*|kl_div)$", "loss"),
        ("annotation cpu_op", r"^enumerate\((DataLoader|grain|tf\.data|keras)\)", "data_loading"),
        ("annotation cpu_op", r"^Optimizer\.zero_grad", "zero_grad"),
        ("annotation cpu_op", r"^Optimizer\.step|^stepscope\.optimizer: ", "optimizer"),
        # Of modules no other words count: one may be named `backward_rnn`.
        ("annotation", r"(?i)^stepscope\.module:.*(loss|criterion)(e?s|fn|func\w*)?(?![a-z])\w*$", "loss"),
        ("annotation", r"^stepscope\.module:", "forward"),
        ("annotation", _PIPELINE + r"\d+F\d*$|" + _CHUNK + r"(F|fwd)\)$", "forward"),
        ("annotation", _PIPELINE + r"\d+[BIW]\d*$|" + _CHUNK + r"(B|W|BW|bwd|dgrad|wgrad)\)$", "backward"),
        ("annotation", _PIPELINE + r"\d+[A-Z_]{3,}\d*$", "other"),
        ("annotation", r"^stepscope\.evaluation: ", "evaluation"),
        ("annotation", r"^stepscope\.checkpointing: ", "checkpointing"),
        (
            "annotation",
            r"(?i)^(\[\w*\])*\W*((\w+\.)?(validation|test)_step"
            r"|(eval(uat(e|ion))?|validat(e|ion))([ _]?(step|epoch|loop))?)[\W\d_]*$",
            "evaluation",
        ),
        (
            "annotation",
            r"(?i)^(\[\w*\])*\W*((save|write)[ _](checkpoint|state)|checkpoint_save)[\W\d_]*$",
            "checkpointing",
        ),
        ("annotation", r"(?i)copy_batch_to|(?<![a-z])to_device|\bh2d\b|host.?to.?device", "transfer"),
        (
            "annotation",
            r"(?i)data[ _-]?load|(?<![a-z])((pre|re)?(load|fetch)|wait(ing)?[ _]for|next|get|read)[ _-]?"
            rf"((next|the|mini)[ _-]?)*(batch|data)(es)?(?![a-z]|{_OF_A_BATCH})"
            r"|batch[ _-]generator|^\W*data\W*$",
            "data_loading",
        ),
        ("annotation", r"(?i)\bzero_?grad", "zero_grad"),
        ("annotation", _NOT_BOTH + r"(?<![a-z])(backward|bwd)(?![a-z])", "backward"),
        (
            "annotation",
            r"(?i)^(##)?\W*optim(izer|ization)?\b|(?<![a-z])opt(im(izer)?)?[ _.]?step",
            "optimizer",
        ),
        # DeepSpeed's engine and its optimizers, and its timer.
        ("annotation", r"^DeepSpeed(Engine|\w*Optimizer\w*)\.step$|^step_microstep$", "optimizer"),
        # The value of a loss is in the names of steps.
        ("annotation", r"(?i)(?<![a-z])(loss|criterion)(?![a-z])(?!\W{0,3}(\d*\.\d|\d+e|nan|inf))", "loss"),
        ("annotation", _NOT_BOTH + r"(?<![a-z])(forward|fwd)(?![a-z])", "forward"),
        ("python", r"^nn\.Module: \w*Loss(_\d+)?$", "loss"),
        ("python", r"^nn\.Module: ", "forward"),
        ("python", r"torch/utils/data/dataloader\.py\(\d+\): __next__$", "data_loading"),
        (
            "python",
            r"(?i)\.py\(\d+\): _*(((data_?)?load|next|get|fetch)_batch"
            rf"(?!{_OF_A_BATCH})|load_data(?!base))\w*$",
            "data_loading",
        ),
        ("python", r"torch/optim/\w+\.py\(\d+\): zero_grad$", "zero_grad"),
        ("python", r"torch/optim/\w+\.py\(\d+\): step$", "optimizer"),
        ("python", r"torch/(_tensor|autograd/__init__)\.py\(\d+\): (backward|grad)$", "backward"),
        ("python", r"torch/nn/functional\.py\(\d+\): \w*(loss|cross_entropy|kl_div)\w*$", "loss"),
    )
)

# What does not tell the stage: settings of a callback, in names of Lightning
# (`EarlyStopping{'monitor': 'val_loss'}.on_train_start`), and the place of a block, in our own.
_ASIDE = re.compile(r"\{.*\}|(?<=\S) \(.*:\d+\)$")
_RANGE_RULES = [(pattern, stage) for kinds, pattern, stage in _RULES if "annotation" in kinds]
# A step as torch.profiler marks it (Paddle: `ProfileStep`), and as JAX's StepTraceAnnotation does.
_STEP = re.compile(r"(?:^Profiler?Step#|#step_num=)(\d{1,9})$")
_LONGEST_MARK = 32  # letters at a name's end; `ProfilerStep#` and nine digits have 22
_RECORDED = "stepscope.step#"
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#|^## optimizer ##$")


def is_step(name: str) -> bool:
    """Whether a range of this name is one step.

    Example:
        >>> [is_step(name) for name in ("ProfilerStep#5", "train#step_num=7", "train")]
        [True, True, False]
    """
    return _STEP.search(name, len(name) - _LONGEST_MARK) is not None


def codes_of_names(names: Text) -> Ids:
    """The code of each name; the ranges that mark all steps share one."""
    codes = names.codes.astype(np.int64)
    marks = names.where(lambda name: name.startswith(("ProfilerStep#", _RECORDED)))
    return np.where(marks, codes[marks].min(initial=len(codes)), codes)


def is_recorded_step(name: str) -> bool:
    """Whether a JAX capture begins a step with an event of this name."""
    return name.startswith(_RECORDED)


def ends_update(name: str) -> bool:
    """Whether a range of this name is the step of an optimizer."""
    return _OPTIMIZER_STEP.match(name) is not None


def step_number(name: str) -> int:
    """The step number in the name of a step range, or -1."""
    found = _STEP.search(name)
    return int(found[1]) if found else -1


def stage_of_names(name: Text, category: Text) -> Text:
    """The stage that the name of each event identifies, given its category; null if none."""
    codes = category.codes.astype("int8") * 0 - 1
    for kind in ("cpu_op", "annotation", "python"):
        rules = [(pattern, stage) for kinds, pattern, stage in _RULES if kind in kinds]
        mask = category.mask(kind)
        stages = name.take(mask).compact().map(lambda text, rules=rules: _first(rules, text))  # type: ignore[misc]
        codes[mask] = stages.recoded(STAGES).codes
    return Text(codes, STAGES)


def stage_of_range(name: str) -> str | None:
    """The stage that the name of a range identifies, or None.

    Example:
        >>> stage_of_range("compute_loss"), stage_of_range("Dense_0")
        ('loss', None)
    """
    return _first(_RANGE_RULES, name)


def _first(rules: list[tuple[re.Pattern[str], str]], text: str) -> str | None:
    text = _ASIDE.sub("", text)
    return next((stage for pattern, stage in rules if pattern.search(text)), None)


# -- what a reader sees

_LABELS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^stepscope\.(?:evaluation|checkpointing|block): (.*) \(.*\)$",
        r"^stepscope\.optimizer: (.+)$",
        # Of a stack the line that called PyTorch, as all others are around many calls.
        r"^stepscope\.lines: (?:.*[|/\\])?([^|/\\]+:\d+)$",
        r"^Optimizer\.\w+#(.+)$",
        r"^(enumerate\((?:DataLoader|grain|tf\.data|keras)\))#",
        r"^#+ *(.*?) *#+$",
    )
)


def range_label(name: str) -> str:
    """What the name of a range says to a reader; any other name as it is.

    Example:
        >>> range_label("stepscope.lines: /a.py:3|/b.py:7"), range_label("aten::mm")
        ('b.py:7', 'aten::mm')
    """
    found = (pattern.match(name) for pattern in _LABELS)
    return next((one[1] for one in found if one), name)


# -- source lines

LINES_RANGE = "stepscope.lines: "
Line = tuple[str, int]


def has_lines(name: str) -> bool:
    """Whether an event of this name is such a range.

    Example:
        >>> has_lines("stepscope.lines: /a.py:3"), has_lines("aten::mm")
        (True, False)
    """
    return name.startswith(LINES_RANGE)


def operators(events: Table) -> Mask:
    """Operators without the ranges of lines around them, which have their category; shape (events,)."""
    return events.text("category").mask("cpu_op") & ~events.text("name").where(has_lines)


_IN_PLACE = re.compile(
    r"^aten::(_foreach_|_fused_)?(add|sub|mul|div|lerp|addcdiv|addcmul)_$|^aten::(_foreach|_fused)_\w+$"
)


def is_update(events: Table, rows: Rows) -> Mask:
    """Operators that change parameters in place, as an update by hand does, bool, shape (n,)."""
    return events.text("name").take(rows).where(lambda name: bool(_IN_PLACE.match(name)))


# Operators of layers: training loops run them in the model, hardly ever around it.
_LAYER = re.compile(
    r"^aten::(linear|t?addmm|b?mm|matmul|baddbmm|conv\w*|_?convolution|embedding(_bag)?|lstm|gru"
    r"|(native_|cudnn_|miopen_)?(batch|layer|group|instance|rms)_norm|\w*attention\w*|scaled_mm)$"
)


def is_layer(name: str) -> bool:
    """Whether an operator of this name is one of a layer.

    Example:
        >>> is_layer("aten::linear"), is_layer("aten::mean")
        (True, False)
    """
    return _LAYER.match(name) is not None


def parse_lines(name: str) -> tuple[Line, ...]:
    """The stack in the name of a range, outermost line first.

    Example:
        >>> parse_lines("stepscope.lines: /a.py:3|/b.py:7")
        (('/a.py', 3), ('/b.py', 7))
    """
    places = name.removeprefix(LINES_RANGE).split("|")
    pairs = (place.rpartition(":") for place in places)
    return tuple((file, int(line[:9])) for file, _, line in pairs if line.isdecimal())  # more is no line
