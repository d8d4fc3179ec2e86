"""Which algorithm a kernel runs, from its name (cuDNN, cuBLAS, CUTLASS, Triton, ATen, ...; 2017
to today).

Names of AMD's library kernels say which numbers they multiply; they are in lower case here:

- Tensile (rocBLAS, hipBLASLt): ``Cijk_Ailk_Bljk_HHS_BH_..._MT128x128x32_MI32x32x8x1_...`` has the
  types of input, output and sum (H fp16, B bf16, S fp32, D fp64, I8 int8, F8 and B8 fp8), the macro
  tile (MT: outputs of a work-group and the step along the sum) and, where the matrix cores
  multiply, their instruction (MI). Without MI the vector units do.
- MIOpen: ``igemm_fwd_gtcx2_nhwc_bf16_..._bt128x128x32_wt32x32x8_...`` has the type, the tile of a
  work-group (bt) and of a matrix instruction (wt); ``miopenSp3AsmConv_..._fp32_f2x3_...`` is
  Winograd F(2x2,3x3) on the vector units; ``naive_conv_..._float_double_float`` has the types of
  input, sum and output.
- Composable Kernel: types are template arguments (``_Float16``, ``ck::bhalf_t``); xdl and mfma are
  matrix cores.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path

_TENSILE = re.compile(
    r"cijk_[a-z]+_[a-z]+_(?P<types>f8b8|b8f8|i8|f8|b8|[hbsdcz4])(?P<rest>[a-z0-9]*)_"
)
_TENSILE_TYPES = {
    "h": "fp16",
    "b": "bf16",
    "s": "fp32",
    "d": "fp64",
    "c": "fp32",
    "z": "fp64",
    "i8": "int8",
    "4": "int8",
    "f8": "fp8",
    "b8": "fp8",
    "f8b8": "fp8",
    "b8f8": "fp8",
}
_TF32 = re.compile(r"xf32|f32xemul|_s_mx_")
"""XF32 is AMD's name of TF32."""
_AMD_INSTRUCTION = re.compile(r"_mi\d+x\d+")
_IGEMM = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx?\d*_n[a-z]+_(bf16|fp16|fp32|int8)")
_WAVE_TILE = re.compile(r"_wt\d+x\d+x\d+")
_ASSEMBLED = re.compile(r"miopensp3asmconv\w*?_(fp32|fp16|bf16)")
_NAIVE = re.compile(r"naive_conv_\w*?(?:nchw|nhwc|ncdhw|ndhwc)_(float|half|ushort|int8_t|double)_")
_NAIVE_TYPES = {
    "float": "fp32",
    "half": "fp16",
    "ushort": "bf16",
    "int8_t": "int8",
    "double": "fp64",
}
_CK_NAME = re.compile(r"(?:^|\W|_zn\d)\d*ck(?:_tile)?(?:::|\d)|_xdl_")
_CK_TYPES = (
    ("bf16", re.compile(r"\bbhalf_t\b|ck::bhalf|bf16_t\b|__bf16\b|hip_bfloat16\b|std::bfloat16_t")),
    ("fp8", re.compile(r"\bf8_t\b|\bbf8_t\b|fp8_t\b")),
    ("fp16", re.compile(r"_float16\b|\bhalf_t\b")),
    ("int8", re.compile(r"\bint8_t\b|signed char")),
    ("fp64", re.compile(r"\bdouble\b")),
    ("fp32", re.compile(r"\bfloat\b")),
)
_CK_MATRIX = re.compile(r"xdl|mfma|wmma|ck_tile")
Table = tuple[tuple[str, re.Pattern[str]], ...]
_CONVOLVE = re.compile(
    "(?:(?:implicit|explicit|precomputed)_convolve_sgemm|(?:dgrad|wgrad)"
    r"_(?:alg\d_)?(?:nd_float_)?engine)<[^>]*?(?:\(int\)|int=)?(?:128|512|1024), "
    r"?(?:\(int\)|int=)?(\d), ?(?:\(int\)|int=)?(\d),"
)
_LARGE_SUM = re.compile(
    r"sgemm_largek_lds64<\(?\w+\)?\w*, ?\(?\w+\)?\w*, ?(?:\(int\))?(\d), ?(?:\(int\))?(\d),"
)
_WINOGRAD_BLOCK = re.compile(r"winograd_128x128_.*tile(\d)(\d)(\d)[a-z]")

