"""`tf32`: FP32 products and convolutions on tensor cores."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels.products import TF32
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.parts.gpu_precision import calibrated_time, required_gpu, tf32_on_gpu
from stepscope.models.whatif.parts.kernel_times import compute_bound, in_half, in_tf32


def tf32(graph: Graph) -> Graph:
    """FP32 matrix products and convolutions run in TF32.

    Their time follows from their sizes and the device (see `amp`); values, casts and other kernels
    stay as they are.
    """
    if not (compute_bound(graph) & ~in_half(graph) & ~in_tf32(graph)).any():
        raise ChangeError("tf32: no matrix product or convolution runs in FP32")
    gpu = required_gpu(graph, "tf32")
    if TF32 not in gpu.flops:
        raise ChangeError(f"tf32: {gpu.name} has no TF32")
    return tf32_on_gpu(graph, gpu)


CHANGE = Change(
    tf32,
    group="Compute",
    basis="sizes of products, and measurements of others on GPUs",
    assumptions=(
        "products run as fast as products of their sizes on this kind of GPU",
        "the CPU launches what it launched",
    ),
    evidence=calibrated_time,
    error=0.28,  # the largest of seven models on an H200: an LSTM, whose CPU launches less in TF32
    application=Application("`torch.backends.cuda.matmul.allow_tf32` and cuDNN's are set to True"),
    memory=lambda memory: memory,
    memory_error=0.0,
)
