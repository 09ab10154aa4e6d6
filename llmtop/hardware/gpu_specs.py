"""Peaks of GPU models: arithmetic, device memory, PCIe and NVLink; and MFU, a share of the first.

MFU (model FLOP/s utilisation) is the rate of the model's own FLOPs, 6 a parameter and token for a training step,
over what the GPU could do at most (Chowdhery et al., "PaLM", appendix B). The peaks are the dense rates of
NVIDIA's and AMD's datasheets, in TFLOP/s, with fp32 accumulation where the datasheet distinguishes them; rates
"with sparsity" are halved.

Where the figures are from:

- V100: datasheet "NVIDIA V100 Tensor Core GPU" (PCIe and SXM2 apart). T4, A10, A30, L4, L40, L40S: the datasheet
  of each. A40: product brief PB-09976.
- A100: datasheet 1758950. A800: as the A100, but for NVLink, of which NVIDIA left 400 GB/s in both directions
  together (its statement of November 2022; the datasheet of "A800 40GB Active" says the same).
- H100 PCIe: product brief PB-11133 and the datasheet of 2022. H100 SXM, H100 NVL: the datasheet of 2024. H200,
  H200 NVL: datasheet 3512650 and nvidia.com/en-us/data-center/h200. For the memory of the H200 NVL they have 4.2
  and 4.8 TB/s; taken is the greater, as no share of what is the most may be over 100 %.
- H800, H20: NVIDIA has published no datasheet; the figures are those that server makers and the press give for the
  modules (SXM): the H800 as the H100, with NVLink of 400 GB/s in both directions together. What they say of the
  H800's cards (PCIe, NVL) differs from one to the next, and so it does of the H20's second memory: these have no
  figures here.
- GH200: datasheet, of the one with 96 GB (NVML calls it "GH200 480GB", by the memory of its CPU).
- B200, GB200: nvidia.com/en-us/data-center/hgx, dgx-b200 and gb200-nvl72, a GPU's share of what they give for all.
- GeForce: NVIDIA's white papers on GA102 and on Ada. A name that goes on ("RTX 4090 Laptop GPU", "4090 D",
  "3090 Ti") is another GPU with other figures.
- Instinct MI300X, MI325X: AMD's datasheets of both; of fp32 the rate of the matrix cores.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple


class Peak(NamedTuple):
    """The most FLOP/s that a GPU can do with numbers of one type."""

    gpu: str
    """Name in the datasheet."""
    dtype: str
    flops_per_s: float


def _rates(fp32: float, tf32: float | None, half: float | None, fp8: float | None = None) -> dict[str, float]:
    known = {"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half, "fp8": fp8}
    return {dtype: rate for dtype, rate in known.items() if rate is not None}


# Name as NVML gives it (searched in this order: the more special first) -> datasheet's name, TFLOP/s by dtype.
_PEAKS: tuple[tuple[str, str, dict[str, float]], ...] = (
    (r"\bGB200\b", "GB200", _rates(80.0, 1250.0, 2500.0, 5000.0)),
    (r"\bB200\b", "HGX B200", _rates(75.0, 1125.0, 2250.0, 4500.0)),
    (r"\bH(100|200) NVL\b", "H100 NVL, H200 NVL", _rates(60.0, 417.5, 835.5, 1670.5)),
    (r"\bH100 PCIe\b", "H100 PCIe", _rates(51.0, 378.0, 756.5, 1513.0)),
    (r"\b(H100|H200|H800$|GH200)\b", "H100 SXM, H200 SXM", _rates(67.0, 494.5, 989.5, 1979.0)),
    (r"\bH20\b", "H20", _rates(44.0, 74.0, 148.0, 296.0)),
    (r"\bA[18]00\b", "A100", _rates(19.5, 156.0, 312.0)),
    (r"\bA40\b", "A40", _rates(37.4, 74.8, 149.7)),
    (r"\bA30\b", "A30", _rates(10.3, 82.0, 165.0)),
    (r"\bA10\b", "A10", _rates(31.2, 62.5, 125.0)),
    (r"\bL40S\b", "L40S", _rates(91.6, 183.0, 362.0, 733.0)),
    (r"\bL40\b", "L40", _rates(90.5, 90.5, 181.0, 362.0)),
    (r"\bL4\b", "L4", _rates(30.3, 60.0, 121.0, 242.5)),
    (r"\bRTX 4090$", "GeForce RTX 4090", _rates(82.6, 82.6, 165.2, 330.3)),
    (r"\bRTX 3090$", "GeForce RTX 3090", _rates(35.6, 35.6, 71.0)),
    (r"\bV100-PCIE\b", "V100 PCIe", {"fp32": 14.0, "fp16": 112.0}),
    (r"\bV100-SXM[23]\b", "V100 SXM2", {"fp32": 15.7, "fp16": 125.0}),
    (r"\bT4\b", "T4", {"fp32": 8.1, "fp16": 65.0}),
    (r"\bMI3(00|25)X\b", "Instinct MI300X, MI325X", _rates(163.4, 653.7, 1307.4, 2614.9)),
)


def peak(gpu_name: str, dtype: str) -> Peak | None:
    """Return the dense peak of a GPU, or None for one that is not in the table, a MIG instance, or a dtype it
    lacks.

    Args:
        gpu_name: as NVML gives it: "NVIDIA H200", "NVIDIA A100-SXM4-80GB".
        dtype: "fp32", "tf32", "bf16", "fp16" or "fp8".
    """
    if " MIG " in gpu_name:
        return None  # an instance has a part of the GPU, and how much is not in its name alone
    for pattern, name, rates in _PEAKS:
        if re.search(pattern, gpu_name):
            return Peak(name, dtype, rates[dtype] * 1e12) if dtype in rates else None
    return None


_GB_PER_S: tuple[tuple[str, float], ...] = (
    (r"\bG?B200\b", 8000.0),
    (r"\bH200\b", 4800.0),
    (r"\bGH200 480GB\b", 4000.0),
    (r"\bH100 NVL\b", 3900.0),
    (r"\bH100 PCIe\b", 2000.0),
    (r"\b(H100 80GB HBM3|H800$)", 3350.0),
    (r"\bH20$", 4000.0),
    (r"\bA[18]00.*40GB\b", 1555.0),
    (r"\bA[18]00 80GB PCIe\b", 1935.0),
    (r"\bA[18]00-SXM4-80GB\b", 2039.0),
    (r"\bA40\b", 696.0),
    (r"\bA30\b", 933.0),
    (r"\bA10\b", 600.0),
    (r"\bL40S?\b", 864.0),
    (r"\bL4\b", 300.0),
    (r"\bRTX 4090$", 1008.0),
    (r"\bRTX 3090$", 936.0),
    (r"\bV100\b", 900.0),
    (r"\bT4\b", 320.0),
    (r"\bMI300X\b", 5300.0),
    (r"\bMI325X\b", 6000.0),
)
"""10^9 bytes a second of device memory, by the same datasheets; the more special name first."""


def memory_bytes_per_s(gpu_name: str) -> float | None:
    """Return the most that a GPU moves to and from its memory; None for one not in the table, and for a MIG
    instance.

    Args:
        gpu_name: as NVML gives it.
    """
    if " MIG " in gpu_name:
        return None
    return next((rate * 1e9 for pattern, rate in _GB_PER_S if re.search(pattern, gpu_name)), None)


_TENSOR_CORES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # NVIDIA's names of products by generation, the more special first: Turing and Volta compute in fp16 alone.
    (r"\bQuadro RTX \d|\bTITAN (?:V|RTX)\b|\bRTX 20[5-8]0\b|\bV100\b|\bT4\b", ("fp16",)),
    (r"\bRTX (?:PRO )?\d{3,4}\b|\bRTX A\d{3,4}\b|\bRTX \d{4} Ada\b|\bRTX PRO\b", ("tf32", "bf16")),
    (r"\bA(?:2|10G?|16|30|40|100|800)\b|\bL(?:2|4|20|40S?)\b|\bOrin\b", ("tf32", "bf16")),
    (r"\bG?H(?:20|100|200|800)\b|\bG?B(?:10|100|200|300)\b", ("tf32", "bf16")),
)


def tensor_core_types(gpu_name: str) -> tuple[str, ...]:
    """Return the types that a GPU's tensor cores compute in instead of fp32; empty for one without, or that is not
    known.

    Args:
        gpu_name: as NVML gives it; also of GPUs whose peaks are in no table.
    """
    return next((types for pattern, types in _TENSOR_CORES if re.search(pattern, gpu_name)), ())


def has_matrix_cores(gpu_name: str) -> bool | None:
    """Return True if a GPU computes matrix products faster in a narrower type than in fp32; None if it is not
    known.

    Args:
        gpu_name: as NVML gives it.
    """
    plain = peak(gpu_name, "fp32")
    faster = peak(gpu_name, "tf32") or peak(gpu_name, "fp16")
    if plain is None:
        return True if tensor_core_types(gpu_name) else None
    return faster is not None and faster.flops_per_s > plain.flops_per_s


_INTEGRATED: Final = re.compile(r"\b(?:GB10|Orin|Thor|Xavier|Tegra)\b|\(nvgpu\)", re.IGNORECASE)
"""GPUs without memory of their own: DGX Spark (GB10) and Jetson modules. NVML answers "Not Supported"
when asked for their memory (DGX Spark's known issues)."""


def shares_system_memory(gpu_name: str) -> bool:
    """Return True if a GPU of this name has no memory of its own and uses the system's.

    Args:
        gpu_name: as NVML gives it.
    """
    return _INTEGRATED.search(gpu_name) is not None


_PCIE_LANE_BYTES_PER_S: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One lane in one direction after line coding, by generation (PCI-SIG's base specifications)."""


def pcie_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """Return the most that a PCIe link carries in one direction; None where the driver reports no generation or
    width."""
    lane = _PCIE_LANE_BYTES_PER_S.get(generation or 0)
    return lane * lanes if lane is not None and lanes else None


_NVLINK_GB_PER_S: tuple[tuple[str, float], ...] = (
    (r"\bG?B[23]00\b", 900.0),
    (r"\bH100 (NVL|PCIe)\b", 300.0),
    (r"\b(A800\b|H800$)", 200.0),
    (r"\b(H100|G?H200|H20)\b", 450.0),
    (r"\bA100\b", 300.0),
    (r"\bA30\b", 100.0),
    (r"\b(A40|RTX 3090)\b", 56.25),
    (r"\bV100-SXM[23]\b", 150.0),
)
"""10^9 bytes a second over all links in one direction: half of what the datasheets name, which count both.
Bridges between cards count as links: by them the H200 NVL has 900 GB/s, the H100's cards 600, the A30 200."""


@lru_cache(64)  # a screen asks at every drawing
def nvlink_bytes_per_s(gpu_name: str) -> float | None:
    """Return the most that all NVLinks of a GPU carry together in one direction; None for one that is not in the
    table.

    Args:
        gpu_name: as NVML gives it.
    """
    return next((rate * 1e9 for pattern, rate in _NVLINK_GB_PER_S if re.search(pattern, gpu_name)), None)


def mfu(
    flops_per_token: float | None, tokens_per_s: float | None, gpu_name: str | None, dtype: str | None
) -> tuple[float | None, str | None]:
    """Return the model FLOP utilisation.

    Args:
        flops_per_token: forward and backward, as the script or the estimate gives it; None: not asked for.
        tokens_per_s: of this process; None: not known yet.
        gpu_name: as NVML names it; None: which GPU is used is not known.
        dtype: in which the model computes, as torch names it; None: not known.

    Returns:
        Percent of the dense peak in that dtype, and a note that names the peak; or None and the reason. Both None
        while nothing is to be shown.
    """
    if flops_per_token is None or tokens_per_s is None:
        return None, None
    if dtype is None:
        return None, "no MFU: give attach() the dtype that the model computes in"
    if gpu_name is None:
        return None, "no MFU: which GPU this process uses is not known"
    limit = peak(gpu_name, dtype)
    if limit is None:
        return None, f"no MFU: the peak of {gpu_name} in {dtype} is not known"
    share = 100 * flops_per_token * tokens_per_s / limit.flops_per_s
    return share, f"of {limit.flops_per_s / 1e12:g} TFLOP/s ({limit.gpu}, {dtype}, dense)"


def estimated_mfu(
    flops_per_token: float | None,
    tokens_per_s: float | None,
    gpu_name: str | None,
    dtype: str | None,
    why_not: str | None,
) -> tuple[float | None, str | None]:
    """Return `mfu` with FLOPs estimated from the number of parameters, which the script has not declared.

    So the result is (None, None) without tokens or a known GPU.

    Args:
        flops_per_token: six per parameter, where the estimate is valid.
        tokens_per_s: of this process.
        gpu_name: as NVML gives it.
        dtype: in which the model was observed to compute.
        why_not: why there are no `flops_per_token`.
    """
    if tokens_per_s is None or gpu_name is None:
        return None, None
    if flops_per_token is None:
        return None, f"no MFU estimate: {why_not}; pass llmtop.attach(flops_per_token=…)"
    if dtype is None:
        return None, "no MFU estimate: in which dtype the model computes is not known; attach(dtype=) would tell"
    share, note = mfu(flops_per_token, tokens_per_s, gpu_name, dtype)
    if share is None:
        return None, note
    return share, f"an estimate: 6 operations a parameter and token, without attention's own; {note}"
