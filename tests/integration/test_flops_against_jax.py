"""Operations counted from a recorded profile, against formulas by hand and XLA's own counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepscope
from stepscope.summary.report_facts import summarize

# Not by importing it: JAX warns of every fork from then on, in the tests that follow.
if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

# Runs every function once under the profiler, and prints what XLA counts for each.
SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.lax import conv_general_dilated

def ones(*shape):
    return np.ones(shape, np.float32)

def convolution(x, w, **how):
    return conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **how)

def product(a, b):
    return a @ b

def batched(a, b):
    return jnp.einsum("bij,bkj->bik", a, b)

def valid(x, w):
    return convolution(x, w, window_strides=(2, 2), padding="VALID")

def same(x, w):
    return convolution(x, w, window_strides=(1, 1), padding="SAME")

def dilated(x, w):
    return convolution(x, w, window_strides=(1, 1), padding="VALID", rhs_dilation=(2, 2))

def grouped(x, w):
    return convolution(x, w, window_strides=(1, 1), padding="VALID", feature_group_count=4)

def gradients(x, w):
    return jax.grad(lambda x, w: (valid(x, w) ** 2).sum(), (0, 1))(x, w)

def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)

def network(x, a, b):
    return jax.nn.softmax(jax.nn.relu(x @ a) @ b).sum(0)

def layers(x, weights):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

image, sequence = ones(4, 17, 19, 8), ones(2, 64, 4, 32)
CALLS = {
    product: (ones(128, 256), ones(256, 64)),
    batched: (ones(8, 128, 256), ones(8, 64, 256)),
    valid: (image, ones(3, 3, 8, 16)),
    same: (image, ones(3, 3, 8, 16)),
    dilated: (image, ones(3, 3, 8, 16)),
    grouped: (image, ones(3, 3, 2, 16)),
    gradients: (image, ones(3, 3, 8, 16)),
    attention: (sequence, sequence, sequence),
    network: (ones(128, 256), ones(256, 64), ones(64, 64)),
    layers: (ones(128, 64), ones(6, 64, 64)),
}
compiled = {f.__name__: jax.jit(f).lower(*of).compile() for f, of in CALLS.items()}
with jax.profiler.trace(sys.argv[1]):
    for f, of in CALLS.items():
        jax.block_until_ready(compiled[f.__name__](*of))
print(json.dumps({name: one.cost_analysis() for name, one in compiled.items()}))
"""
VALID = 2 * 4 * 8 * 9 * 8 * 16 * 9  # both for each of 8 by 9 outputs
BY_HAND = {
    "product": 2 * 128 * 256 * 64,
    "batched": 2 * 8 * 128 * 256 * 64,
    "valid": VALID,
    "same": 2 * 4 * 8 * 16 * (3 * 17 - 2) * (3 * 19 - 2),  # without what meets the padding
    "dilated": 2 * 4 * 13 * 15 * 8 * 16 * 9,
    "grouped": 2 * 4 * 15 * 17 * 2 * 16 * 9,
    "gradients": 3 * VALID,  # the output again, for its square, and two gradients
    "attention": 2 * 2 * 2 * 4 * 64 * 64 * 32,
    "network": 2 * 128 * 256 * 64 + 2 * 128 * 64 * 64,
    "layers": 6 * 2 * 128 * 64 * 64,
}


class Counted(NamedTuple):
    products: Counter[str]
    all: Counter[str]
    xla: dict[str, dict[str, float]]
    report: Any


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    folder: Path = tmp_path_factory.mktemp("profile")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    trace = stepscope.open(folder, cache=False)
    products, every = Counter[str](), Counter[str]()
    for row in trace.events.rows():
        if row["category"] == "cpu_op":
            found = trace.event_arguments(row["id"])
            name = found["hlo_module"].removeprefix("jit_")
            products[name] += found.get("product_flops_from_shapes", 0)
            every[name] += found.get("flops_from_shapes", 0)
    return Counted(products, every, json.loads(done.stdout), summarize(trace).efficiency)


@pytest.mark.parametrize("name", BY_HAND)
def test_products_equal_the_formula(counted: Counted, name: str) -> None:
    assert counted.products[name] == BY_HAND[name]


@pytest.mark.parametrize("name", [name for name in BY_HAND if name != "layers"])
def test_all_operations_equal_xla_s_own_count(counted: Counted, name: str) -> None:
    assert counted.all[name] == counted.xla[name]["flops"]


def test_what_a_loop_repeats_counts_each_time_and_for_xla_once(counted: Counted) -> None:
    once = BY_HAND["layers"] / 6
    assert counted.xla["layers"]["flops"] == pytest.approx(once, rel=0.01)
    assert counted.all["layers"] == pytest.approx(6 * once, rel=0.01)


def test_the_report_counts_the_products(counted: Counted) -> None:
    assert counted.report.flops == sum(BY_HAND.values())
    assert counted.report.counted_by == "shapes"
    assert counted.report.known == 1
    assert counted.report.busy_tflops > counted.report.tflops > 0
