"""The time of products next to public measurements, and what must hold for any sizes."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.models.kernels import HALF, SINGLE, TF32, find_gpu, product_ns

NAMES = {
    "A100": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "V100": "Tesla V100-SXM2-16GB",
}
# us of products in bfloat16: ai-dynamo/aiconfigurator at 095f58a5, systems/data/*/gemm, Apache-2.0.
MEASURED = """
rows columns inner | A100 H100 H200 B200
 128  4096  4096   |   37.4   17.2   14.0   9.7
 512  4096  4096   |   91.0   24.1   23.4  14.6
1024  1024  1024   |   17.9    6.2    5.7   4.6
2048  1024  4096   |   89.7   22.8   23.4  13.5
4096  1024  1024   |   61.6   14.3   13.9   8.7
4096  4096  4096   |  539.5  166.0  168.1  90.2
8192  8192  8192   | 3743.4 1541.7 1640.4 651.9
8192 65536  1024   | 4890.2 1692.4 1569.2 687.6
"""
# us in FP32 and FP16 on a V100: baidu-research/DeepBench at da81ba78, results/train, Apache-2.0.
BOTH = """
rows columns inner | FP32 FP16
1760   16 1760 |   38   20
1760  128 1760 |   88   31
"""


def rows_of(text: str) -> list[list[float]]:
    lines = text.strip().splitlines()[1:]
    return [[float(word) for word in line.replace("|", " ").split()] for line in lines]


@pytest.mark.parametrize(("place", "name"), list(enumerate(("A100", "H100", "H200", "B200"))))
def test_products_take_what_others_measured(place: int, name: str) -> None:
    gpu = find_gpu({"name": NAMES[name]})
    assert gpu is not None
    table = np.array(rows_of(MEASURED))
    predicted = product_ns(*table[:, :3].T, HALF, gpu) / 1e3
    errors = np.abs(predicted / table[:, 3 + place] - 1)
    assert np.median(errors) < 0.12
    assert errors.max() < 0.4


def test_what_16_bits_gain_depends_on_the_shape() -> None:
    gpu = find_gpu({"name": NAMES["V100"]})
    assert gpu is not None
    for rows, columns, inner, single, half in rows_of(BOTH):
        sizes = rows, columns, inner
        gain = product_ns(*sizes, SINGLE, gpu) / product_ns(*sizes, HALF, gpu)
        assert gain == pytest.approx(single / half, rel=0.35)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", [SINGLE, TF32, HALF])
def test_no_product_beats_the_peak_or_the_bandwidth_and_more_work_takes_longer(
    name: str, precision: str
) -> None:
    gpu = find_gpu({"name": NAMES[name]})
    assert gpu is not None
    m, n, k = (2 ** np.random.default_rng(0).integers(0, 14, (3, 500))).astype(float)
    time = product_ns(m, n, k, precision, gpu)
    width = 2 if precision == HALF else 4
    assert (time > 2 * m * n * k / gpu.rate(precision)).all()
    assert (time > width * (m * k + k * n + m * n) / gpu.bandwidth).all()
    assert (product_ns(2 * m, n, 2 * k, precision, gpu) >= 0.99 * time).all()
    assert (product_ns(m, n, k, precision, gpu, batch=64) >= time).all()


def test_rows_that_are_not_aligned_are_copied_element_by_element() -> None:
    gpu = find_gpu({"name": NAMES["H200"]})
    assert gpu is not None
    even, odd = (product_ns(4096, 50257, 768, HALF, gpu, aligned=aligned) for aligned in (True, False))
    assert odd > 5 * even
    single = product_ns(4096, 50257, 768, SINGLE, gpu, aligned=False)
    assert single == product_ns(4096, 50257, 768, SINGLE, gpu)


def test_a_device_without_rates_or_from_another_maker_is_not_guessed() -> None:
    assert find_gpu({}) is None
    assert find_gpu({"name": "NVIDIA GeForce GTX 1080"}) is None
    assert find_gpu({"name": "AMD Instinct MI300X"}) is None
    gpu = find_gpu({"name": "NVIDIA A100-SXM4-80GB", "numSms": 98})
    assert gpu is not None
    assert gpu.multiprocessors == 98  # a part of the device


def test_a_part_of_a_device_has_its_share_of_the_rates() -> None:
    """NVIDIA's MIG profiles of an A100: 1g has 14 of 108 multiprocessors and an eighth of the memory."""
    whole = find_gpu({"name": "NVIDIA A100-SXM4-40GB", "numSms": 108})
    part = find_gpu({"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "numSms": 14})
    assert whole is not None
    assert part is not None
    assert part.rate(HALF) == pytest.approx(whole.rate(HALF) * 14 / 108)
    assert part.bandwidth == pytest.approx(whole.bandwidth / 8, rel=0.05)
    times = [product_ns(4096, 4096, 4096, HALF, gpu) for gpu in (whole, part)]
    assert times[1] / times[0] == pytest.approx(108 / 14, rel=0.05)


@pytest.mark.parametrize("sizes", [(0, 512, 512), (512, 512, 0), (0, 0, 0)])
def test_a_product_without_elements_begins_and_ends(sizes: tuple[int, int, int]) -> None:
    gpu = find_gpu({"name": NAMES["H100"]})
    assert gpu is not None
    assert product_ns(*sizes, HALF, gpu) == pytest.approx(float(product_ns(1, 1, 1, HALF, gpu)), rel=0.5)
