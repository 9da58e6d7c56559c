"""What work takes on a GPU, from shapes, precision and the device: products, data moved, operators.

One engine for every question about kernels that were not measured: another precision, layout, size
or device. Constants were fitted on public tables of other people's measurements (`products.py` says
which), and are tested on devices and models that they have not seen.
"""

from stepscope.models.kernels.products import HALF, SINGLE, TF32, Gpu, find_gpu, product_ns

__all__ = ["HALF", "SINGLE", "TF32", "Gpu", "find_gpu", "product_ns"]
