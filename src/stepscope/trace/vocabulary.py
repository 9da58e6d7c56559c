"""The closed lists of words that columns of a trace's tables hold."""

CATEGORIES = (
    "cpu_op",
    "python",
    "runtime",
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "sync",
    "annotation",
    "other",
)
COMPUTING = ("kernel", "memcpy", "memset")
DEVICE_WORK = (*COMPUTING, "communication")
STAGES = (
    "data_loading",
    "transfer",
    "forward",
    "loss",
    "zero_grad",
    "backward",
    "optimizer",
    "prefill",
    "decode",
    "prefill_decode",
    "evaluation",
    "checkpointing",
    "other",
)
INFERENCE_STAGES = ("prefill", "decode", "prefill_decode")
MODEL_STAGES = ("forward", *INFERENCE_STAGES)  # calls of the model
FORWARD_STAGES = (*MODEL_STAGES, "loss")
OUTSIDE_STAGES = ("evaluation", "checkpointing", "other")  # what does not train
TRACK_KINDS = ("cpu", "device", "communication")
KERNEL_KINDS = (
    "gemm",
    "convolution",
    "attention",
    "normalization",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "memcpy",
    "memset",
    "communication",
    "other",
)
PRODUCT_KINDS = ("gemm", "convolution", "attention")  # of kernels: the arithmetic of a network
IDLE_CAUSES = ("data", "synchronization", "communication", "host", "launch")
SEVERITIES = ("info", "warning", "critical")
BOUNDS = ("cpu", "device", "data", "communication")
CONTEXT_KINDS = (
    "root",
    "thread",
    "step",
    "annotation",
    "python",
    "module",
    "operator",
    "native",
    "runtime",
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "sync",
    "instruction",
    "unlinked",
    "others",
    "other",
)
VIAS = ("call", "backward", "launch")