_CHIP = re.compile(
    r"(?:^|_|::)(maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)(?=_)|(sm\d{2,3})(?!\d)|"
    r"cutlass_(\d{2,3})_"
)

_TYPES = {
    "f16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "tf32": "tf32",
    "i8": "int8",
    "int8": "int8",
    "s8": "int8",
    "u8": "int8",
    "f32": "fp32",
    "fp32": "fp32",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "e2m1": "fp4",
    "d": "fp64",
    "z": "fp64",
    "c": "fp32",
    "i": "int8",
    "h": "fp16",
    "s": "fp32",
    "gc": "fp32",
    "bfloat16": "bf16",
    "tfloat32_t": "tf32",
    "bfloat16_t": "bf16",
    "half_t": "fp16",
    "float_e4m3": "fp8",
    "float_e5m2": "fp8",
    "int8_t": "int8",
    "__nv_bfloat16": "bf16",
    "__half": "fp16",
    "c10::half": "fp16",
    "6half_t": "fp16",
    "fp8": "fp8",
    "float": "fp32",
    "double": "fp64",
}
_XMMA = re.compile(
    "xmma_[a-z_0-9]*?_(?P<stored>bf16|tf32|f16|f32|f64|i8|u8|e4m3|e5m2)(?:bf16|tf32|f16|f32|f64|"
    "i8|i32|e4m3|e5m2)_(?:(?P<computed>bf16|tf32|f16|f32|f64|i8|u8|e4m3|e5m2)(?:bf16|tf32|f16|f32|"
    "f64|i8|i32|e4m3|e5m2)_)?"
)
"""``f32f32_tf32f32_f32``: read and written as fp32, multiplied as tf32 and summed in fp32."""
_SHAPED = re.compile(
    "(?:(fp16|bf16|int8|tf32|f16|i8|s8)_)?(g?[cz]|[shdi])(884|1688|16816|161616|8816|8832|16832|"
    "16864|8864)(f16|bf16|tf32|i8)?(?:gemm|cudnn|fprop|dgrad|wgrad)(?:(?:_[a-z]+)?_(fp16|bf16|f16|"
    "tf32|s8|i8|int8)_)?"
)
_WARPGROUP = re.compile(r"[shi]\d+x\d+x\d+gemm_(bf16|f16|tf32|f32|e4m3|e5m2|s8|u8)")
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])")
_NVJET_TYPES = {"h": "fp16", "t": "bf16", "q": "fp8", "d": "fp64", "o": "fp4"}
_PLAIN = re.compile(r"(?:^|_|fermi)(gc|s|d|h|c|z)(?:gemm|cudnn)(?:_|$)")
_TRAITS = re.compile(
    r"tfloat32_t|bfloat16_t|half_t|float_e4m3|float_e5m2|int8_t|__nv_bfloat16|__half\b|c10::half|"
    "(?<![a-z0-9])fp8(?![a-z0-9])"
)
_ENGINE = re.compile(r"(?:dgrad|wgrad)\w*(?:engine|_alg)\w*<(float|double)?")
"""cuDNN's oldest gradients, on the CUDA cores: ``dgrad_engine<float, ..>``,
``wgrad_alg0_engine<..>``."""
_BATCHED = re.compile(r"^bmm_[a-z0-9]+_(?=\w*_fp32_t\d)(\w+?)_fp32")
"""TensorRT-LLM's products: ``bmm_<output>_<a><b>_Fp32_t128x16x256``; mixed types are multiplied as
the wider one."""
_EFFICIENT = re.compile(r"fmha_cutlass[fb]_(f32|f16|bf16)_\w*?_sm(\d+)")

_INSTRUCTION = re.compile(
    r"(g?[cz]|[shdi])(884|1684|1688|16816|8816|16832)(?:[a-z]\w{2,3})?(?:gemm|cudnn|fprop|dgrad|"
    "wgrad)"
)
_XMMA_INSTRUCTION = re.compile(r"_f(16|32)_[a-z_0-9]*_tensor(\d+)x(\d+)x(\d+)")
_N = r"(?:\(int\)|int=)?(\d+)"
_TEMPLATE_INSTRUCTION = re.compile(
    f"mmatensoroppolicy<(?:cutlass::arch::)?mma<(?:cutlass::gemm::)?gemmshape<{_N}, ?{_N}, "
    rf"?{_N}>, ?(?:\(int\)|int=)?32, ?[\w:]+, ?[\w:]+, ?[\w:]+, ?[\w:]+, ?([\w:]+)"
)
_TEMPLATE_LETTERS = {"cutlass::half_t": "h", "half_t": "h", "int": "i", "double": "d"}
"""CUTLASS 2's templates: shape, threads, types and layouts of both factors, type of the sum. 16 x
16 x 4 is Volta's 884 of a warp."""
_WGMMA = re.compile(r"([shi])(64x\d+x\d+)gemm|sm90_(64x\d+x\d+)_([a-z]+\d+)|hgmma(64x\d+x\d+)")
"""Hopper's: CUTLASS 3's names, its templates (``SM90_64x128x16_F32BF16BF16_SS``), and xmma's
(``hgmma64x128x16``)."""

