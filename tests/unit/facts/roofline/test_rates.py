"""Peak rates of devices, and the precision of a product."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.roofline.rates import known_gpus, precisions, rates_of
from stepscope.trace.table import Text


def test_every_rate_has_a_source() -> None:
    assert all(gpu["source"] and gpu["read"] for gpu in known_gpus())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "H200"),
        ("h100", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PG509-200", "A100"),
        ("Tesla V100-DGXS-32GB", "V100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA A10", "A10"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GB200", None),
        ("NVIDIA RTX A1000", None),
        ("Tesla V100S-PCIE-32GB", None),
        ("NVIDIA L40", None),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM-80GB", "A100-80GB"),  # by drivers of 2020
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("", None),
    ],
)
def test_a_device_matches_by_whole_words(name: str, found: str | None) -> None:
    rates = rates_of(name)
    assert (rates and rates["name"]) == found


@pytest.mark.parametrize(
    ("kernel", "width", "precision"),
    [
        ("volta_sgemm_128x64_nn", 4, "fp32"),
        ("ampere_sgemm_128x64_nn", 2, "half"),  # what it was given tells more than its name
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", 2, "half"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn", 4, "tf32"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64", 2, "half"),
        ("any", 1, ""),
        ("any", 8, ""),
        ("volta_fp16_s884gemm_fp16", 0, "half"),
        ("volta_dgemm_128x64_nn", 0, ""),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", 0, ""),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", 0, ""),
        ("sm80_xmma_gemm_i8i32_i8i32_f32_tn_n", 0, ""),
        ("Cijk_Ailk_Bljk_DB_MT32x32x16", 0, ""),
        ("void gemv2T_kernel_val<int, int, double, double, double, double, 128>", 0, ""),
        ("ck::DeviceGroupedGemm<float>", 0, "fp32"),
        ("cutlass_80_tensorop_s1688gemm", 0, "tf32"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNN", 0, "half"),
        ("volta_sgemm", 0, "fp32"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256", 0, "half"),
        ("Cijk_Ailk_Bljk_B_BS_MT64x64", 0, "half"),
        ("Cijk_Ailk_Bjlk_HB_MT64x64", 0, "half"),
        ("Cijk_Alik_Bljk_SB_Bias_HA_S_SAV_MT64x64", 0, "fp32"),
    ],
)
def test_the_precision_of_a_product(kernel: str, width: int, precision: str) -> None:
    assert list(precisions(Text.of([kernel]), np.array([width], np.int8))) == [precision]
