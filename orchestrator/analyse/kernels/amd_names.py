"""What the names of AMD's library kernels say about the numbers they multiply. All names are in lower case.

- Tensile (rocBLAS, hipBLASLt): ``Cijk_Ailk_Bljk_HHS_BH_..._MT128x128x32_MI32x32x8x1_...`` has the types of input, output and
  sum (H fp16, B bf16, S fp32, D fp64, I8 int8, F8 and B8 fp8), the macro tile (MT: outputs of a work-group and the step
  along the sum) and, where the matrix cores multiply, their instruction (MI). Without MI the vector units do.
- MIOpen: ``igemm_fwd_gtcx2_nhwc_bf16_..._bt128x128x32_wt32x32x8_...`` has the type, the tile of a work-group (bt) and of a
  matrix instruction (wt); ``miopenSp3AsmConv_..._fp32_f2x3_...`` is Winograd F(2x2,3x3) on the vector units;
  ``naive_conv_..._float_double_float`` has the types of input, sum and output.
- Composable Kernel: types are template arguments (``_Float16``, ``ck::bhalf_t``); xdl and mfma are matrix cores.
"""

from __future__ import annotations

import re

_TENSILE = re.compile(r"cijk_[a-z]+_[a-z]+_(?P<types>f8b8|b8f8|i8|f8|b8|[hbsdcz4])(?P<rest>[a-z0-9]*)_")
_TENSILE_TYPES = {
    "h": "fp16", "b": "bf16", "s": "fp32", "d": "fp64", "c": "fp32", "z": "fp64", "i8": "int8", "4": "int8", "f8": "fp8",
    "b8": "fp8", "f8b8": "fp8", "b8f8": "fp8",
}  # fmt: skip
_TF32 = re.compile(r"xf32|f32xemul|_s_mx_")
"""XF32 is AMD's name of TF32."""
_INSTRUCTION = re.compile(r"_mi\d+x\d+")
_IGEMM = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx?\d*_n[a-z]+_(bf16|fp16|fp32|int8)")
_WAVE_TILE = re.compile(r"_wt\d+x\d+x\d+")
_ASSEMBLED = re.compile(r"miopensp3asmconv\w*?_(fp32|fp16|bf16)")
_NAIVE = re.compile(r"naive_conv_\w*?(?:nchw|nhwc|ncdhw|ndhwc)_(float|half|ushort|int8_t|double)_")
_NAIVE_TYPES = {"float": "fp32", "half": "fp16", "ushort": "bf16", "int8_t": "int8", "double": "fp64"}
_CK_NAME = re.compile(r"(?:^|\W|_zn\d)\d*ck(?:_tile)?(?:::|\d)|_xdl_")
_CK_TYPES = (
    ("bf16", re.compile(r"\bbhalf_t\b|ck::bhalf|bf16_t\b|__bf16\b|hip_bfloat16\b|std::bfloat16_t")),
    ("fp8", re.compile(r"\bf8_t\b|\bbf8_t\b|fp8_t\b")), ("fp16", re.compile(r"_float16\b|\bhalf_t\b")),
    ("int8", re.compile(r"\bint8_t\b|signed char")), ("fp64", re.compile(r"\bdouble\b")), ("fp32", re.compile(r"\bfloat\b")),
)  # fmt: skip
_CK_MATRIX = re.compile(r"xdl|mfma|wmma|ck_tile")


def math_of(name: str) -> tuple[str | None, bool | None] | None:
    """(type of the multiplied numbers, on matrix cores or not), None where the name does not say; None for other makers."""
    if found := _TENSILE.search(name):
        matrix = _INSTRUCTION.search(name) is not None
        kind = _TENSILE_TYPES[found["types"]]
        return ("tf32" if kind == "fp32" and matrix and _TF32.search(name) else kind), matrix
    if found := _IGEMM.search(name):
        return found[1], True if _WAVE_TILE.search(name) else None
    if found := _ASSEMBLED.search(name):
        return found[1], False
    if found := _NAIVE.search(name):
        return _NAIVE_TYPES[found[1]], False
    if _CK_NAME.search(name):
        kinds = [(at.start(), kind) for kind, pattern in _CK_TYPES if (at := pattern.search(name))]
        return min(kinds)[1] if kinds else None, True if _CK_MATRIX.search(name) else None
    return None
