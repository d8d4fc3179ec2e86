"""Tile, number type and chip that a kernel name states. Every function takes a name in lower case."""

from __future__ import annotations

import re

Tile = tuple[int, int, int | None]

_TILES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        r"tilesize(\d+)x(\d+)x(\d+)",  # xmma of cuDNN, cuBLAS, TensorRT
        r"gemmshape<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)>",  # CUTLASS 2, templates: block first
        r"(?:gemm|fprop|dgrad|wgrad)_[a-z0-9_]*?(\d+)x(\d+)_(\d+)x\d+_",  # CUTLASS 2, named: tile, then k x stages
        r"_(\d+)x(\d+)x(\d+)_\d+x\d+x\d+_",  # CUTLASS 3, named: tile, then cluster
        r"c<(\d{2,})>, ?cute::c<(\d{2,})>, ?cute::c<(\d{2,})>",  # CUTLASS 3, templates
        r"nvjet_(?:sm\d+_)?[a-z]+_(?:mma_)?(\d+)x(\d+)(?:_|x)(\d+)",  # cuBLAS from Hopper on
        r"(?:gemm|cudnn)_[a-z0-9_]*?(\d+)x(\d+)_ldg\d[a-z0-9_]*?_stages_(\d+)x",  # cuBLAS and cuDNN on Turing, Ampere
        r"_bt(\d+)x(\d+)x(\d+)_",  # MIOpen
        r"_mt(\d+)x(\d+)x(\d+)_",  # hipBLASLt
        r"_t(\d+)x(\d+)x(\d+)u\d_",  # TensorRT's batched products
        r"(?:gemm|cudnn)_(?:[a-z]+\d*_)*?(\d+)x(\d+)(?:_|$)",  # cuBLAS, cuDNN: no k
    )
)
_CONVOLVE = re.compile(
    r"(implicit|explicit)_convolve_sgemm<[^>]*?(?:\(int\))?(?:128|512|1024), ?(?:\(int\))?(\d), ?(?:\(int\))?(\d),"
)
_WINOGRAD_BLOCK = re.compile(r"winograd_128x128_.*tile(\d)(\d)(\d)[a-z]")


def tile(name: str) -> Tile | None:
    """Outputs of a thread block (m, n) and the step along the sum; None when the name does not say.

    ``implicit_convolve_sgemm<float, float, 128, 5, 5, ...>`` gives the logarithms: 2^5 x 2^5.
    """
    found = _CONVOLVE.search(name)
    if found:
        return 2 ** int(found[2]), 2 ** int(found[3]), None
    for pattern in _TILES:
        found = pattern.search(name)
        if found:
            m, n, *k = (int(part) for part in found.groups())
            return m, n, k[0] if k else None
    return None


def winograd_block(name: str) -> tuple[int, int, int] | None:
    """(images, rows, columns) of tiles in one block of the fused Winograd: ``tile148t`` is 1 x 4 x 8."""
    found = _WINOGRAD_BLOCK.search(name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


_CHIP = re.compile(
    r"(?:^|_|::)(maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)(?=_)|(sm\d{2,3})(?!\d)|cutlass_(\d{2,3})_"
)


def architecture(name: str) -> str | None:
    """The chip that a kernel was written for: "volta", "sm80"."""
    found = _CHIP.search(name)
    if not found:
        return None
    return found[1] or found[2] or f"sm{found[3]}"


_TYPES = {
    "f16": "fp16", "fp16": "fp16", "half": "fp16", "bf16": "bf16", "tf32": "tf32", "i8": "int8", "int8": "int8",
    "s8": "int8", "u8": "int8", "f32": "fp32", "fp32": "fp32", "f64": "fp64",
    "e4m3": "fp8", "e5m2": "fp8", "e2m1": "fp4",
    "d": "fp64", "z": "fp64", "c": "fp32", "i": "int8", "h": "fp16", "s": "fp32", "gc": "fp32",
}  # fmt: skip
_XMMA = re.compile(
    r"xmma_[a-z_0-9]*?_(bf16|tf32|f16|f32|f64|i8|u8|e4m3|e5m2)(?:bf16|tf32|f16|f32|f64|i8|i32|e4m3|e5m2)_"
)
_SHAPED = re.compile(
    r"(?:(fp16|bf16|int8|tf32|f16|i8|s8)_)?([shdi])(884|1688|16816|161616|8816|8832|16832|16864|8864)"
    r"(f16|bf16|tf32|i8)?(?:gemm|cudnn|fprop|dgrad|wgrad)(?:(?:_[a-z]+)?_(fp16|bf16|f16|tf32|s8|i8|int8)_)?"
)
_WARPGROUP = re.compile(r"[shi]\d+x\d+x\d+gemm_(bf16|f16|tf32|f32|e4m3|e5m2|s8|u8)")
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])")
_NVJET_TYPES = {"h": "fp16", "t": "bf16", "q": "fp8", "d": "fp64", "o": "fp4"}
_PLAIN = re.compile(r"(?:^|_)(gc|s|d|h|c|z)(?:gemm|cudnn)(?:_|$)")
_TRAITS = re.compile(r"(tfloat32_t|bfloat16_t|half_t|float_e4m3|float_e5m2|int8_t)")
_TRAIT_TYPES = {
    "tfloat32_t": "tf32", "bfloat16_t": "bf16", "half_t": "fp16", "float_e4m3": "fp8", "float_e5m2": "fp8",
    "int8_t": "int8",
}  # fmt: skip
_MIOPEN = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx?\d*_n[a-z]+_(bf16|fp16|fp32|int8)")


