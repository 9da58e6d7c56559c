"""Fit the constants of `stepscope.models.kernels.products` without one device, and test on it.

python -m benchmarks.kernels.products FOLDER    the public measurements; takes ten minutes

FOLDER holds `gemm_{a100,h100,h200,b200}_sxm.parquet` (ai-dynamo/aiconfigurator at 095f58a5,
Apache-2.0) and `deepbench_train_v100.xlsx` (baidu-research/DeepBench at da81ba78, Apache-2.0).
Needs pyarrow, scipy and openpyxl.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openpyxl
import pyarrow.parquet as parquet
from scipy.optimize import minimize

from stepscope.models.kernels import HALF, SINGLE, Gpu, find_gpu, product_ns, products

NAMES = {
    "A100": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "V100": "Tesla V100-SXM2-16GB",
}
SAMPLE = 2000  # products of each device that are fitted
# Constants that are free, with the bounds of a share where they are one.
FREE = (
    "_SHARE_OF_PEAK",
    "_SHARE_LOST",
    "_MOST_OF_PEAK",
    "_SHARE_OF_BANDWIDTH",
    "_BEFORE_HOPPER",
    "_BEGIN_NS",
    "_FIRST_LOADS",
    "_SPLIT_NS",
)


class Measured(NamedTuple):
    """Products of one device: their sizes, shape (n,) each, and times, ns."""

    rows: Any
    columns: Any
    inner: Any
    time_ns: Any

    def errors(self, gpu: Gpu, precision: str = HALF) -> Any:
        """Natural logarithm of predicted over measured."""
        return np.log(product_ns(*self[:3], precision, gpu) / self.time_ns)

    def sample(self, count: int) -> Measured:
        """Some of them, always the same."""
        chosen = np.random.default_rng(0).permutation(len(self.time_ns))[:count]
        return Measured(*(column[chosen] for column in self))


def read_table(folder: Path, device: str) -> Measured:
    """Products in bfloat16 of one device."""
    table = parquet.read_table(folder / f"gemm_{device.lower()}_sxm.parquet")
    half = np.array(table["gemm_dtype"].to_pylist()) == "bfloat16"
    m, n, k, ms = (np.array(table[name])[half].astype(float) for name in ("m", "n", "k", "latency"))
    return Measured(m, n, k, 1e6 * ms)


def read_deepbench(folder: Path, sheet: str, aligned: bool) -> Measured:
    """Products of training on a V100; with `aligned` those whose sizes are multiples of 8."""
    book = openpyxl.load_workbook(folder / "deepbench_train_v100.xlsx", read_only=True)
    rows = np.array(list(_products(book[sheet]))).T
    chosen = (rows[:3] % 8 == 0).all(axis=0) | (not aligned)
    return Measured(*rows[:, chosen])


def _products(sheet: Any) -> Iterator[list[float]]:
    """Sizes and times, ns; some cells are products such as `=1500*16`."""
    section = ""
    for row in sheet.iter_rows(values_only=True):
        section = row[0] or section
        if str(section).startswith("Dense") and isinstance(row[8], int | float):
            yield [*map(_number, row[2:5]), 1e6 * row[8]]


def _number(cell: Any) -> float:
    factors = [float(part) for part in str(cell).lstrip("=").split("*")]
    return float(np.prod(factors))


def fitted(data: dict[str, Measured]) -> list[float]:
    """The free constants with the least mean error over the devices."""
    start = np.array([getattr(products, name) for name in FREE])

    def cost(factors: Any) -> float:
        put(start * factors)
        means = [np.abs(one.errors(gpu_of(name))).mean() for name, one in data.items()]
        return float(np.mean(means)) if (np.asarray(factors) > 0).all() else 1e3

    best = np.ones(len(FREE))
    for _ in range(2):
        best = minimize(cost, best, method="Nelder-Mead", options={"maxiter": 400, "fatol": 1e-5}).x
    return list(start * best)


def put(values: Any) -> None:
    """Use other constants."""
    for name, value in zip(FREE, values, strict=True):
        setattr(products, name, float(value))


def gpu_of(name: str) -> Gpu:
    """A device of the tables."""
    gpu = find_gpu({"name": NAMES[name]})
    assert gpu is not None
    return gpu


def main(folder: Path) -> None:
    """Print both tables."""
    half = {name: read_table(folder, name) for name in NAMES if name != "V100"}
    half["V100"] = read_deepbench(folder, "Results - FP16 ip, Mixed math", aligned=True)
    shipped = [getattr(products, name) for name in FREE]
    print("| device | products | median error | fitted without it |\n|---|--:|--:|--:|")
    for name, data in half.items():
        with_it = np.median(np.abs(data.errors(gpu_of(name))))
        put(fitted({other: one.sample(SAMPLE) for other, one in half.items() if other != name}))
        without = np.median(np.abs(data.errors(gpu_of(name))))
        put(shipped)
        print(f"| {name} | {len(data.time_ns):,} | {with_it:.1%} | {without:.1%} |")
    sheets = ("Results FP32", "Results - FP16 ip, Mixed math")
    single, lower = (read_deepbench(folder, sheet, aligned=False) for sheet in sheets)
    gpu = gpu_of("V100")
    predicted = product_ns(*single[:3], SINGLE, gpu) / product_ns(*lower[:3], HALF, gpu)
    gains = single.time_ns / lower.time_ns
    print(f"\nFP32 over FP16 on the V100, {len(gains)} products: median {np.median(gains):.2f},")
    print(f"predicted within {np.median(np.abs(predicted / gains - 1)):.1%} at the median.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
