"""Names short enough to read. Examples of HOTLINE's figure 14, and those that PyTorch adds."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.timeline.operation_labels import range_name, short_name, summary_names


@pytest.mark.parametrize(
    ("recorded", "short"),
    [
        ("torch/utils/data/dataloader.py(1173): _get_data", "_get_data dataloader.py"),
        ("torch/nn/parallel/comm.py(188): <listcomp>", "listcomp comm.py"),
        ("typing.py(306): inner", "inner typing.py"),
        ("<built-in method acquire of multiprocessing.SemLock object at 0x7f86f5bc91f0>", "acquire SemLock"),
        ("<built-in method _scatter of PyCapsule object at 0x7f8801ca3f50>", "_scatter PyCapsule"),
        ("<string>(1): <lambda>", "lambda string"),
        ("<built-in function print>", "print"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunction_add<float>, "
            "at::detail::Array<char*, 3> >(int, at::native::CUDAFunction_add<float>)",
            "vectorized_elementwise_kernel<4, CUDAFunction_add<>, Array<> >",
        ),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "ConvolutionBackward0"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "AccumulateGrad"),
        ("nn.Module: Conv2d_3", "Conv2d_3"),
        ("stepscope.module: layer1.0", "layer1.0"),
        ("stepscope.module:", "model"),
        ("Optimizer.step#SGD.step", "SGD.step"),
        ("Optimizer.zero_grad#SGD.zero_grad", "SGD.zero_grad"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "enumerate(DataLoader)"),
        ("## forward ##", "forward"),
        ("aten::mul_", "aten::mul_"),
        ("cudaLaunchKernel", "cudaLaunchKernel"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("C:\\work\\net.py(7): forward", "forward net.py"),
    ],
)
def test_short_names(recorded: str, short: str) -> None:
    assert short_name(recorded) == short


@pytest.mark.parametrize(
    ("names", "times", "name"),
    [
        (["a", "b"], [60, 40], "a (60%) and 1 other"),
        (["b", "a", "c", "a"], [30, 20, 10, 40], "a (60%) and 2 others"),
        (["a", "a", "a"], [1, 2, 3], "a ×3"),
        (["b", "a"], [0, 0], "b (0%) and 1 other"),
        (["b", "a"], [5, 5], "b (50%) and 1 other"),
    ],
)
def test_a_group_is_named_by_what_dominates_it(names: list[str], times: list[int], name: str) -> None:
    texts = sorted(set(names))
    text, group = np.array([texts.index(one) for one in names]), np.zeros(len(names), np.int64)
    assert summary_names(texts, text, group, np.array(times)) == [name]
    two = np.append(text, text), np.append(group, group + 1), np.append(times, times)
    assert summary_names(texts, *two) == [name, name]


def test_copies_of_a_block_are_named_by_the_first_and_the_last() -> None:
    assert range_name("h.0", "h.11") == "h.0 … 11"
    assert range_name("BasicBlock_3", "BasicBlock_1") == "BasicBlock_3 … 1"
