"""Classes of GPU kernels by name: with `communication`, the only patterns on kernel names in llmtop.

tests/data/kernel_classes.tsv holds the names that these were tried on, each with a class given by hand: what takes
more than 1 % of the device time in captures of NVIDIA and AMD GPUs, trainings and inference servers.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Literal

from llmtop.naming.communication import HEAD, communication_library
from llmtop.naming.mangled import mangled_words

KernelKind = Literal[
    "GEMM",
    "convolution",
    "attention",
    "normalisation",
    "elementwise",
    "reduction",
    "embedding",
    "NCCL",
    "optimizer",
    "other",
]
"""Classes of kernels as reports name them. "NCCL" is any collective: RCCL's, PyTorch's symmetric memory, custom
all-reduces. "elementwise" includes copies, gathers and changes of layout; "reduction" sorts, scans and pooling."""

_TRITON: Final = re.compile(r"^triton_(poi|red|per|tem|for|mm|bmm|convolution\w*|flex_attention)(?:_|$)")
"""Inductor's: pointwise, reduction, persistent reduction, template, foreach; then the operators that it fused."""

_KINDS: Final[tuple[tuple[KernelKind, re.Pattern[str]], ...]] = (
    # The order matters: a cache's copy has "flash" in its name, a fused attention softmax and GEMM, a fused Adam
    # is an elementwise template, and a convolution is often an implicit GEMM.
    (
        "elementwise",
        re.compile(r"(?:reshape|concat)_and_cache|store_kv_?cache|rotary|finalize(?:_matmul|kernel|moe)"
                   r"|(?:^|[\s:_])quantize(?!d)|act_and_mul", re.I),
    ),
    (
        "attention",
        re.compile(r"flash|fmha|sdpa|attention|attn|mha_|mla_(?:fwd|decode|prefill)|paged_?kv|compute_dot_do_o"
                   r"|convert_dq_to_16", re.I),
    ),
    (
        "embedding",
        re.compile(r"embedding|pooled_emb|fbgemm_gpu::(?!\w*(?:f8|f4|i8|gemm))|bounds_check_indices", re.I),
    ),
    (
        "optimizer",
        re.compile(r"adam(?!ax)|adagrad|adafactor|(?<![a-z])sgd|(?<![a-z])lamb(?!da)|FusedOptimizer|multi_tensor_apply"
                   r"|optimizer", re.I),
    ),
    (
        "normalisation",
        re.compile(r"(?:layer|rms|batch|group|instance)_?norm|cudnn\w*::\w*bn_|GammaBeta|RowwiseMoments"
                   r"|ComputeInternalGradients|Compute(?:Backward)?FusedParams", re.I),
    ),
    ("elementwise", re.compile(r"elementwise_kernel|nchwToNhwc|nhwcToNchw", re.I)),
    (
        "convolution",
        re.compile(r"[sh]cudnn|[dw]grad|[fb]prop|implicit_?(?:gemm|convolve)|convolve|convolution|conv[123]d"
                   r"|(?:^|[\s:_])conv(?:_|$)|winograd|fft2d_|igemm_(?:fwd|bwd|wrw)|depthwise|im2col"
                   r"|col2im", re.I),
    ),
    (
        "GEMM",
        re.compile(r"(?<!fb)gemm|nvjet|Cijk_|cutlass|wgmma|xmma|cublas|split_?k(?!v)|gemv|matmul|(?:^|[\s:_])b?mm_"
                   r"|fused_moe_kernel|f8f8|f8i4|dot_kernel|hmma|epilogue::impl|marlin"
                   r"|^dot(?:_general)?(?:\.\d+)*$", re.I),
    ),
    (
        "reduction",
        re.compile(r"reduce|softmax|nll_loss|cross_entropy|\bsum\b|arg(?:max|min)|topk|cumsum|scan|sort|histogram"
                   r"|routing|pool", re.I),
    ),
    (
        "elementwise",
        re.compile(r"elementwise|vectorized|copy|fill|CatArray|index|gather|scatter|dropout|gelu|silu|relu|transpose"
                   r"|permute|where|arange|cast|rope|triton_"
                   # XLA's: what it fuses around no product and no reduction, and what it wraps alone.
                   r"|^(?![xy]nn)\w*fusion(?:[._]\d+)*$|^wrapped_", re.I),
    ),
)  # fmt: skip