LONGEST_NAME = 4000
"""Characters of a name that patterns search: some of them take quadratic time."""

_DIRECTED = ("conv", "winograd", "fft", "depthwise", "attention", "norm", "pool", "softmax", "rnn")
ARITHMETIC_FAMILIES = ("conv", "depthwise", "attention", "gemm", "rnn")
"""Families that name a layer's algorithm, before norms, reductions and elementwise kernels."""
_TILED = ("conv", "gemm", "attention")


def parse_amd_math_type_and_matrix_use(name: str) -> tuple[str | None, bool | None] | None:
    """(type of the multiplied numbers, on matrix cores or not), None where the name does not say;
    None for other makers."""
    if match := _TENSILE.search(name):
        matrix = _AMD_INSTRUCTION.search(name) is not None
        kind = _TENSILE_TYPES[match["types"]]
        return ("tf32" if kind == "fp32" and matrix and _TF32.search(name) else kind), matrix
    if match := _IGEMM.search(name):
        return match[1], True if _WAVE_TILE.search(name) else None
    if match := _ASSEMBLED.search(name):
        return match[1], False
    if match := _NAIVE.search(name):
        return _NAIVE_TYPES[match[1]], False
    if _CK_NAME.search(name):
        kinds = [
            (match_.start(), kind)
            for kind, pattern in _CK_TYPES
            if (match_ := pattern.search(name))
        ]
        return min(kinds)[1] if kinds else None, True if _CK_MATRIX.search(name) else None
    return None


