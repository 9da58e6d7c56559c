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
from stepscope.facts.summary.report_facts import summarize

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

def depthwise(x, w):
    return convolution(x, w, window_strides=(2, 1), padding="SAME", feature_group_count=8)

def grouped_dilated(x, w):
    return convolution(x, w, window_strides=(1, 2), padding="SAME", rhs_dilation=(2, 3),
                       feature_group_count=2)

def transposed(x, w):
    return jax.lax.conv_transpose(x, w, (2, 2), "VALID")

def of_batches(x, w):
    return convolution(x, w, window_strides=(1, 1), padding="VALID", batch_group_count=2)

def line(x, w):
    return conv_general_dilated(x, w, (2,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

def volume(x, w):
    return conv_general_dilated(x, w, (1, 1, 1), "VALID",
                                dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))

def gradients_of_groups(x, w):
    return jax.grad(lambda x, w: (grouped_dilated(x, w) ** 2).sum(), (0, 1))(x, w)

def two_batches(a, b):
    return jnp.einsum("xbijk,bxkjl->bxil", a, b)

def grouped_queries(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)

def eighths(a, b):
    a, b = (x.astype(jnp.float8_e4m3fn) for x in (a, b))
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)

def integers(a, b):
    return jax.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))),
                               preferred_element_type=jnp.int32)

def nested(x, weights):
    def outer(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0], None
    return jax.lax.scan(outer, x, weights)[0]

def gradients_of_layers(x, weights):
    return jax.grad(lambda w: layers(x, w).sum())(weights)

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
    depthwise: (image, ones(3, 3, 1, 16)),
    grouped_dilated: (image, ones(3, 3, 4, 6)),
    transposed: (image, ones(3, 3, 8, 16)),
    of_batches: (image, ones(3, 3, 8, 16)),
    line: (ones(4, 33, 8), ones(5, 8, 16)),
    volume: (ones(2, 5, 6, 7, 4), ones(2, 3, 3, 4, 8)),
    gradients_of_groups: (image, ones(3, 3, 4, 6)),
    two_batches: (ones(3, 8, 32, 2, 16), ones(8, 3, 16, 2, 24)),
    grouped_queries: (ones(2, 64, 8, 32), ones(2, 64, 2, 32), ones(2, 64, 2, 32)),
    eighths: (ones(64, 128), ones(128, 32)),
    integers: (np.ones((4, 64, 128), np.int8), np.ones((4, 128, 32), np.int8)),
    nested: (ones(128, 64), ones(6, 64, 64)),
    gradients_of_layers: (ones(128, 64), ones(6, 64, 64)),
}
compiled = {f.__name__: jax.jit(f).lower(*of).compile() for f, of in CALLS.items()}
with jax.profiler.trace(sys.argv[1]):
    for f, of in CALLS.items():
        jax.block_until_ready(compiled[f.__name__](*of))
print(json.dumps({name: one.cost_analysis() for name, one in compiled.items()}))
"""
VALID = 2 * 4 * 8 * 9 * 8 * 16 * 9  # both for each of 8 by 9 outputs
# 17 rows of 3 elements, 2 apart: the outer ones meet the padding twice; 10 of 19 columns, 3 apart.
GROUPS = 2 * 4 * 4 * 6 * (3 * 17 - 4) * (3 * 10 - 4)
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
    "depthwise": 2 * 4 * 16 * (3 * 9 - 2) * (3 * 19 - 2),
    "grouped_dilated": GROUPS,
    "transposed": 2 * 4 * 8 * 16 * (3 * 17) * (3 * 19),  # each input meets each filter element
    "of_batches": 2 * 2 * 15 * 17 * 8 * 16 * 9,
    "line": 2 * 4 * 15 * 5 * 8 * 16,
    "volume": 2 * 2 * (4 * 4 * 5) * (2 * 3 * 3) * 4 * 8,
    "gradients_of_groups": 3 * GROUPS,
    "two_batches": 2 * 3 * 8 * 32 * 24 * (2 * 16),
    "grouped_queries": 2 * 2 * 2 * 8 * 64 * 64 * 32,
    "eighths": 2 * 64 * 128 * 32,
    "integers": 2 * 4 * 64 * 128 * 32,
    "nested": 3 * 6 * 2 * 128 * 64 * 64,
    "gradients_of_layers": 3 * 6 * 2 * 128 * 64 * 64,  # of the first input too: all are alike
}
IN_LOOPS = {"layers": 6, "nested": 18, "gradients_of_layers": 6}  # times that their bodies run


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


@pytest.mark.parametrize("name", [name for name in BY_HAND if name not in IN_LOOPS])
def test_all_operations_equal_xla_s_own_count(counted: Counted, name: str) -> None:
    assert counted.all[name] == counted.xla[name]["flops"]


@pytest.mark.parametrize(("name", "times"), IN_LOOPS.items())
def test_what_a_loop_repeats_counts_each_time_and_for_xla_once(
    counted: Counted, name: str, times: int
) -> None:
    assert counted.all[name] == pytest.approx(times * counted.xla[name]["flops"], rel=0.01)


def test_of_a_loop_of_products_xla_counts_one(counted: Counted) -> None:
    assert counted.xla["layers"]["flops"] == pytest.approx(BY_HAND["layers"] / 6, rel=0.01)


def test_the_report_counts_the_products(counted: Counted) -> None:
    assert counted.report.flops == sum(BY_HAND.values())
    assert counted.report.counted_by == "shapes"
    assert counted.report.known == 1
    assert counted.report.busy_tflops > counted.report.tflops > 0