_ONCE_A_STEP: Final = re.compile(
    r"nll_?loss|cross_?entropy|ArgMaxOps|\bargmax|sampleMultinomialOnce|TopPSampling|TopKTopPSampling", re.I
)
"""A loss, and the choice of a token: torch's argmax, which its multinomial of one sample uses; servers' own."""

_MATRIX_TYPES: Final = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        # cuBLAS's and cuDNN's names give the types of factors, product and sums; "ffma" is the scalar instruction
        # and "simt" CUTLASS's word for it. cuBLAS's tensor-core kernels for 4-byte values, s1688, are TF32.
        ("fp8", r"e4m3|e5m2|(?i:fp8|f8f8)|_F8"),
        ("tf32", r"(?i:tf32)|tensorop_s1688(?:gemm|fprop|dgrad|wgrad)|_s1688gemm_\d|_XF?32|_X_B"),
        ("bf16", r"(?i:bf16|bfloat16)|nvjet_(?:sm\d+_)?tst|Cijk_\w+?_BB?S?_B?H?|Cijk_\w+?_BSS_"),
        (
            "fp16",
            r"(?i:fp16|half)|(?<!b)f16f16|h(?:16)?884|h1688|h16816|f16_s\w*gemm|hgemm|nvjet_(?:sm\d+_)?hs[hs]|hcudnn|Cijk_\w+?_HH?S?_",
        ),
        (
            "fp32",
            r"ffma|_simt_s|(?:^|[\s_:])sgemm_|_sgemm_\d|scudnn|convolve_sgemm|Cijk_\w+?_SB_|Cijk_\w+?_S_B_"
            r"|(?:conv\w*|gemm\w*|wgrad\w*|dgrad\w*|winograd\w*|fft2d\w*)<(?:int, )?float\b",
        ),
    )
)
"""The first that matches is taken."""

_FUNCTOR_TEMPLATES: Final = re.compile(
    r"^(?:void )?(?:at::native::)?(?:\(anonymous namespace\)::|<unnamed>::)?"
    r"(\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|index_elementwise_kernel"
    r"|unrolled_elementwise_kernel\w*)<"
)
_FUNCTOR: Final = re.compile(r"(?:\w+::|\(anonymous namespace\)::|<unnamed>::)+(\w+)|\b(\w*Functor\w*)")
_ARGUMENT_TYPES: Final = re.compile(
    r"c10::BFloat16|c10::Half|c10::complex<\w+>|\b(?:float|double|long|int|bool|short)\b"
)
_GIVEN: Final = re.compile(r".*?\b(?:AUnary|BUnary|Binary)Functor<")
_CARRIERS: Final = re.compile(
    r"^gpu_kernel|^(?:AUnary|BUnary|Binary)Functor$|elementwise_kernel|^(?:multi_tensor_apply|reduce)_kernel$|^ReduceOp$"
    r"|^func_wrapper_t$|[aA]rray$|^TensorIterator|ListMetadata$|^opmath_|^(?:BFloat16|Half|complex|Scalar|Tensor)$"
    r"|^(?:LoadWith|StoreWith)|OffsetCalculator$|^operator$|^compare_"
)
"""Wrappers around the functor that names the computation."""


_LIBRARY: Final = re.compile(
    r"\bat::|\bc10::|N2at6native|cudnn|cublas|cutlass|nvjet|Cijk_|xmma|triton_|_?sgemm_|gemmk?\d|gemv|gemmSN|splitK|nccl|rccl"
    r"|flash|fmha|fbgemm|cub::|thrust::|cask|wgrad|dgrad|_s\d+gemm|^(?:ampere|volta|turing|maxwell|sm\d\d|hopper)_"
    r"|deep_gemm|vllm|sgl|fusion|aiter|ck::|miopen|rocblas|hipblaslt|Tensile|multi_tensor|elementwise_kernel"
    r"|^_matmul_ogs_|^_p_matmul_ogs"  # triton-lang/triton: python/triton_kernels/triton_kernels/matmul_ogs.py
    r"|^(?:bmm|gemm)_(?:Mx)?E\d+m\d+|^fmhaSm\d"  # TensorRT-LLM's generated kernels, also in FlashInfer
)


