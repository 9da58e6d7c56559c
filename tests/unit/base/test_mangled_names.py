"""Mangled names are read as far as they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.base.kernel_names import readable, short_kernel
from stepscope.facts.timeline.operation_labels import short_name

CASES = {
    "_Z9my_kernelPfS_i": "my_kernel",
    "_Z3addIfEvPT_": "add<float>",
    "_ZN2ck12_GLOBAL__N_14convEv": "ck::conv",
    "_ZN4gemm6KernelILi128ELb1ELb0ELin3EEEvv": "gemm::Kernel<128, true, false, -3>",
    "_ZN1a1bINS_1cIfEEJDF16bDF16_EEEvT_": "a::b<c<float>, bfloat16, half>",
    "_ZN1a1bIPKfLNS_4ModeE0EEEvv": "a::b<float, 0>",
    "_ZN1a1bILNS_4ModeE2EEEvv": "a::b<2>",
    "_Z4copyISt4pairIifEEvT_": "copy<std::pair<int, float>>",
}


@pytest.mark.parametrize("name", CASES)
def test_a_mangled_name_is_read(name):
    assert readable(name) == CASES[name]


@pytest.mark.parametrize("name", ["_Z", "_ZN", "_ZN9999999kernelE", "_ZN1aIXadL_Z1bEEEE", "_Z0", "_Zzz"])
def test_what_is_unknown_or_cut_off_stays(name):
    assert readable(name) == name


def test_deep_nesting_stays_and_ends_soon():
    assert readable("_Z" + "1aI" * 50_000) == "_Z" + "1aI" * 50_000


@given(st.text(alphabet="NIJLESTPKDFZX_0123456789abift", max_size=80))
def test_no_text_breaks_the_reader(text):
    assert isinstance(readable("_Z" + text), str)


def test_reports_and_the_timeline_show_it():
    name = "_ZN7ck_tile6kentryILi1ENS_3FwdINS_8PipelineIDF16bEEEEEEvT_"
    assert short_kernel(name) == "kentry<1, Fwd<>>"
    assert short_name(name) == "kentry<1, Fwd<>>"
