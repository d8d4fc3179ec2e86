"""FLOPs and DRAM bytes of one launch on an AMD GPU, from its hardware counters. 1 multiply-add =
2 FLOPs.

FLOPs follow the definitions of AMD's rocprof-compute (formerly Omniperf): "FLOP counting
conventions" in its documentation (conceptual/pipeline-metrics) and the formula of "VALU FLOPs" in
its analysis configuration (1100_compute-units):

- ``SQ_INSTS_VALU_{ADD,MUL,TRANS,FMA}_F{16,32,64}`` count instructions of a wave. An addition, a
  multiplication and a transcendental function is 1 operation of a lane, an FMA 2; a wave of CDNA
  and GCN has 64 lanes. The execution mask is not looked at, so this is an upper bound where lanes
  are masked; a packed instruction (V_PK_FMA_F32, V_PK_FMA_F16) counts as one that is not, so it is
  a lower bound where instructions are packed.
- ``SQ_INSTS_VALU_MFMA_MOPS_<type>`` count 512 operations of the matrix cores each, by the type of
  the inputs; matrix instructions ignore the mask. XF32 is AMD's name of TF32. I8 (operations on
  integers) are no FLOPs.

The counters exist on CDNA 2 and later (gfx90a, gfx942, gfx950). MI100's (gfx908) counters do not
tell types apart. RDNA has waves of 32 or 64 lanes, which no counter tells: no FLOPs are worked
out there.

Bytes follow rocprofiler's FETCH_SIZE and WRITE_SIZE: requests of L2 to memory (``TCC_EA``, from
gfx940 on ``TCC_EA0``), reads of 32 and 64 bytes, from gfx940 on also of 128; writes of 32 and 64.
``TCC_BUBBLE`` counts the reads of 128 bytes, on gfx950 ``TCC_EA0_RDREQ_128B`` does (rocm-systems,
pull request 2501).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.records.run import Run

Values = Mapping[str, float | None]

TOOLS = ("rocprofv3", "rocprof", "rocprof-compute")
"""Profilers whose runs have these counters; perfctl 1.0.0 was the last release to read the
latter two."""
LANES = 64
MOPS = 512
"""Operations that one count of a matrix counter stands for."""
WEIGHTS = {"ADD": 1, "MUL": 1, "TRANS": 1, "FMA": 2}
"""Operations of one lane."""
PATHS = {"fp32": "F32", "fp64": "F64", "fp16": "F16"}
MATRIX = {
    "F16": "fp16",
    "BF16": "bf16",
    "F32": "fp32",
    "F64": "fp64",
    "F8": "fp8",
    "XF32": "tf32",
    "F6F4": "fp6 or fp4",
}
EXPECTED = ("F16", "BF16", "F32", "F64")
"""Matrix types of every chip that has these counters: without one of them a sum is not whole."""
_VALU = re.compile(r"SQ_INSTS_VALU_(?:ADD|MUL|TRANS|FMA)_F(?:16|32|64)(?:_sum)?\Z")
_MOPS = re.compile(r"SQ_INSTS_VALU_MFMA_MOPS_[A-Z0-9]+(?:_sum)?\Z")
_UNCERTAIN = (
    "wave instructions x 64 lanes: too many if lanes are masked, too few if instructions are packed"
)
_RDNA = re.compile(r"gfx1\d")


def is_amd_run(run: Run) -> bool:
    """True for a run on an AMD GPU: its tool or its device says so."""
    return run.profiler in TOOLS or any(
        (device.compute_capability or "").startswith("gfx")
        or re.search(r"\bAMD\b|Instinct|Radeon", device.name or "")
        for device in run.devices
        if device.kind == "gpu"
    )


def is_amd_flop_counter(name: str) -> bool:
    """True for the counters that FLOPs are made from."""
    return _VALU.match(name) is not None or _MOPS.match(name) is not None


def read_counter_or_its_sum(values: Values, name: str) -> float | None:
    """A counter, which some tools call a sum over shader engines."""
    value = values.get(name)
    return values.get(f"{name}_sum") if value is None else value


def compute_vector_flops(values: Values, data_type: str, chip: str | None) -> Figure:
    """FLOPs of the vector units in one type; all four counters are needed."""
    names = {f"SQ_INSTS_VALU_{kind}_{PATHS[data_type]}": by for kind, by in WEIGHTS.items()}
    counts = {name: read_counter_or_its_sum(values, name) for name in names}
    lacking = [name for name, value in counts.items() if value is None]
    if len(lacking) == len(names):
        if chip == "gfx908":
            return make_missing_figure(
                "not_available", "the counters of gfx908 (MI100) do not distinguish data types"
            )
        return make_missing_figure(
            "not_collected", f"{data_type} counters were not collected ({', '.join(lacking)})"
        )
    if lacking:
        return make_missing_figure(
            "not_collected", f"{data_type}: no FLOPs without {', '.join(lacking)}"
        )
    if chip is not None and _RDNA.match(chip):
        return make_missing_figure(
            "refused", f"a wave of {chip} has 32 or 64 lanes, and no counter distinguishes them"
        )
    total = LANES * sum(by * (counts[name] or 0) for name, by in names.items())
    kind = PATHS[data_type]
    rule = f"{LANES} x (ADD_{kind} + MUL_{kind} + TRANS_{kind} + 2 FMA_{kind})"
    if not total:
        return Figure(0, "counted", rule=rule)
    return Figure(total, "estimated", f"{rule}; {_UNCERTAIN}", rule=rule)


def compute_matrix_flops(
    values: Values, chip: str | None
) -> tuple[Figure, tuple[tuple[str, Figure], ...]]:
    """Return the FLOPs of the matrix cores, and ("bf16", figure) of the types told apart."""
    counts = {
        kind: value
        for kind in MATRIX
        if (value := read_counter_or_its_sum(values, f"SQ_INSTS_VALU_MFMA_MOPS_{kind}")) is not None
    }
    if not counts:
        if chip in ("gfx906", "gfx900"):
            reason = f"{chip} has no matrix cores"
            return Figure(0, "counted", reason, launches=0, of_launches=0), ()
        reason = "matrix counters (SQ_INSTS_VALU_MFMA_MOPS_...) were not collected"
        return make_missing_figure("not_collected", reason), ()
    types = tuple(
        (MATRIX[kind], Figure(MOPS * value, "counted", rule=f"{MOPS} x MFMA_MOPS_{kind}"))
        for kind, value in counts.items()
    )
    total = MOPS * sum(counts.values())
    rule = f"{MOPS} x MFMA_MOPS: {' + '.join(kind for kind, _ in types)}"
    lacking = [MATRIX[kind] for kind in EXPECTED if kind not in counts]
    if not lacking:
        return Figure(total, "counted", rule=rule), types
    reason = f"matrix operations of {', '.join(lacking)} were not collected"
    if not total:
        return make_missing_figure("not_collected", f"{reason}, and the others are 0"), types
    missing = tuple(f"matrix {kind}" for kind in lacking)
    return Figure(total, "counted", reason, missing=missing, lacking=(reason,), rule=rule), types


def compute_amd_dram_bytes(values: Values, chip: str | None = None) -> Figure | None:
    """Bytes between the GPU and its memory; None where nothing of it was counted. A counter that
    was not collected is missing, not 0."""
    unit = "TCC_EA0" if any(name.startswith("TCC_EA0") for name in values) else "TCC_EA"
    wide_reads = None
    if unit == "TCC_EA0":
        is_older = chip != "gfx950" and f"{unit}_RDREQ_128B_sum" not in values
        wide_reads = "TCC_BUBBLE" if is_older else f"{unit}_RDREQ_128B"
    names = [f"{unit}_{kind}" for kind in ("RDREQ", "RDREQ_32B", "WRREQ", "WRREQ_64B")]
    counts = {
        name: _sum_l2_instances(values, name) for name in (*names, *filter(None, (wide_reads,)))
    }
    fetched, written = values.get("FETCH_SIZE"), values.get("WRITE_SIZE")
    is_whole = all(value is not None for value in counts.values())
    if is_whole and (fetched is None or written is None or chip == "gfx950"):
        reads, short, writes, long, *wide = (value or 0 for value in counts.values())
        narrow = reads - short - sum(wide)
        total = 128 * sum(wide) + 64 * (narrow + long) + 32 * (short + writes - long)
        sizes = "128, 64 and 32" if wide else "64 and 32"
        rule = f"{unit}: {sizes} bytes per read request, 64 and 32 per write request"
        return Figure(total, "counted", rule=rule)
    if fetched is not None and written is not None:
        rule = "FETCH_SIZE + WRITE_SIZE"
        if chip != "gfx950":
            return Figure(fetched + written, "counted", rule=rule)
        reason = (
            "FETCH_SIZE of some ROCm releases counts reads of 128 bytes on gfx950 as 64 bytes; "
            f"collect {wide_reads or 'TCC_EA0_RDREQ_128B'}"
        )
        return Figure(
            fetched + written, "counted", reason, missing=("reads of 128 bytes",), rule=rule
        )
    if fetched is not None or written is not None:
        lacking = "WRITE_SIZE" if written is None else "FETCH_SIZE"
        return make_missing_figure(
            "not_collected", f"only one of FETCH_SIZE and WRITE_SIZE was collected, not {lacking}"
        )
    if all(counts[name] is not None for name in names):
        return make_missing_figure("not_collected", f"no bytes of DRAM without {wide_reads}")
    return None


def _sum_l2_instances(values: Values, name: str) -> float | None:
    """A counter of L2 over its instances, which some tools list without their sum."""
    if (total := read_counter_or_its_sum(values, f"{name}_sum")) is not None:
        return total
    instances = [value for key, value in values.items() if key.startswith(f"{name}[")]
    return sum(value or 0 for value in instances) if None not in instances and instances else None