def math(name: str, family: str | None) -> tuple[str | None, bool | None]:
    """(type of the multiplied numbers, on tensor cores or not); None where the name does not say."""
    if family not in ("conv", "winograd", "gemm", "attention", "depthwise", "fft"):
        return None, None
    return _printed(name) or _templates(name, family)


def _printed(name: str) -> tuple[str | None, bool | None] | None:
    """Types in the codes of cuDNN, cuBLAS and CUTLASS's named kernels."""
    found = _XMMA.search(name)
    if found:
        kind = _TYPES[found[1]]
        if kind == "fp32" and re.search(r"_tensor\d+x", name):
            kind = "tf32"  # stored as fp32, rounded on the way in
        return kind, kind != "fp32" and "_ffma" not in name
    found = _SHAPED.search(name)
    if found:
        return _of_instruction(name, found), True
    found = _WARPGROUP.search(name)
    if found:
        kind = _TYPES[found[1]]
        return ("tf32" if kind == "fp32" else kind), True
    found = _NVJET.search(name)
    if found:
        return _NVJET_TYPES.get(found[1]), True
    found = _PLAIN.search(name)
    if found and "tensorop" not in name:
        return _TYPES[found[1]], False
    found = _MIOPEN.search(name)
    if found:
        return _TYPES[found[1]], None
    if "convolve_sgemm<" in name:
        return ("fp32" if re.search(r"convolve_sgemm<float\b", name) else None), False
    return None


def _of_instruction(name: str, found: re.Match[str]) -> str | None:
    """``s1688gemm`` is fp16 on Turing, tf32 from Ampere on unless another type is printed beside it."""
    word = found[1] or found[4] or found[5]
    if word:
        return _TYPES[word]
    if found[2] != "s":
        return _TYPES[found[2]]
    if found[3] == "1688":
        chip = architecture(name) or ""
        return "fp16" if chip in ("turing", "sm75") else "tf32" if chip else None
    return "fp16"


def _templates(name: str, family: str) -> tuple[str | None, bool | None]:
    """Types in template arguments and in the names of attention kernels."""
    found = _TRAITS.search(name)
    kind = _TRAIT_TYPES[found[1]] if found else None
    if family == "attention":
        printed = re.search(r"(?:fmha_cutlass[fb]|fmhasm\w+?qkv)_?(bf16|bfloat16|f16|fp16|e4m3|f32)", name)
        if printed:
            kind = {"bfloat16": "bf16", "f32": "fp32"}.get(printed[1]) or _TYPES[printed[1]]
        fused = re.search(r"flash|native_sdpa|fmhasm|fmha_cutlass|wgmma|tensorop", name) is not None
        return kind, True if fused and kind != "fp32" else None
    if re.search(r"tensorop|wmma|gmma|tcgen05|umma", name):
        return kind, True
    if "simt" in name:
        return kind or "fp32", False
    if "gemv" in name or "winograd" in name or "gemmsn" in name:
        return ("fp32" if re.search(r"<(?:int, int, )?float\b", name) or "scudnn" in name else None), False
    return kind, None


_INSTRUCTION = re.compile(r"([shdi])(884|1684|1688|16816|8816|16832)(?:[a-z]\w{2,3})?(?:gemm|cudnn|fprop|dgrad|wgrad)")
_XMMA_INSTRUCTION = re.compile(r"_f(16|32)_[a-z_0-9]*_tensor(\d+)x(\d+)x(\d+)")


def instruction(name: str) -> str | None:
    """Accumulator and shape of the tensor instruction: "s16816", "h884"; None when the name does not say."""
    found = _INSTRUCTION.search(name)
    if found:
        return found[1] + found[2]
    found = _XMMA_INSTRUCTION.search(name)
    return f"{'h' if found[1] == '16' else 's'}{found[2]}{found[3]}{found[4]}" if found else None