def is_from_a_library(name: str) -> bool:
    """Return True if a kernel is one of PyTorch's, of a vendor's library or of a compiler for models."""
    return bool(_LIBRARY.search(name[:HEAD]))


_SOFTMAX: Final = re.compile(r"softmax", re.I)
_LOG_SOFTMAX: Final = re.compile(r"log_?softmax|nll|cross_?entropy|topk|moe|gating", re.I)


def is_softmax(name: str) -> bool:
    """Return True for a kernel that computes a softmax alone: neither one of a loss nor one within attention."""
    head = name[:HEAD]
    return bool(_SOFTMAX.search(head)) and not _LOG_SOFTMAX.search(head) and kind_of(head) == "reduction"


def is_carrier(word: str) -> bool:
    """Return True for a wrapper around the functor that names the computation."""
    return bool(_CARRIERS.search(word))


def is_collective(name: str) -> bool:
    """Return True if a kernel moves data between ranks: an all-reduce and similar, of any library."""
    return communication_library(name) is not None


@functools.lru_cache(maxsize=4096)
def kind_of(name: str) -> KernelKind:
    """Return the class of a kernel.

    Args:
        name: as recorded, with or without template arguments and parameters; the more, the surer.

    Returns:
        "other" where the name is unknown.
    """
    head = name[:HEAD]
    if name.startswith("_Z"):
        head = "::".join(mangled_words(name)) or head
    if is_collective(head):
        return "NCCL"
    triton = _TRITON.match(head)
    if triton:
        return _kind_of_inductor_kernel(triton[1], head)
    return next((kind for kind, pattern in _KINDS if pattern.search(head)), "other")


def _kind_of_inductor_kernel(how: str, name: str) -> KernelKind:
    """Return the kind of a torch.compile kernel, by its template rather than by its fused operators."""
    if how == "poi":
        return "elementwise"
    if how == "for":
        return "optimizer"
    if how in ("red", "per"):
        return "normalisation" if re.search(r"norm", name) else "reduction"
    if "attention" in name:
        return "attention"
    return "convolution" if "convolution" in name else "GEMM"


def kind_text(kind: KernelKind | str) -> str:
    """Return what a reader sees for a class of kernels: "NCCL" stands for the collectives of every library."""
    return "communication" if kind == "NCCL" else kind


def is_step_work(name: str) -> bool:
    """Return True if a kernel is of what a step has and no layer: loss, optimizer, embedding, chosen token."""
    return kind_of(name) in ("optimizer", "embedding") or bool(_ONCE_A_STEP.search(name[:HEAD]))


def computes_products(name: str) -> bool:
    """Return True if a kernel is a matrix product, a convolution or attention: what a model consists of."""
    return kind_of(name) in ("GEMM", "convolution", "attention")


@functools.lru_cache(maxsize=4096)
def matrix_type(name: str) -> str | None:
    """Return the type of numbers that a matrix product or convolution computes in: "fp32" is without tensor cores.

    Args:
        name: the full name.

    Returns:
        fp8, tf32, bf16, fp16 or fp32; None where the name does not say it.
    """
    head = name[:HEAD]
    return next((kind for kind, pattern in _MATRIX_TYPES if pattern.search(head)), None)


@functools.lru_cache(maxsize=4096)
def functor_of(name: str) -> str | None:
    """Return the function that a PyTorch template for values, reductions or lists of tensors computes. These
    kernels share a few short names.

    Args:
        name: the full name.

    Returns:
        The functor with the type that it works on, "CUDAFunctor_add<float>"; None for other kernels.
    """
    head = name[: 3 * HEAD]
    template = _FUNCTOR_TEMPLATES.match(head)
    if template is None:
        return None
    inside = head[template.end() :]
    found = next((one for one in _FUNCTOR.finditer(inside) if not _CARRIERS.search(one[1] or one[2])), None)
    if found is None:
        return None
    # A functor of two values may compute in float on narrower ones; what carries it names those that it is given.
    carrier = _GIVEN.match(inside)
    kind = _ARGUMENT_TYPES.search(inside, carrier.end() if carrier else found.end())
    words = found[1] or found[2]
    return f"{words}<{kind[0].removeprefix('c10::')}>" if kind else words
