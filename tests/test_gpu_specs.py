"""MFU: which peak, and when there is none."""

import pytest

from llmtop.gpu_specs import mfu, peak


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
        ("Tesla V100-SXM2-32GB", "fp16", 125),
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
        ("NVIDIA A10G", "bf16"),
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
