"""Matrix products, convolutions and fused attention on tensor cores: FLOPs in whole tiles.

A tile is computed whole, and so is each step along the sum. The grid says how tiles lie and how
often a sum is split. Persistent kernels (cuBLAS and CUTLASS from Hopper on) launch a thread block
for each tile where all of them run at once, and fewer where not: there tiles follow from the shape
alone. Where orientation, cluster or split stay open and matter, there is no rule for the launch.
Sources: CUTLASS (``GemmIdentityThreadblockSwizzle``, ``implicit_gemm_k_iterations``, the tile
scheduler of ``sm90``), and counters of an H100 (``tests/data/h100``), which each rule for products,
convolutions and cuDNN's attention gives exactly.

Attention has whole tiles of queries by keys, of which a causal mask skips those above its diagonal.
Backward computes the scores again: five products in place of forward's two. Sources:
flash-attention (``flash_fwd_kernel.h``, ``flash_bwd_kernel.h``,
``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp``), PyTorch (``mem_eff_attention/kernel_forward.h``,
``kernel_backward.h``). cuDNN's kernels print their tile, not how they treat a mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.records import (
    AttentionShape,
    DerivedInstructions,
    Launch,
    LaunchWork,
)
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, Grid, round_up
from perfctl.orchestrator.counts.kernels.names import Algorithm

_NUMBER = r"(?:\(int\))?(\d+)"
_FLASH_2 = re.compile(rf"flash_(fwd|bwd)_kernel_traits<{_NUMBER}, ?{_NUMBER}, ?{_NUMBER}")
_C = rf"cute::c<{_NUMBER}>"
_FLASH_3 = re.compile(
    rf"collectivemainloop(fwd|bwd)\w*<(?:\(int\))?\d+, ?(?:(?:\(int\))?\d+, ?)*cute::tuple<{_C}, "
    f"?{_C}, ?{_C} ?>, ?"
    rf"cute::tuple<{_C}, ?{_C}, ?{_C} ?>, ?(?:{_NUMBER}, ?)?[^<>]*?cutlass::arch::sm\d+, "
    r"?(?:\(bool\))?(true|false|0|1)"
)
_FLAGS = re.compile(
    r"> ?, ?((?:\(bool\))?(?:true|false|0|1)(?:, ?(?:\(bool\))?(?:true|false|0|1))+)"
)
_PACKED = re.compile(r"compute_attn_ws<\w+traits<[^<>]*_t, ?\d+>")
"""Early kernels for Hopper whose last number is the values' width or the heads packed into
a tile."""
_EFFICIENT = re.compile(
    r"fmha_cutlass([fb])_(f32|f16|bf16)_(?:not)?aligned_(\d+)x(\d+)(?:_(rf|gmem|k\d+))?\w*?_sm(\d+)"
)
_CUDNN = re.compile(r"native_sdpa_sm\d+_flash_([fb])prop_\w+?_(\d+)x(\d+)x(\d+)_\d+x\d+x\d+")
TENSOR_STEP, SIMT_STEP = 32, 8
"""Along each sum, of memory-efficient attention (``DefaultGemmType::ThreadK``)."""

VOLTA_STEP = 32
"""Along the sum, of Volta's s884 and h884 kernels, whose names have no step."""
LONGEST_STEP = 128
"""Of any kernel: a sum that fills it fills all steps, so that a name without a step does
not matter."""
LONGEST_STEP_TURING = 64
"""Of CUTLASS's kernels for Turing, whose thread blocks have 64 KiB of shared memory."""
VECTOR_BYTES = 16
"""Of one load: a convolution's channels are filled up to whole loads."""
_BYTES = {"tf32": 4, "fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
_ALIGNED = re.compile(r"align(?:edarray<[\w:]+, ?(?:\(int\))?)?(\d+)")
"""Elements of one load: ``align8``, or ``AlignedArray<half_t, 8, 16>`` of a template."""
_ALIKE = 0.02
_PERSISTENT = re.compile(r"nvjet|sm(?:90|1\d\d)_xmma|cutlass3x|gemmuniversal<|stream_?k|segment_k")
_CLUSTER = re.compile(
    r"cutlass3x\w*?_\d+x\d+x\d+_(\d+)x(\d+)x\d+_|cgasize(\d+)x(\d+)x|"
    r"nvjet\w*?_\d+x\d+_\d+x\d+_(\d+)x(\d+)_"
)
_NOT_DENSE = re.compile(
    "grouped_?gemm|groupproblemshape|grouped_|sparse(?:gemm|tensorop)|sptensorop|spgemm|"
    r"planar_?complex|(?<![a-z])(?:g?c|g?z)\d+gemm"
)
"""Several products of unknown shapes, 2:4 sparsity, complex numbers."""
_THRICE = re.compile(r"3x_?tf32|tf32x3|fast_?f32")
_SPLIT = re.compile(r"split_?k|segment_k_on|stream_?k")
_SEGMENTS = re.compile(r"segment_k_on|stream_?k")
"""Names of kernels whose thread blocks share the steps of a sum without filling any up."""
_SWIZZLES = {1: 1, 2: 2, 4: 3, 8: 6}
"""Columns of tiles that lie side by side -> columns from which on they do
(``GemmIdentityThreadblockSwizzle::get_log_tile``)."""

Cover = tuple[int, int, int, int]
"""Tile sides along rows and columns, and how many tiles are computed along each."""


def derive_tensor_core_gemm(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Products on tensor cores: tiles of the shape x m x n x the sum in whole steps, 2 FLOPs each
    (3 products for 3xTF32)."""
    shape = work.shape
    if not isinstance(shape, GemmShape) or algorithm.family != "gemm":
        return None
    return _derive_padded_tile_flops(
        launch,
        algorithm,
        shape,
        f"tensor product, {_describe_tensor_instruction(algorithm)}",
        shape.k,
    )


def is_dense_tensor_kernel(name: str, algorithm: Algorithm) -> bool:
    """Whether the rules below may be asked about a kernel of this name, in lower case."""
    return (
        algorithm.role == "main"
        and bool(algorithm.tensor_core)
        and algorithm.tile is not None
        and not _NOT_DENSE.search(name)
    )


def _describe_tensor_instruction(algorithm: Algorithm) -> str:
    return (
        algorithm.instruction
        or algorithm.architecture
        or algorithm.library
        or "unknown instruction"
    )


def _derive_padded_tile_flops(
    launch: Launch,
    algorithm: Algorithm,
    shape: GemmShape,
    family: str,
    unpadded_depth: int,
    padded_depth: int | None = None,
    row_and_column_labels: tuple[str, str] = ("", ""),
) -> DerivedInstructions | None:
    """``padded_depth``: the sum with its padding where the caller knows it, else whole steps of
    each part. ``row_and_column_labels``: what lies along rows and columns, in words."""
    by_macs = {}
    for cover, split in _list_tile_covers_and_splits(launch, algorithm, shape):
        depths = _list_padded_k_lengths(launch.name.lower(), algorithm, shape.k, split)
        for padded in [padded_depth] if padded_depth is not None else depths:
            by_macs[shape.batch * cover[0] * cover[1] * cover[2] * cover[3] * padded] = (
                cover,
                split,
                padded,
            )
    if not by_macs or max(by_macs) > min(by_macs) * (1 + _ALIKE):
        return None
    macs, (cover, split, padded) = next(iter(by_macs.items()))
    thrice = 3 if _THRICE.search(launch.name.lower()) else 1
    flops = 2 * macs * thrice
    times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
    parts = f" in {split} parts" if split > 1 else ""
    repeats = " x 3 TF32 products" if thrice > 1 else ""
    return DerivedInstructions(
        family,
        f"{times}{cover[2]:,} x {cover[3]:,} tiles of {cover[0]} x {cover[1]} for "
        f"{f'{shape.m:,} {row_and_column_labels[0]}'.strip()} x "
        f"{f'{shape.n:,} {row_and_column_labels[1]}'.strip()} x (sum of "
        f"{unpadded_depth:,}{parts}, padded to {padded:,}) x 2{repeats} = {flops:,} FLOP",
        tensor=flops,
        math=algorithm.math,
    )


def _list_padded_k_lengths(name: str, algorithm: Algorithm, k: int, split: int) -> list[int]:
    """The sum as it is computed, likeliest first.

    Parts of a convolution's sum, and of cuBLAS's since Hopper, all take as many steps, the last one
    too. In other products the parts are cut at whole steps, and the last takes what is left; where
    they are cut evenly, and that differs, both are returned.
    """
    step = (algorithm.tile or (0, 0, None))[2]
    if step is None and algorithm.instruction in ("s884", "h884"):
        step = VOLTA_STEP
    if step is None:
        longest = LONGEST_STEP_TURING if "cutlass_75_" in name else LONGEST_STEP
        return [k] if k % (longest * split) == 0 else []
    if split > 1 and not _SEGMENTS.search(name) and (algorithm.family == "conv" or "nvjet" in name):
        return [split * round_up(ceil(k / split), step)]
    part = ceil(k / split)
    evenly = round_up(part, step) * (split - 1) + round_up(max(k - part * (split - 1), 0), step)
    return list(dict.fromkeys((round_up(k, step), evenly)))


class _KernelNameFacts(NamedTuple):
    """What a kernel's name says about its grid."""

    cluster: tuple[int, int] | None
    is_persistent: bool
    is_split: bool
    is_of_cublas: bool
    """nvjet: of cuBLAS since Hopper, which may leave the clusters at the edge unfilled."""


@lru_cache(maxsize=4096)
def _parse_kernel_scheduling_facts(name: str) -> _KernelNameFacts:
    lowered = name.lower()
    match = _CLUSTER.search(lowered)
    sides = [int(side) for side in match.groups() if side] if match else []
    return _KernelNameFacts(
        (sides[0], sides[1]) if sides else None,
        _PERSISTENT.search(lowered) is not None,
        _SPLIT.search(lowered) is not None,
        "nvjet" in lowered,
    )


def _list_tile_covers_and_splits(
    launch: Launch, algorithm: Algorithm, shape: GemmShape
) -> Iterator[tuple[Cover, int]]:
    """(tiles, parts of the sum) that name, grid and cluster allow. A cluster is computed whole.
    The launch states its size; only a name states how it lies: cuBLAS's 1x2 is launched as 2x1."""
    facts = _parse_kernel_scheduling_facts(launch.name)
    is_convolution = algorithm.family == "conv" and facts.is_persistent
    covers = _list_tile_orientations(
        launch.name, launch.cluster, algorithm.tile, shape, is_convolution
    )
    if not facts.is_persistent or launch.grid is None:
        for cover in covers:
            if launch.grid is None:
                yield cover, 1
            elif (
                split := count_split_k_parts(launch.grid, *cover[2:], shape.batch, facts.is_split)
            ) is not None:
                yield cover, split
        return
    blocks, has_segments = prod(launch.grid), bool(_SEGMENTS.search(launch.name.lower()))
    tiles = {cover: cover[2] * cover[3] * shape.batch for cover in covers}
    splits = {
        cover: blocks // number
        for cover, number in tiles.items()
        if blocks % number == 0 and (blocks == number or (facts.is_split and not has_segments))
    }
    if splits:
        yield from splits.items()
    else:  # each block computes several tiles; of cuBLAS's since Hopper, none is without one
        yield from (
            (cover, 1) for cover in covers if tiles[cover] > blocks or not facts.is_of_cublas
        )


@lru_cache(maxsize=4096)
def _list_tile_orientations(
    name: str,
    launched_cluster: tuple[int, int] | None,
    tile: tuple[int, int, int | None] | None,
    shape: GemmShape,
    is_convolution: bool,
) -> Sequence[Cover]:
    """Tiles of either orientation, filled up to clusters. cuBLAS works column by column, so the
    tile's first side lies along the outputs in most kernels; in convolutions along the rows. In
    those and in nvjet, a cluster lies only where there are tiles for all of its blocks.
    ``launched_cluster``: the cluster of the launch."""
    facts = _parse_kernel_scheduling_facts(name)
    m, n = (tile or (0, 0, None))[:2]
    cluster = facts.cluster or launched_cluster or (1, 1)
    lies = [((n, m), cluster[::-1]), ((m, n), cluster)]
    if facts.cluster is None and launched_cluster is not None:
        lies += [((n, m), cluster), ((m, n), cluster[::-1])]
    covers: dict[Cover, None] = {}
    for sides, along in lies:
        full_tiles = ceil(shape.m / sides[0]), ceil(shape.n / sides[1])
        rounded = round_up(full_tiles[0], along[0]), round_up(full_tiles[1], along[1])
        has_tiles = along[0] <= full_tiles[0] and along[1] <= full_tiles[1]
        if is_convolution and not (has_tiles and sides == (m, n)):
            continue
        if has_tiles or not facts.is_of_cublas:
            covers[*sides, *rounded] = None
        if facts.is_of_cublas:
            covers[*sides, *full_tiles] = None
    return tuple(covers)


@lru_cache(maxsize=16384)
def count_split_k_parts(
    grid: Grid,
    row_tiles: int,
    column_tiles: int,
    batch: int = 1,
    allows_split_along_x: bool = False,
) -> int | None:
    """How often the sum is split by this grid of rows x columns tiles; None where the grid is not
    of these tiles.

    Tiles lie in x and y in either order, or swizzled (columns of S tiles side by side), or all in
    x; z holds products and parts.
    """
    x, y, z = grid
    is_laid = (x * y == row_tiles * column_tiles and 1 in (x, y)) or any(
        b >= fewest and x == a * s and y == ceil(b / s)
        for a, b in ((row_tiles, column_tiles), (column_tiles, row_tiles))
        for s, fewest in _SWIZZLES.items()
    )
    if is_laid and z % batch == 0:
        return z // batch
    tiles = row_tiles * column_tiles * batch
    if x * y * z == tiles:
        return 1
    return x // tiles if allows_split_along_x and y == z == 1 and x % tiles == 0 else None


def derive_tensor_convolution(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Forward, and both gradients, as implicit GEMM. The channels of each filter position fill
    whole steps: CUTLASS pads them so, and where they are whole already all kernels agree. The
    gradient of the input sums over all positions of the filter for every input, those outside of
    the outputs included."""
    shape = work.shape
    step = (algorithm.tile or (0, 0, None))[2]
    gradient = algorithm.direction in ("grad_input", "grad_weight")
    forward = work.forward if gradient else shape
    if work.direction != (algorithm.direction if gradient else "forward") or not isinstance(
        forward, ConvShape
    ):
        return None
    if algorithm.family != "conv" or forward.groups != 1 or not step:
        return None
    if algorithm.direction == "grad_weight":
        gemm = _build_padded_weight_gradient_gemm(launch.name.lower(), algorithm, forward)
        family = "tensor convolution, gradient of the weight"
        if gemm is None:
            return None
        filled = f" filled up to {gemm.n:,}" if gemm.n != forward.macs_per_output else ""
        sides = "channels", f"weights ({forward.macs_per_output:,} of a channel{filled})"
        return _derive_padded_tile_flops(
            launch, algorithm, gemm, family, gemm.k, row_and_column_labels=sides
        )
    if not isinstance(shape, ConvShape) or (gradient and work.stride != 1):
        return None  # with a stride, positions of the filter are skipped
    positions, channels = shape.kernel_h * shape.kernel_w, shape.in_channels
    if channels % step and "cutlass" not in launch.name.lower():
        return None
    gemm = GemmShape(shape.output_positions, shape.out_channels, positions * channels)
    family = "tensor convolution, gradient of the input" if gradient else "tensor convolution"
    sides = "inputs" if gradient else "outputs", "channels"
    return _derive_padded_tile_flops(
        launch, algorithm, gemm, family, gemm.k, positions * round_up(channels, step), sides
    )


def _build_padded_weight_gradient_gemm(
    name: str, algorithm: Algorithm, forward: ConvShape
) -> GemmShape | None:
    """Return the product whose results are the weights: channels out by the weights of a channel,
    summed over all outputs.

    CUTLASS fills up the channels of each filter position to whole loads; cuDNN's own kernels for
    Hopper give each position tiles of its own. Those before are known where nothing is filled up.
    """
    channels, positions = forward.in_channels, forward.kernel_h * forward.kernel_w
    load = VECTOR_BYTES // _BYTES.get(algorithm.math or "", VECTOR_BYTES)
    if match := _ALIGNED.search(name):
        load = int(match[1])
    if "sm90_xmma" in name:
        channels = round_up(channels, (algorithm.tile or (1, 1, None))[1])
    elif "cutlass" in name:
        channels = round_up(channels, load)
    elif channels % load:
        return None
    return replace(forward.weight_gradient_gemm, n=positions * channels)


class _AttentionTile(NamedTuple):
    """Queries and keys of a tile, and the widths that are computed."""

    family: str
    m: int
    n: int
    width: int
    value_width: int
    causal: bool


def derive_attention(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Flash attention 1 to 3, memory-efficient attention, and cuDNN's without a mask."""
    shape, name = work.shape, launch.name.lower()
    if not isinstance(shape, AttentionShape) or algorithm.role != "main":
        return None
    if match := _EFFICIENT.search(name):
        return _derive_efficient_attention(match, algorithm, shape)
    if not algorithm.tensor_core:
        return None
    tile = _parse_attention_tile(name, shape)
    if tile is None or not _has_plausible_attention_grid(launch, shape, tile):
        return None
    return _derive_attention_tile_flops(tile, algorithm, shape)


def _derive_attention_tile_flops(
    tile: _AttentionTile, algorithm: Algorithm, shape: AttentionShape
) -> DerivedInstructions:
    tiles = count_attention_tiles_per_head(shape, tile.m, tile.n, tile.causal)
    both = tile.width, tile.value_width
    depth = 3 * both[0] + 2 * both[1] if shape.backward else sum(both)
    flops = 2 * shape.batch * shape.heads * tiles * tile.m * tile.n * depth
    mask = " that the mask leaves" if tile.causal else ""
    return DerivedInstructions(
        f"{tile.family}, {'backward' if shape.backward else 'forward'}",
        f"{shape.batch * shape.heads:,} heads x {tiles:,} tiles{mask} x {tile.m} x {tile.n} x "
        f"{depth} x 2 = {flops:,} FLOP",
        tensor=flops,
        math=algorithm.math,
    )


def count_attention_tiles_per_head(
    shape: AttentionShape, query_tile: int, key_tile: int, causal: bool
) -> int:
    """Tiles of m queries by n keys that one head computes; the mask's diagonal ends at the
    last key."""
    rows, columns = ceil(shape.queries / query_tile), ceil(shape.keys / key_tile)
    if not causal:
        return rows * columns
    return sum(
        ceil(max(last, 0) / key_tile) for last in _list_keys_per_query_tile(shape, query_tile)
    )


def _list_keys_per_query_tile(
    shape: AttentionShape, query_tile: int, mask_starts_top_left: bool = False
) -> list[int]:
    """Keys that each row of tiles reaches under a causal mask."""
    shift = 0 if mask_starts_top_left else shape.keys - shape.queries
    rows = ceil(shape.queries / query_tile)
    return [
        min(min((row + 1) * query_tile, shape.queries) + shift, shape.keys) for row in range(rows)
    ]


def _parse_attention_tile(name: str, shape: AttentionShape) -> _AttentionTile | None:
    """Return the tile that a kernel's name states; None for another kernel or shape.

    Flash attention 2, also with split keys: ``flash_fwd_kernel<Flash_fwd_kernel_traits<width, m, n,
    ..>, dropout, causal, ..>``. Flash attention 3: ``CollectiveMainloopFwdSm90<stages, cluster,
    tuple<m, n, width>, value width, type, float, Sm90, causal, ..>``. cuDNN, without a mask:
    ``native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1`` has queries, keys and
    width; backward only where it does not matter which side has the queries.
    """
    if match := _FLASH_2.search(name):
        family = "flash attention"
        width, m, n = (int(side) for side in match.groups()[1:])
        value_width = width
        flags = _FLAGS.search(name, match.end())
        values = re.findall("true|false|0|1", flags[1]) if flags else []
        index = 0 if "splitkv" in name or "compute_attn" in name else 1
        causal = values[index] in ("true", "1") if len(values) > index else shape.causal
        if _PACKED.search(name):
            return None
    elif match := _FLASH_3.search(name):
        family = "flash attention 3"
        m, n, width = int(match[5]), int(match[6]), int(match[7])
        value_width = int(match[8]) if match[8] else width
        causal = match[9] in ("true", "1")
    elif (match := _CUDNN.search(name)) and not shape.causal:
        family, causal = "cuDNN attention", False
        m, n, width = (int(side) for side in match.groups()[1:])
        value_width = width
        areas = {count_attention_tiles_per_head(shape, *sides, False) for sides in ((m, n), (n, m))}
        if shape.backward and len(areas) > 1:
            return None
    else:
        return None
    is_backward = match[1].startswith("b")
    if is_backward != shape.backward or width < shape.width or value_width < shape.value_width:
        return None
    return _AttentionTile(family, m, n, width, value_width, causal)


def _has_plausible_attention_grid(
    launch: Launch, shape: AttentionShape, tile: _AttentionTile
) -> bool:
    """Flash attention 2: rows (keys backward) x batch x heads. Others are persistent, or their grid
    is not known."""
    if launch.grid is None or tile.family != "flash attention" or "compute_attn" in launch.name:
        return True
    heads = shape.batch * shape.heads
    if shape.backward:  # fewer blocks in x where the order of sums is fixed
        return launch.grid[1] * launch.grid[2] == heads
    blocks = ceil(shape.queries / tile.m) * heads
    return prod(launch.grid) == blocks or (
        "splitkv" in launch.name and prod(launch.grid) % blocks == 0
    )


def _derive_efficient_attention(
    match: re.Match[str], algorithm: Algorithm, shape: AttentionShape
) -> DerivedInstructions | None:
    """``fmha_cutlassF_f16_aligned_64x64_rf_sm80``: both products of a tile of queries by keys, each
    sum in whole steps.

    The mask begins at the first key. Values lie in one tile as wide as its keys (rf), or in as many
    as they need (gmem). fp32 takes three TF32 products from Ampere on, and the CUDA cores before.
    """
    way, stored, m, n, kind, chip = (
        *match.groups()[:2],
        int(match[3]),
        int(match[4]),
        match[5],
        int(match[6]),
    )
    if (way == "b") != shape.backward or not kind:
        return None
    simt = not algorithm.tensor_core
    if simt and stored != "f32":
        return None
    step = SIMT_STEP if simt else TENSOR_STEP
    macs = (
        _count_backward_macs_per_head(shape, m, n, step, int(kind[1:]))
        if way == "b"
        else _count_forward_macs_per_head(shape, m, n, step, kind)
    )
    if macs is None:
        return None
    each = 3 if stored == "f32" and not simt else 1
    heads = shape.batch * shape.heads
    unit, times = ("FFMA", 1) if simt else ("FLOP", 2 * each)
    flops = heads * macs * times
    repeats = "" if simt else f" x 2{' x 3 TF32 products' if each > 1 else ''}"
    rule = (
        f"{heads:,} heads x {macs:,} multiply-adds in tiles of {m} queries x {n} keys{repeats} = "
        f"{flops:,} {unit}"
    )
    derived = DerivedInstructions(
        f"memory-efficient attention, {'backward' if way == 'b' else 'forward'}, sm{chip}", rule
    )
    return (
        replace(derived, ffma=flops)
        if simt
        else replace(derived, tensor=flops, math=algorithm.math)
    )


def _count_forward_macs_per_head(
    shape: AttentionShape, query_tile: int, key_tile: int, step: int, kind: str
) -> int | None:
    """Multiply-adds of a head: scores, and probabilities by values."""
    if kind == "rf" and shape.value_width > key_tile:
        return None
    values = key_tile if kind == "rf" else round_up(shape.value_width, key_tile)
    rows = (
        _list_keys_per_query_tile(shape, query_tile, mask_starts_top_left=True)
        if shape.causal
        else [shape.keys] * ceil(shape.queries / query_tile)
    )
    return sum(
        query_tile
        * (
            round_up(keys, key_tile) * round_up(shape.width, step)
            + values * _round_last_tile_up(keys, key_tile, step)
        )
        for keys in rows
    )


def _round_last_tile_up(length: int, tile: int, step: int) -> int:
    """A sum in tiles, the last of which takes only the steps that it needs."""
    return length // tile * tile + round_up(length % tile, step)


def _count_backward_macs_per_head(
    shape: AttentionShape, query_tile: int, key_tile: int, step: int, max_width: int
) -> int | None:
    """Multiply-adds of a head: scores and their gradients in tiles of i queries by j keys, then
    gradients of V, Q and K."""
    if max(shape.width, shape.value_width) > max_width:
        return None
    total = 0
    for key in range(0, shape.keys, key_tile):
        keys = min(key_tile, shape.keys - key)
        for query in range(
            key // query_tile * query_tile if shape.causal else 0, shape.queries, query_tile
        ):
            queries = min(query_tile, shape.queries - query)
            total += (
                query_tile
                * key_tile
                * (round_up(shape.width, step) + round_up(shape.value_width, step))
            )
            total += (
                key_tile
                * round_up(queries, step)
                * (round_up(shape.value_width, query_tile) + round_up(shape.width, query_tile))
            )
            total += query_tile * round_up(keys, step) * round_up(shape.width, key_tile)
    return total
