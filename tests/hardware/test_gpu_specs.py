"""What GPU models can do: which peak MFU is of, and when there is none; PCIe and NVLink."""

import pytest

from llmtop.hardware.gpu_specs import estimated_mfu, mfu, nvlink_bytes_per_s, pcie_bytes_per_s, peak
from llmtop.rules.state.gpu import GpuState
from tests.support.snapshots import gpu
from tui.paint.gpu_metrics import nvlink_limit, pcie_limit


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA L40S", "fp16", 362),
        ("NVIDIA L4", "fp16", 121),
        ("NVIDIA H100 NVL", "fp8", 1670.5),
        ("NVIDIA H800", "bf16", 989.5),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA GH200 144G HBM3e", "bf16", 989.5),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_the_name_that_the_driver_gives_finds_its_datasheet(name: str, dtype: str, tflops: float) -> None:
    found = peak(name, dtype)
    assert found is not None
    assert found.flops_per_s == tflops * 1e12


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Tesla V100-SXM2-32GB", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16"),
        ("NVIDIA A10G", "bf16"),
        ("NVIDIA H800 PCIe", "bf16"),
        ("NVIDIA H800 NVL", "bf16"),
        ("Tesla V100S-PCIE-32GB", "fp16"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"),
        ("NVIDIA Z900", "bf16"),
        ("NVIDIA H200", "int8"),
    ],
)
def test_what_is_not_known_has_no_peak(name: str, dtype: str) -> None:
    assert peak(name, dtype) is None


def test_mfu_is_a_share_of_the_dense_peak_and_says_which() -> None:
    share, note = mfu(6 * 350e6, 200_000, "NVIDIA H200", "bf16")
    assert share == pytest.approx(42.445, rel=1e-3)
    assert note == "of 989.5 TFLOP/s (H100 SXM, H200 SXM, bf16, dense)"


def test_without_a_peak_there_is_no_mfu_but_a_reason() -> None:
    assert mfu(1e9, 1.0, "NVIDIA Z900", "bf16") == (None, "no MFU: the peak of NVIDIA Z900 in bf16 is not known")
    assert mfu(1e9, 1.0, None, "bf16")[1] == "no MFU: which GPU this process uses is not known"
    assert mfu(1e9, 1.0, "NVIDIA H200", None)[1] == "no MFU: give attach() the dtype that the model computes in"
    assert mfu(None, 1.0, "NVIDIA H200", "bf16") == (None, None), "nobody asked"


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_per_s"), [(3, 16, 15.76), (4, 16, 31.504), (5, 16, 63.008), (5, 8, 31.504)]
)
def test_the_alert_and_the_screen_know_the_same_pcie_link(generation: int, lanes: int, gb_per_s: float) -> None:
    one = gpu(0, pcie_gen=generation, pcie_width=lanes)
    assert pcie_bytes_per_s(generation, lanes) == pytest.approx(gb_per_s * 1e9)
    assert GpuState(one, 0.0).link_bytes_per_s == pcie_limit(one) == pcie_bytes_per_s(generation, lanes)


def test_a_link_that_the_driver_does_not_tell_has_an_axis_and_no_figure() -> None:
    for absent in (gpu(0, pcie_gen=None), gpu(0, pcie_gen=99), gpu(0, pcie_width=None)):
        assert GpuState(absent, 0.0).link_bytes_per_s is None
        assert pcie_limit(absent) > 0


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA H200", 450),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA GH200 480GB", 450),
        ("NVIDIA H100 NVL", 300),
        ("NVIDIA H100 PCIe", 300),
        ("NVIDIA H200 NVL", 450),
        ("NVIDIA H20", 450),
        ("NVIDIA A800-SXM4-80GB", 200),
        ("NVIDIA A800 40GB Active", 200),
        ("NVIDIA A30", 100),
        ("NVIDIA A40", 56.25),
        ("NVIDIA H800", 200),
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA GB200", 900),
        ("NVIDIA B300 SXM6 AC", 900),
        ("Tesla V100-SXM2-32GB", 150),
    ],
)
def test_nvlink_is_told_for_one_direction(name: str, gb_per_s: float) -> None:
    assert nvlink_bytes_per_s(name) == gb_per_s * 1e9 == nvlink_limit(gpu(0, name=name))


def test_a_gpu_without_nvlink_has_no_rate() -> None:
    assert nvlink_bytes_per_s("NVIDIA L40S") is None
    assert nvlink_bytes_per_s("NVIDIA L4") is None
    assert nvlink_bytes_per_s("Tesla V100-PCIE-16GB") is None


def test_a_card_of_which_sources_disagree_has_no_rate() -> None:
    assert nvlink_bytes_per_s("NVIDIA H800 PCIe") is None


def test_an_estimate_says_that_it_is_one_or_why_there_is_none() -> None:
    share, note = estimated_mfu(6 * 350e6, 200_000, "NVIDIA H200", "bf16", None)
    assert share == mfu(6 * 350e6, 200_000, "NVIDIA H200", "bf16")[0]
    assert note is not None
    assert "an estimate" in note
    assert "989.5 TFLOP/s" in note
    assert estimated_mfu(None, 1.0, "NVIDIA H200", "bf16", "experts are routed (num_experts 8)")[1] == (
        "no MFU estimate: experts are routed (num_experts 8); attach(flops_per_token=) would tell"
    )
    assert "dtype" in (estimated_mfu(1e9, 1.0, "NVIDIA H200", None, None)[1] or "")
    assert estimated_mfu(1e9, None, "NVIDIA H200", "bf16", None) == (None, None), "a model without tokens"
    assert estimated_mfu(1e9, 1.0, None, None, "x") == (None, None), "a training on the CPU"
