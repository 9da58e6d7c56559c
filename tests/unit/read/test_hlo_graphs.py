"""Kernels of CUDA graphs find their instructions in generated programs whose truth is known."""

from __future__ import annotations

import random

import pytest

from stepscope.read.xplane.compiled_events import instructions_of_graph


def drawn(seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """A program, and the kernels of one run of it, each with its instruction.

    Equal fusions run the kernel of one of them; each call of a library may set memory before.
    """
    chance = random.Random(seed)
    program: list[tuple[str, str]] = [("param", "parameter")]
    kernels: list[tuple[str, str]] = []
    families = [f"{kind}_fusion" for kind in ("loop", "input_reduce", "wrapped_transpose")]
    first = {family: f"{family}.{chance.randint(0, 9)}" for family in families}
    for number in range(chance.randint(1, 60)):
        name = chance.choice([*families, "custom-call", "wrapped_slice", "bitcast"])
        unique = f"{name}.{100 + number}"
        if name == "custom-call":
            program.append((unique, "custom-call"))
            kernels += [("Memset 0", unique)] * chance.randint(0, 2)
            kernels.append((chance.choice(["sm90_xmma_gemm_tn", "cudnn::conv"]), unique))
        elif name == "wrapped_slice":
            program.append((unique, "fusion"))
            kernels.append(("memcpy128", unique))
        elif name == "bitcast":
            program.append((unique, "bitcast"))
        else:
            instruction = first.pop(name, unique)
            program.append((instruction, "fusion"))
            reused = next(one for one, _ in program if one.startswith(name))
            kernels.append((reused.replace(".", "_"), instruction))
    return program, kernels


@pytest.mark.parametrize("seed", range(200))
def test_every_kernel_of_a_generated_program_is_found(seed: int) -> None:
    program, kernels = drawn(seed)
    found = instructions_of_graph([kernel for kernel, _ in kernels], program)
    assert found == [instruction for _, instruction in kernels]


def test_kernels_of_a_family_that_is_not_complete_stay_unknown() -> None:
    program = [("add.1", "fusion"), ("add.2", "fusion"), ("add.3", "fusion")]
    assert instructions_of_graph(["add_1", "add_1"], program) == ["", ""]
    assert instructions_of_graph(["add_3"], program) == ["add.3"]


def test_a_library_without_calls_in_the_program_stays_unknown() -> None:
    assert instructions_of_graph(["sm90_gemm"], [("add.1", "fusion")]) == [""]
    assert instructions_of_graph(["sm90_gemm"], []) == [""]
