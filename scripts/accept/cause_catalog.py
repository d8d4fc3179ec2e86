"""Every cause in a few words, for the reference: which evidence names it, its factor, and the fix.

The docstrings of the rules state the conditions in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CauseDescription(NamedTuple):
    """One cause, in cells of a table."""

    evidence: str
    factor: str
    """executed / estimated FLOPs; "none" if the cause explains no ratio."""
    fix: str


CATALOG: Mapping[str, Mapping[str, CauseDescription]] = {
    "Work that a layer does differently": {
        "tile padding": CauseDescription(
            "Tile and grid of the kernel, with the layer's shape",
            "multiply-adds of complete tiles / estimate",
            "Use sizes that are multiples of the tile.",
        ),
        "several algorithms": CauseDescription(
            "Kernels that each do the complete layer, while `cudnn.benchmark` is on",
            "sum of all kernels / estimate",
            "Warm up before the profiled steps, or disable `cudnn.benchmark`.",
        ),
        "extra calls": CauseDescription(
            "More launches than one step needs, each for the complete layer",
            "number of launches",
            "Check profiled steps, gradient accumulation and calls of the layer.",
        ),
        "whole step": CauseDescription(
            "One factor in the launches or counts of nearly all layers",
            "N, 1/N, or samples that ran / batch size",
            "Check batch size, steps, gradient accumulation and ranks.",
        ),
        "Winograd": CauseDescription(
            "Kernel name, grid, and FLOPs of the transforms",
            "products and transforms / estimate; products alone 16/36 or 36/144",
            "None. `cudnn.deterministic` leaves fewer algorithms.",
        ),
        "FFT": CauseDescription(
            "Kernel name, grid, and FLOPs of the transforms",
            "products of the transforms, and transforms / estimate",
            "None. `cudnn.deterministic` leaves fewer algorithms.",
        ),
        "split-K": CauseDescription(
            "A kernel that adds slices, or FADD of the GEMM itself",
            "1 + additions / products",
            "None. Larger batches avoid the split.",
        ),
        "persistent RNN": CauseDescription(
            "Kernel name (`RNN_blockPersist`, `RNN_persist`) and a deviating count",
            "none",
            "None. Larger batches fill its groups.",
        ),
        "layout and epilogue": CauseDescription(
            "FLOPs of kernels that change layouts, add a bias or scale",
            "1 + their FLOPs / products",
            "None. The estimate has multiply-adds only.",
        ),
        "recomputation": CauseDescription(
            "A forward kernel that runs again in the backward pass",
            "1 + forward / gradients",
            "None. Activation checkpointing trades FLOPs for memory.",
        ),
        "shared kernel": CauseDescription(
            "A count that equals this layer's and the next layers' estimates",
            "sum of the estimates / own estimate",
            "Read these layers together.",
        ),
        "groups run as dense": CauseDescription(
            "Grid or count of the convolution without groups",
            "dense multiply-adds / estimate",
            "Use a layout or data type with a grouped kernel.",
        ),
        "other size": CauseDescription(
            "A grid that has the tiles of one side of the product",
            "multiply-adds of the grid / estimate",
            "Check the sizes with which the layer ran.",
        ),
        "skipped border": CauseDescription(
            "A depthwise kernel that counts only taps inside the image",
            "taps inside the image / all taps",
            "None. The estimate includes the padding.",
        ),
        "causal mask": CauseDescription(
            "Name and grid of a fused attention kernel; is_causal",
            "multiply-adds of its tiles / estimate",
            "None. The estimate covers the complete square.",
        ),
        "swapped layers": CauseDescription(
            "Two rows whose differences cancel out within 1%",
            "(own estimate + what the other row lacks) / own estimate",
            "Check the ranges and names of both layers.",
        ),
        "gradient missing": CauseDescription(
            "One launch with the multiply-adds of one gradient",
            "that gradient / both gradients",
            "Look among the kernels outside of layers.",
        ),
        "needless gradient": CauseDescription(
            "A kernel for the input gradient that no layer needs",
            "2",
            "Check requires_grad of the network's input.",
        ),
        "zeros inserted": CauseDescription(
            "A strided convolution whose input gradient covers every input",
            "(all inputs + other gradient) / both gradients",
            "None. The estimate omits inserted zeros.",
        ),
    },
    "Tensor cores": {
        "TF32": CauseDescription(
            "Tensor counters or kernel names in fp32 layers; TF32 settings",
            "1, or none without tensor counts",
            "Collect tensor counters. `--precision fp32` disables TF32.",
        ),
        "tensor cores": CauseDescription(
            "Tensor counters or kernel names",
            "1, or none without tensor counts",
            "Collect tensor counters.",
        ),
        "3xTF32": CauseDescription(
            "Names of all GEMM kernels (`3xtf32`, fastf32)",
            "3",
            "None. Three TF32 products replace one in fp32.",
        ),
        "2:4 sparsity": CauseDescription(
            "Names of all GEMM kernels (sparse, spgemm, sptensor)",
            "0.5",
            "None. Two of four weights are zero.",
        ),
        "constant moves": CauseDescription(
            "HFMA2 instructions that only move constants",
            "none; perfctl excludes them",
            "Exclude them from your own sums.",
        ),
    },
    "Missing counts": {
        "FADD alone": CauseDescription(
            "FADD was collected without FFMA and FMUL",
            "none",
            "Collect FADD, FMUL and FFMA, as `perfctl ncu` does.",
        ),
        "counter not collected": CauseDescription(
            "Counters that the FLOPs of the row need are missing",
            "none; the count is a lower bound",
            "Collect the metrics for every launch.",
        ),
        "nothing counted": CauseDescription(
            "Kernels with complete counters and no FLOP",
            "none",
            "Check kernel names, and kernels outside of layers.",
        ),
        "direction missing": CauseDescription(
            "No kernel for this pass, but kernels for other rows",
            "none",
            "Annotate autograd's thread, or check what ran during the recording.",
        ),
    },
    "The complete sweep": {
        "wrong window": CauseDescription(
            "Counts that stay the same while the batch size grows",
            "batch size that ran / batch size of the row",
            "Start the capture range at the training step.",
        ),
        "time does not follow": CauseDescription(
            "Times that stay the same while the FLOPs grow",
            "none",
            "Time kernels with a profiler.",
        ),
        "algorithm switch": CauseDescription(
            "Kernel names that change at one batch size",
            "none",
            "Compare time per sample on both sides.",
        ),
        "hand estimate": CauseDescription(
            "A manual estimate that a known mistake reproduces",
            "none",
            "Run `perfctl estimate --check`.",
        ),
        "wrong formula": CauseDescription(
            "Your formula, and a common mistake that explains all its ratios",
            "the ratio",
            "Correct the formula.",
        ),
        "other GPU": CauseDescription(
            "GPU names, compute capability or memory that differ between runs",
            "none",
            "Time all parts on one GPU.",
        ),
        "more work in less time": CauseDescription(
            "CPU timer: 1.5 times the multiply-adds in less time",
            "none",
            "Synchronize before each timestamp, or time with a profiler.",
        ),
    },
    "Time of a traced step": {
        "launch bound": CauseDescription(
            "Idle gaps between launches take at least 20% of the steps",
            "none",
            "Use CUDA graphs, `mode='reduce-overhead'`, or larger batches.",
        ),
        "host sync": CauseDescription(
            "The GPU idles after waits for at least 2% of the time",
            "none",
            "Keep values on the GPU. Use pinned memory.",
        ),
        "exposed communication of one rank": CauseDescription(
            "Collectives run without other kernels for at least 5%",
            "none",
            "Overlap them with the backward pass, or send less.",
        ),
        "dtype casts": CauseDescription(
            "Casts take at least 5% of the kernel time",
            "none",
            "Use one data type, or autocast around the complete step.",
        ),
        "memory-bound chain": CauseDescription(
            "Unfused elementwise kernels take at least 5% of the kernel time",
            "none",
            "Use `torch.compile` or fused operators.",
        ),
        "unused tensor cores": CauseDescription(
            "Convolutions and GEMMs on CUDA cores take 10% or more",
            "none",
            "Use `torch.set_float32_matmul_precision('high')`, or autocast.",
        ),
        "recomputed forward": CauseDescription(
            "Repeated operators have at least 5% of the FLOPs",
            "none",
            "None, if activation checkpointing is on.",
        ),
    },
}
"""Heading -> cause -> its description. ``Cause.rule`` has the name of the cause."""
