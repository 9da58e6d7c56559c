"""Names are evidence only where the data agrees: of paths, evaluations, checkpoints, stalls and kernels."""

from __future__ import annotations

import pytest
from drawn_findings import A100, found

from stepscope.analyze.rules.slow_function import DRAWS

FUNCTION = """
    main | 0 1000 | ProfilerStep#0
    main | 10 500 | {frame} | cat=python
    main | 20 490 | {operator} | seq=1
"""
AGAIN = "    main | 500 1000 | test.py(9): eval_step | cat=python\n    main | 510 990 | aten::mm"
BACKWARD = "    main | 500 900 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1"


@pytest.mark.parametrize(
    ("frame", "operator", "backward", "is_evaluation"),
    [
        ("train.py(9): evaluate", "aten::mm", "", True),
        ("train.py(9): run_eval_loop", "aten::mm", "", True),
        ("test.py(9): eval_step", "aten::mm", AGAIN, False),  # nothing else
        ("ppo.py(9): evaluate_actions", "aten::mm", BACKWARD, False),  # the training's own forward
        ("torch/distributions/distribution.py(9): _validate_sample", "aten::eq", "", False),  # no model
        ("/home/me/evaluate/train.py(9): step", "aten::mm", "", False),
        ("train_and_evaluate.py(9): <module>", "aten::mm", "", False),
    ],
)
def test_an_evaluation_runs_a_model_and_trains_none(
    frame: str, operator: str, backward: str, is_evaluation: bool
) -> None:
    text = FUNCTION.format(frame=frame, operator=operator) + backward  # or what else it calls
    assert (found("frequent_evaluation", text) is not None) is is_evaluation


@pytest.mark.parametrize(
    ("frame", "saves"),
    [
        ("train.py(9): save_checkpoint", True),
        ("train.py(9): save_state_dict", True),
        ("data.py(9): save_model_inputs", False),
        ("torch/serialization.py(9): save", True),
        ("safetensors/torch.py(9): save_file", True),
        ("/home/me/save_checkpoint/train.py(9): step", False),
        ("save_model.py(9): <module>", False),
    ],
)
def test_the_path_of_a_file_saves_no_checkpoint(frame: str, saves: bool) -> None:
    text = FUNCTION.format(frame=frame, operator="aten::copy_")
    assert (found("checkpoint_in_loop", text) is not None) is saves


@pytest.mark.parametrize(
    ("function", "draws"),
    [
        ("Buffer.sample", True),
        ("get_batch", True),
        (" See train.py:3 in next_batch.", True),
        ("Ema.on_batch_end", False),
        ("Loop.train_batch", False),
    ],
)
def test_only_what_makes_a_batch_draws_from_something(function: str, draws: bool) -> None:
    assert bool(DRAWS.search(function)) == draws


STALLED = "".join(
    f"""
    main     | {begin} {begin + 20_000} | ProfilerStep#{step}
    main     | {begin + 10} {begin + 15_000} | {{frame}} | cat=python
    main     | {begin + 15_100} {begin + 15_105} | cudaLaunchKernel | corr={step + 1}
    stream 7 | {begin + 15_110} {begin + 19_900} | sgemm | corr={step + 1}
    """
    for step, begin in enumerate((0, 20_000, 40_000))
)


@pytest.mark.parametrize(
    ("frame", "advice"),
    [
        ("<built-in function sleep>", "Remove the sleep"),
        ("<built-in method collect of module object>", "gc.freeze()"),
        ("train.py(7): run_gc", "gc.freeze()"),
        ("train.py(7): collect_rollouts", "Move this work"),
        ("/home/gc/train.py(7): shuffle", "Move this work"),
        ("train.py(7): update_ema", "_foreach_lerp_"),
        ("train.py(7): remap", "Move this work"),
        ("train.py(7): compute_metrics", "Update metrics"),
        ("train.py(7): symmetric_pad", "Move this work"),
        ("train.py(7): write_scalars", "Log less often"),
        ("/me/logging_lab/train.py(7): shuffle", "Move this work"),
        ("train.py(7): fingerprint", "Move this work"),
        ("train.py(7): select", "Move this work"),
        ("<method 'poll' of 'select.epoll' objects>", "Find what it waits for"),
        ("<method 'acquire' of '_thread.lock' objects>", "Find what it waits for"),
        ("<built-in method select.select>", "Find what it waits for"),
    ],
)
def test_a_stall_is_told_by_whole_words_of_what_runs(frame: str, advice: str) -> None:
    finding = found("python_stall", STALLED.format(frame=frame))
    assert finding is not None
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("frame", "decodes"),
    [
        ("PIL/Image.py(9): open", True),
        ("data.py(9): decode_sample", True),
        ("/me/image_decode/data.py(9): __getitem__", False),
    ],
)
def test_the_folder_of_a_file_decodes_nothing(frame: str, decodes: bool) -> None:
    loading = "main | 10 800 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    text = f"main | 0 1000 | ProfilerStep#0\n{loading}\nmain | 20 790 | {frame}\nmain | 810 980 | aten::mm"
    finding = found("input_bound", text)
    assert finding is not None
    assert ("decoding" in finding.what) is decodes


KERNEL = """
    main     |  0   50 | ProfilerStep#0
    main     | 10   12 | aten::mm
    main     | 10   12 | cudaLaunchKernel | corr=1
    stream 7 | 20  900 | {kernel} | corr=1
"""


@pytest.mark.parametrize(
    ("rule", "kernel", "is_meant"),
    [
        ("fp64_matmul", "volta_dgemm_128x64_nn", True),
        ("fp64_matmul", "fp16_StridedBatchedGemm_128", False),
        ("fp64_matmul", "cutlass_GroupedGemm_f16", False),
        ("fp32_matmul", "cutlass_gemm<float, float, float, 2>", True),
        ("fp32_matmul", "cutlass_gemm<float_e4m3_t, float, float, float, 2>", False),
    ],
)
def test_the_name_of_a_kernel_shows_its_type_by_whole_words(rule: str, kernel: str, is_meant: bool) -> None:
    assert (found(rule, KERNEL.format(kernel=kernel), devices=A100) is not None) is is_meant


@pytest.mark.parametrize(
    ("frame", "option"),
    [
        ("transformers/trainer.py(9): training_step", "bf16=True"),
        ("lightning/pytorch/loops/loop.py(9): run", "precision='bf16-mixed'"),
        ("keras/src/backend/torch/trainer.py(9): fit", "set_global_policy"),
        ("timm/data/loader.py(9): __iter__", "--amp"),
        ("accelerate/optimizer.py(9): step", "mixed_precision='bf16'"),
        # What a loop of the user's own uses of them, or a folder of that name.
        ("timm/models/resnet.py(9): forward", ""),
        ("/me/lightning/train.py(9): main", ""),
        ("lightning/fabric/wrappers.py(9): step", ""),
        ("keras/src/layers/core/dense.py(9): call", ""),
        ("accelerate/hooks.py(9): new_forward", ""),
    ],
)
def test_a_library_is_advised_for_where_it_runs_the_loop(frame: str, option: str) -> None:
    text = KERNEL.format(kernel="volta_sgemm_128x64") + f"main | 9 13 | {frame}"
    finding = found("fp32_matmul", text, devices=A100)
    assert finding is not None
    first = finding.advice.partition(". ")[0]
    assert option in first
    assert first.startswith("Use torch.") is not bool(option)
