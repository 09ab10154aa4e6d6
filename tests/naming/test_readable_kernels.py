"""Readable names of kernels: the template's argument of CUTLASS 3, Tensile, mangled names, Triton."""

from __future__ import annotations

import re

import pytest

from llmtop.naming.kernel_names import kind_of
from llmtop.naming.mangled import mangled_path
from llmtop.naming.readable_kernels import KernelLabel, label_of

GEMM = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int"
    ", int>, cutlass::gemm"
    "::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, cute::tup"
    "le<cute::C<2>, cute::C<"
    "1>, cute::C<1>>, cutlass::gemm::KernelTmaWarpSpecializedCooperative>, cute::tuple<cute::C<"
    "128>, cute::C<256>, cute"
    "::C<64>>, cutlass::bfloat16_t, cute::tuple<long, cute::C<1>, long>>>>(T1::Params)"
)
FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Col"
    "lectiveMainloopFwdSm90<"
    "2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, cute::tuple<cute::C<128>, cute::C<176>"
    ", cute::C<128>>, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90>>>>(Params)"
)


def _as_ncu_writes(name: str) -> str:
    return re.sub(r"(?<=[<, ])(\d+)(?=[>,])", r"(int)\1", name)


@pytest.mark.parametrize(
    ("short", "full", "name"),
    [
        ("device_kernel", GEMM, "GemmUniversal 128x256x64 bf16 TmaWarpSpecializedCooperative"),
        ("device_kernel", FLASH, "FlashAttnFwdSm90 128x176x128 bf16"),
        (
            "Kernel2",
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_128x128_8x4_nn_align1",
        ),
        (
            "Kernel",
            "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaPipelined<"
            "cutlass::gemm::"
            "GemmShape<(int)128, (int)128, (int)32>, float>>>(Params)",
            "Gemm 128x128x32 fp32",
        ),
        ("device_kernel", "device_kernel", "device_kernel"),
    ],
)
def test_cutlass_is_named_by_its_template_s_argument(short: str, full: str, name: str) -> None:
    assert label_of(short, full).name == name
    assert label_of(short, full).tool_name == short


@pytest.mark.parametrize(("own", "other"), [(GEMM, FLASH), (FLASH, GEMM)])
def test_the_pattern_fits_the_one_kernel_as_each_tool_writes_it(own: str, other: str) -> None:
    pattern = label_of("device_kernel", own).pattern
    for written in (own, _as_ncu_writes(own)):
        assert re.search(pattern, written)
        assert label_of("device_kernel", written) == label_of("device_kernel", own)
    assert not re.search(pattern, other)
    assert not re.search(pattern, own.replace("cute::C<128>", "cute::C<192>")), "another tile"


@pytest.mark.parametrize(
    ("full", "name", "tool"),
    [
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT192x128x64_MI16x16x1_SN_LDSB1_AFC1_AG0",
            "Tensile GEMM bf16 TN 192x128x64",
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT192x128x64_MI16x16x1",
        ),
        (
            "Cijk_Ailk_Bjlk_SB_MT64x32x16_MI32x32x1_SN_K1",
            "Tensile GEMM fp32 NT 64x32x16",
            "Cijk_Ailk_Bjlk_SB_MT64x32x16_MI32x32x1",
        ),
        (
            "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32_wt32x32x8_ws1x1",
            "igemm bwd nhwc bf16 256x64x32",
            "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32",
        ),
    ],
)
def test_libraries_of_amd_give_type_layout_and_tile(full: str, name: str, tool: str) -> None:
    assert label_of(full, full) == KernelLabel(name, tool)
    assert full.startswith(tool), "a filter by the beginning of the name finds it"


@pytest.mark.parametrize(
    ("full", "name", "tool", "kind"),
    [
        (
            "_ZN5cudnn25bn_fw_tr_1C11_kernel_NCHWIffiLi128ELb1ELi1ELb1EEEv17cudnnTensorStruct",
            "cudnn::bn_fw_tr_1C11_kernel_NCHW",
            "bn_fw_tr_1C11_kernel_NCHW",
            "normalisation",
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEENS_6detail5Array"
            "IPcLi3EEEEEviT0_",
            "at::native::vectorized_elementwise_kernel: CUDAFunctor_add",
            "vectorized_elementwise_kernel",
            "elementwise",
        ),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEEvPT0_",
            "aiter::add_rmsnorm_quant_kernel",
            "add_rmsnorm_quant_kernel",
            "normalisation",
        ),
        (
            "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEEEv",
            "ck_tile::kentry: Rmsnorm2dFwd",
            "kentry",
            "normalisation",
        ),
        ("_Z9my_kernelPfS_", "my_kernel", "my_kernel", "other"),
    ],
)
def test_a_mangled_name_is_read(full: str, name: str, tool: str, kind: str) -> None:
    label = label_of(full, full)
    assert (label.name, label.tool_name, kind_of(full)) == (name, tool, kind)


@pytest.mark.parametrize("name", ["_ZN9", "_ZN9999abc", "_Z", "_ZNK", "Zebra", "", "_ZN0"])
def test_a_damaged_mangled_name_stays_as_it_is(name: str) -> None:
    assert mangled_path(name) == []
    assert label_of(name, name).name == name


def test_a_long_name_of_triton_keeps_its_first_operators_and_its_number() -> None:
    full = "triton_red_fused__to_copy_add_addmm_div_empty_like_mean_mul_neg_pow_rsqrt_stack_sub_view_31"
    assert label_of(full, full).name == "triton_red_fused_to_copy_add_addmm_div_…_31"
    assert label_of("triton_poi_fused_add_3", "triton_poi_fused_add_3").name == "triton_poi_fused_add_3"