class PatternTables:
    """Table -> (word, pattern of its names), to be tried in that order; lines with the same word
    are alternatives.

    A table is compiled when it is first asked for: a report of a CPU needs none.
    """

    def __init__(self, *files: str) -> None:
        self._files = files
        self._compiled: dict[str, Table] = {}

    @cached_property
    def _patterns_by_table(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        tables: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for file in self._files:
            lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
            for table, name, pattern in csv.reader(lines[1:]):
                tables[table][name].append(pattern)
        return {**tables}

    def get_compiled_table(self, table: str) -> Table:
        """Empty where there is no such table."""
        if table not in self._compiled:
            patterns_by_name = self._patterns_by_table.get(table, {})
            self._compiled[table] = tuple(
                (name, re.compile("|".join(patterns)))
                for name, patterns in patterns_by_name.items()
            )
        return self._compiled[table]


PATTERNS = PatternTables("names.csv", "names_amd.csv")
"""family, triton, role, library, direction, tile, and "conv method", ... of families with
several methods.

PyTorch's compiler names a kernel by its shape (poi, red, per, tem) and then by every operation
fused into it: the shape decides ("triton"), since a pointwise kernel named after a convolution only
adds the bias.
"""


def parse_tile_sizes(name: str) -> tuple[int, int, int | None] | None:
    """Outputs of a thread block (m, n) and the step along the sum; None when the name does not say.

    ``implicit_convolve_sgemm<float, float, 128, 5, 5, ...>`` gives the logarithms: 2^5 x 2^5, and
    so does ``sgemm_largek_lds64<true, false, 5, 5, ...>``.
    """
    if match := _CONVOLVE.search(name) or _LARGE_SUM.search(name):
        return 2 ** int(match[1]), 2 ** int(match[2]), None
    match = next(
        (
            match
            for _, pattern in PATTERNS.get_compiled_table("tile")
            if (match := pattern.search(name))
        ),
        None,
    )
    if not match:
        return None
    m, n, *k = (int(part) for part in match.groups())
    return m, n, k[0] if k else None


def read_winograd_block(name: str) -> tuple[int, int, int] | None:
    """(images, rows, columns) of tiles in one block of the fused Winograd: ``tile148t`` is 1 x 4
    x 8."""
    match = _WINOGRAD_BLOCK.search(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def parse_target_architecture(name: str) -> str | None:
    """The chip that a kernel was written for: "volta", "sm80"."""
    match = _CHIP.search(name)
    return (match[1] or match[2] or f"sm{match[3]}") if match else None


def parse_math_type_and_tensor_use(name: str, family: str | None) -> tuple[str | None, bool | None]:
    """(type of the multiplied numbers, on tensor cores or not); None where the name does
    not say."""
    multiplies = family in ("conv", "winograd", "gemm", "attention", "depthwise", "fft")
    return (
        (_parse_library_name_math_type(name) or _read_template_math(name, family))
        if multiplies
        else (None, None)
    )


def _parse_library_name_math_type(name: str) -> tuple[str | None, bool | None] | None:
    if amd_math := parse_amd_math_type_and_matrix_use(name):
        return amd_math
    if match := _XMMA.search(name):
        kind = _TYPES[match["computed"] or match["stored"]]
        if kind == "fp32" and re.search(r"_tensor\d+x|_warpgroupsize", name):
            kind = "tf32"  # stored as fp32, rounded on the way in: no tensor core multiplies fp32
        return kind, kind != "fp32" and "_ffma" not in name
    if match := _SHAPED.search(name):
        return _read_instruction_math(name, match), True
    if match := _WARPGROUP.search(name):
        kind = _TYPES[match[1]]
        return ("tf32" if kind == "fp32" else kind), True
    if match := _NVJET.search(name):
        return _NVJET_TYPES.get(match[1]), True
    if (match := _PLAIN.search(name)) and "tensorop" not in name:
        return _TYPES[match[1]], False
    if match := _BATCHED.search(name):
        kinds = (
            ("bfloat16", "bf16"),
            ("fp16", "fp16"),
            ("e4m3", "fp8"),
            ("e5m2", "fp8"),
            ("e2m1", "fp4"),
        )
        return next((kind for type_name, kind in kinds if type_name in match[1]), None), True
    if match := _ENGINE.search(name):
        return _TYPES[match[1]] if match[1] else None, False
    if "convolve_sgemm<" in name:
        return ("fp32" if re.search(r"convolve_sgemm<float\b", name) else None), False
    return None


def _read_instruction_math(name: str, match: re.Match[str]) -> str | None:
    """``s1688gemm`` is fp16 on Turing, tf32 from Ampere on unless the name has another type."""
    type_name = match[1] or match[4] or match[5]
    if match[2][-1] in "cz":  # complex, by products of its real and imaginary parts
        return _TYPES[type_name] if type_name else {"1688": "tf32", "884": "fp64"}.get(match[3])
    if type_name or match[2] != "s":
        return _TYPES[type_name or match[2]]
    chip = parse_target_architecture(name)
    if match[3] != "1688" or chip in ("turing", "sm75"):
        return "fp16"
    return "tf32" if chip else None


def _read_template_math(name: str, family: str | None) -> tuple[str | None, bool | None]:
    kind = next((_TYPES[match[0]] for match in _TRAITS.finditer(name)), None)
    if family == "attention":
        if efficient := _EFFICIENT.search(name):
            return _read_efficient_attention_math(efficient[1], int(efficient[2]))
        if printed := re.search(
            r"(?:fmha_cutlass[fb]|fmhasm\w+?qkv|flash_[fb]wd_sm\d+_)_?(bf16|bfloat16|f16|fp16|e4m3|"
            "f32)",
            name,
        ):
            kind = _TYPES[printed[1]]
        fused = re.search(r"flash|native_sdpa|fmhasm|fmha_cutlass|wgmma|tensorop", name) is not None
        return kind, True if fused and kind != "fp32" else None
    if re.search(r"tensorop|wmma|gmma|tcgen05|umma", name):
        return kind, True
    if "simt" in name:
        return kind or "fp32", False
    # 4-bit and 8-bit weights, multiplied as the other factor's type, which its name does not print
    if "marlin" in name:
        return None, True
    if "csrmm" in name or "csrmv" in name:
        return ("fp32" if re.search(r"<(?:\w+::)?[^()]*\bfloat\b", name) else None), False
    if "gemv" in name or "winograd" in name or "gemmsn" in name:
        return (
            "fp32" if re.search(r"<(?:int, int, )?float\b", name) or "scudnn" in name else None
        ), False
    return kind, None


def _read_efficient_attention_math(stored_type: str, sm_version: int) -> tuple[str | None, bool]:
    """Memory-efficient attention of xFormers and PyTorch: fp32 by three TF32 products from Ampere
    on, on the CUDA cores before.

    Source: ``DefaultGemmType`` in PyTorch's ``mem_eff_attention/gemm_kernel_utils.h``.
    """
    if stored_type == "f32":
        return ("tf32", True) if sm_version >= 80 else ("fp32", False)
    return _TYPES[stored_type], sm_version >= (70 if stored_type == "f16" else 80)


def read_tensor_instruction(name: str) -> str | None:
    """Accumulator and shape of the tensor instruction: "s16816", "h884", "s64x128x16" of a
    warpgroup; None when not said."""
    if match := _INSTRUCTION.search(name):
        return match[1] + match[2]
    if match := _WGMMA.search(name):
        halves = match[1] == "h" or match[4] == "f16"
        return ("h" if halves else "s") + (match[2] or match[3] or match[5])
    if match := _EFFICIENT.search(name):
        kind, tensor_core = _read_efficient_attention_math(match[1], int(match[2]))
        return ("s884" if match[2] == "70" else "s1688") if tensor_core and kind else None
    if match := _TEMPLATE_INSTRUCTION.search(name):
        letter = _TEMPLATE_LETTERS.get(match[4], "s")
        return letter + ("884" if match[1] == "16" == match[2] else match[1] + match[2] + match[3])
    match = _XMMA_INSTRUCTION.search(name)
    if match is None:
        return None
    letter = "i" if re.search(r"_[iu]8[iu]\d+_", name) else "h" if match[1] == "16" else "s"
    return f"{letter}{match[2]}{match[3]}{match[4]}"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a kernel's name says; every field is None where it says nothing."""

    family: str | None
    """A word of the table "family": conv, winograd, fft, depthwise, gemm, attention, layout, ..."""
    method: str | None = None
    """In words: "implicit gemm", "winograd F(2x2,3x3)", "gemm", "split-k reduction",
    "flash attention"."""
    tile: tuple[int, int, int | None] | None = None
    """Outputs of one thread block (m, n) and the step along the sum (k, None where not said)."""
    split_k: bool | None = None
    """True when the name says that the sum is split over blocks; cuBLAS does so without saying
    (None): see the grid."""
    tensor_core: bool | None = None
    instruction: str | None = None
    """Tensor instruction by accumulator and shape: "s884", "h884", "s16816" (m16 n8 k16, fp32
    accumulation)."""
    math: str | None = None
    """Type of the multiplied numbers: fp32, tf32, fp16, bf16, int8, fp64, fp8, fp4."""
    direction: str | None = None
    """forward, grad_input or grad_weight."""
    role: str = "main"
    """main, transform, layout, offsets, epilogue or reduction."""
    library: str | None = None
    architecture: str | None = None
    """The chip it was written for ("volta", "sm80"), often older than the chip it runs on."""
    winograd: tuple[int, int] | None = None
    """(outputs, filter) along one side: (2, 3) for F(2x2,3x3)."""
    winograd_block: tuple[int, int, int] | None = None
    """(images, rows, columns) of Winograd tiles that one thread block works on."""


NOTHING = Algorithm(None)


def recognise_family(name: str) -> str | None:
    """The family of a kernel name; None when no pattern fits."""
    return recognise_kernel(name).family


@lru_cache(maxsize=65536)
def recognise_kernel(name: str) -> Algorithm:
    """What a kernel's name says about its algorithm.

    The function's own name decides the family before its template arguments do, so that a copy
    kernel whose functor mentions "add" stays a copy.
    """
    lowered = name[:LONGEST_NAME].lower()
    base_name = extract_function_name(lowered)
    family_name, library, chip = (
        _read_family(lowered, base_name),
        _find_first_matching_label("library", lowered),
        parse_target_architecture(lowered),
    )
    if family_name is None:
        return Algorithm(None, library=library, architecture=chip)
    role = "main"
    if not lowered.startswith("triton_") and family_name != "collective":
        qualified = re.split(r"[<(]", lowered, maxsplit=1)[0]
        role = _find_first_matching_label("role", base_name, qualified) or (
            "layout" if family_name == "layout" else "main"
        )
    math, tensor_core = (
        parse_math_type_and_tensor_use(lowered, family_name) if role == "main" else (None, None)
    )
    # "segment_k_off" and silence say nothing about the launch
    split_k = True if re.search(r"split_?k(?!v)|stream_?k|segment_?k_on", lowered) else None
    return Algorithm(
        family_name,
        _find_first_matching_label(f"{family_name} method", base_name, lowered) or family_name,
        parse_tile_sizes(lowered) if family_name in _TILED else None,
        split_k,
        tensor_core,
        read_tensor_instruction(lowered) if tensor_core else None,
        math,
        _find_first_matching_label("direction", lowered) if family_name in _DIRECTED else None,
        role,
        library,
        chip,
        _read_winograd_sizes(lowered) if family_name == "winograd" else None,
        read_winograd_block(lowered),
    )


def choose_main_layer_algorithm(kernel_names: Iterable[str]) -> Algorithm:
    """The algorithm of a layer that runs several kernels: its main kernel, or what the transforms
    around it say.

    A product between Winograd or Fourier transforms is part of that algorithm, whatever its name.
    """
    algorithms = [recognise_kernel(name) for name in kernel_names]
    return next(
        iter(
            _select_winograd_and_fft_kernels(algorithms)
            or _select_arithmetic_or_main_kernels(algorithms)
            or algorithms
        ),
        NOTHING,
    )


def list_layer_algorithms(kernel_names: Iterable[str]) -> list[Algorithm]:
    """Return every algorithm of a layer that runs several kernels, of which
    :func:`choose_main_layer_algorithm` chooses one.

    Products between transforms belong to these; convolutions beside them (another gradient) stay.
    """
    algorithms = [recognise_kernel(name) for name in kernel_names]
    transforms, main = (
        _select_winograd_and_fft_kernels(algorithms),
        _select_arithmetic_or_main_kernels(algorithms),
    )
    return (
        [*transforms, *(item for item in main if item.family in ("conv", "depthwise"))]
        if transforms
        else main
    )


def _select_winograd_and_fft_kernels(algorithms: Iterable[Algorithm]) -> list[Algorithm]:
    items = list(algorithms)
    return [
        item
        for family in ("winograd", "fft")
        for item in items
        if item.family == family and item.role != "offsets"
    ]


def _select_arithmetic_or_main_kernels(algorithms: Iterable[Algorithm]) -> list[Algorithm]:
    """Kernels that do the arithmetic; where none does, those that do the layer's other work."""
    main = [item for item in algorithms if item.role == "main" and item.family]
    return [item for item in main if item.family in ARITHMETIC_FAMILIES] or main


def _find_first_matching_label(table: str, *texts: str) -> str | None:
    return next(
        (
            label
            for text in texts
            for label, pattern in PATTERNS.get_compiled_table(table)
            if pattern.search(text)
        ),
        None,
    )


def _read_winograd_sizes(lowered: str) -> tuple[int, int] | None:
    sizes = {
        "9x9_5x5": (9, 5),
        "4x4": (4, 3),
        "winograd_128x128": (2, 3),
        "generatewinogradtiles": (2, 3),
        "_f2x3": (2, 3),
        "_f3x2": (3, 2),
    }
    return next((size for pattern, size in sizes.items() if pattern in lowered), None)


def _read_family(lowered: str, base_name: str) -> str | None:
    if lowered.startswith("triton_"):
        return _find_first_matching_label("triton", lowered) or _find_first_matching_label(
            "family", lowered
        )
    if "elementwise_kernel" in base_name and re.search(
        r"direct_copy_kernel|copy_device_to_device", lowered
    ):
        return "copy"
    # it runs any operation on a list of tensors: its functor says which
    if base_name.startswith("multi_tensor_apply"):
        return _find_first_matching_label("foreach", lowered) or "optimizer"
    return _find_first_matching_label("family", base_name, lowered)


def is_kernel_name_matching_glob(glob: str, name: str, short_name: str | None = None) -> bool:
    """Return whether the name of a kernel or range is one that the glob means: complete, as the
    profiler shortens it, or without template arguments and parameters."""
    return any(
        fnmatchcase(text, glob) for text in {name, short_name or name, extract_function_name(name)}
    )


def extract_function_name(name: str) -> str:
    """Up to the first template argument or parameter; "Kernel<X<...>>" of CUTLASS is named by
    its X."""
    text = re.sub(r"^(void|static|__global__)\s+", "", name)
    text = re.sub(r"\(anonymous namespace\)::|<?unnamed>::", "", text)
    pieces = re.split(r"[<(>]", text)
    base_name = pieces[0].rpartition("::")[2] or text
    # Composable Kernel's convolutions are "kernel_grouped_conv_...<GridwiseGemm...>"
    inner = base_name.startswith(("kernel", "device_kernel", "kentry")) and "conv" not in base_name
    return pieces[1] if inner and len(pieces) > 1 else base_name
