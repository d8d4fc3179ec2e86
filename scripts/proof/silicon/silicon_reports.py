"""The second scoreboard: derived counts against every ncu report that has fp32 or tensor counters,
and shapes that can be read.

``scripts/proof/silicon/silicon.py`` prints it before its own table. Shapes come from file names,
logs, grids and counters of the same report, each said beside its row. A launch without a readable
shape, or without a rule, is listed with its count and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.counts.counters import sums
from perfctl.orchestrator.counts.counters.work import compute_kernel_flops, group_counters_by_launch
from perfctl.orchestrator.counts.derived.pointwise import derive_pointwise_kernel
from perfctl.orchestrator.counts.derived.records import (
    AttentionShape,
    DerivedInstructions,
    Launch,
    LaunchWork,
)
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.derived.tensor_cores import count_attention_tiles_per_head
from perfctl.orchestrator.counts.kernels.grids import GemmShape
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.records.errors import ReportError
from perfctl.records.report import Kernel

NEAR = 0.02
TOKENS, HIDDEN, HEADS, LENGTH, BATCH = 40, 256, 8, 20, 2
"""Of the attention layer in leleucas' report: see ``BERT``."""
BERT = (
    f"counters: hidden {HIDDEN} (weights of 3 x {HIDDEN} x {HIDDEN} are drawn), "
    f"{TOKENS * HIDDEN:,} values of q, {BATCH} x {LENGTH} x {LENGTH} mean weights, {BATCH * HEADS} "
    "products"
)

SQUARE = "log (17,179,869,184,000 FLOP in its time) and grids of the matrices' fill (1,280 x 16)"
FLASH = AttentionShape(1, 16, 2048, 2048, 64, 64, causal=True)
WHY = (
    (
        "leleucas_conv2d",
        "implicit_convolve",
        "shape not readable, neither from a log nor a grid; 32 FFMA for each FMUL",
    ),
    (
        "leleucas_bert",
        "splitkreduce",
        "its rule needs the product before it: FADD = outputs x (parts + bias), FMUL = outputs",
    ),
    ("leleucas_bert", "softmax", "16 x 20 rows of 20: see scripts/proof/silicon/silicon_aten.py"),
    (
        "leleucas_bert",
        "reduce_kernel",
        "mean over 8 heads of 2 x 20 x 20 weights: see scripts/proof/silicon/silicon_aten.py",
    ),
    ("leleucas_bert", "distribution", "no rule: random numbers, 5 FFMA a value"),
    (
        "leleucas_bert",
        "bunaryfunctor",
        "10,240 and 800 values: see scripts/proof/silicon/silicon_aten.py",
    ),
    ("heateq", "add_heat", "own kernel of integers: nothing counted"),
    (
        "heateq",
        "heat_kernel",
        (
            "own kernel: 998 x 998 points, 11 FFMA, 6 FADD, 1 FMUL each; branches on values add up "
            "to 1.6 %"
        ),
    ),
    (
        "heateq",
        "color",
        "own kernel: 1,000 x 1,000 points, 5 FFMA, 1 FADD, 1 FMUL each; branches add up to 1.8 %",
    ),
    ("gardenia", "gemm_v0", "own kernel: paper of 40,960 x 40,960 x 20,480 (grids x 32), exact"),
    (
        "gardenia",
        "randominit",
        "own kernel: one FFMA for each of 20,480 x 40,960 values (its grid x 32)",
    ),
    ("armleth", "addition", "own kernel: 1,000 x 1,000 additions"),
    (
        "cs599k",
        "silu",
        "own kernel on an A100 (CC 8.0 in the file): 8,192 x 8,192 values, 10 FFMA and 1 FADD each",
    ),
    ("lashi", "readoffset", "own kernel: one addition for each of 32,768 x 512 threads"),
    ("montecarlo", "computevalue", "own kernel: 10,000,000 samples, 3 FADD and 4 FMUL each"),
    ("wangzy", "initialize", "fills: nothing counted"),
)


@dataclass(frozen=True, slots=True)
class Known:
    """Launches of a report whose shape can be read."""

    report: str
    kernel: str
    """Pattern in the kernel's name."""
    work: LaunchWork | None
    shape: str
    read: str
    """Where the shape was read."""
    sizes: tuple[int, ...] = ()
    """Elements that an elementwise kernel works on; its grid, where the report has none, follows
    from them."""
    per_block: int | None = None
    note: str = ""


def product(m: int, n: int, k: int, batch: int = 1) -> tuple[LaunchWork, str]:
    return LaunchWork(
        GemmShape(m, n, k, batch)
    ), f"{f'{batch} x ' if batch > 1 else ''}{m} x {n} x {k}"


KNOWN = (
    Known(
        "wangzy",
        r"cutlass::kernel",
        *product(20480, 20480, 20480),
        SQUARE,
        note="counted: 512 x tensor instructions; the epilogue's FMUL and FADD have no rule",
    ),
    Known(
        "leleucas_bert",
        r"sgemm_32x32_sliced1x4",
        *product(TOKENS, HIDDEN, HIDDEN),
        BERT,
        note="FMUL says 4 parts",
    ),
    Known(
        "leleucas_bert",
        r"sgemm_128x128_tn",
        *product(LENGTH, LENGTH, HIDDEN // HEADS, BATCH * HEADS),
        BERT,
    ),
    Known(
        "leleucas_bert",
        r"sgemm_128x128_nn",
        *product(LENGTH, HIDDEN // HEADS, LENGTH, BATCH * HEADS),
        BERT,
        note="sum of 20 in steps of 8",
    ),
    Known(
        "leleucas_bert",
        r"elementwise_kernel<.*cudafunctor_add<float>",
        None,
        f"{TOKENS * HIDDEN:,} values",
        BERT,
        (TOKENS * HIDDEN,),
        256,
        "its grid is taken from the size, so this proves little",
    ),
    Known(
        "leleucas_bert",
        r"direct_copy_kernel|fillfunctor",
        None,
        "any",
        "moves values whatever their shape",
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Equal launches of one report."""

    report: str
    kernel: str
    launches: int
    shape: str
    unit: str
    derived: float | None
    executed: float
    family: str
    note: str

    @property
    def deviation(self) -> float | None:
        if self.derived is None:
            return None
        return (
            0.0
            if self.derived == self.executed
            else self.derived / self.executed - 1
            if self.executed
            else None
        )


def reports(folder: Path) -> Iterator[Path]:
    for path in sorted((folder / "ncu").rglob("*")):
        if path.is_file() and "locale_generated" not in path.parts:
            yield path


def rows(folder: Path) -> tuple[list[Row], list[str]]:
    """Rows of all reports with fp32 or tensor counters, and the names of reports that have none."""
    found: dict[tuple[str, str, str, float | None, float, str, str, str], int] = {}
    without = []
    for path in reports(folder):
        told = list(_of_report(path))
        if not told:
            without.append(path.name)
        for key in told:
            found[key] = found.get(key, 0) + 1
    return [
        Row(report, kernel, launches, shape, unit, derived, counted, family, note)
        for (report, kernel, shape, derived, counted, unit, family, note), launches in found.items()
    ], without


def _of_report(path: Path) -> Iterator[tuple[str, str, str, float | None, float, str, str, str]]:
    try:
        report = parsers.parse(path)
    except ReportError:  # no launch in it, or no counters were allowed
        return
    device = next(iter(report.devices), None)
    capability, units = (device.compute_capability, device.sm_count) if device else (None, None)
    values = group_counters_by_launch(list(report.counters))
    for kernel in list(report.kernels):
        mine = values.get(kernel.launch, {})
        flops = compute_kernel_flops(
            mine,
            capability,
            kernel_name=kernel.name,
            sm_count=units,
            ncu_version=report.tool_version,
        )
        if flops.fp32.value is None and not flops.tensor.value:
            continue
        counted, _ = sums.add_counts_from_rates(mine, units)
        ffma, scale = (
            sums.read_sm_or_smsp_metric(counted, sums.make_instruction_counter_name(name))
            for name in ("ffma", "fmul")
        )
        told, shape, note = _derived(path.name, kernel, scale)
        tensor = bool(flops.tensor.value)
        unit = "tensor FLOP" if tensor else "FFMA" if ffma or told else "fp32 FLOP"
        value = flops.tensor.value if tensor else ffma if ffma or told else flops.fp32.value
        derived = (told.tensor if tensor else told.ffma) if told else None
        yield (
            path.name,
            kernel.name,
            shape,
            derived,
            value or 0,
            unit,
            told.family if told else "",
            note,
        )


def _derived(
    report: str, kernel: Kernel, scale: float | None
) -> tuple[DerivedInstructions | None, str, str]:
    """What the rules say of a launch, its shape with where it was read, and the note."""
    name = kernel.name.lower()
    if "flash_attn_v2_kernel" in name:
        return _own_flash()
    grid = (
        None if kernel.grid_x is None else (kernel.grid_x, kernel.grid_y or 1, kernel.grid_z or 1)
    )
    for known in KNOWN:
        if not (report.startswith(known.report) and re.search(known.kernel, name)):
            continue
        if known.work is not None:
            told = derive_instructions(
                Launch(kernel.name, grid, scale=None if grid else scale), known.work
            )
        else:
            asked = (
                None if known.per_block is None else (-(-known.sizes[0] // known.per_block), 1, 1)
            )
            told = derive_pointwise_kernel(
                Launch(kernel.name, grid or asked), recognise_kernel(kernel.name), known.sizes
            )
        return (
            told,
            f"{known.shape}; {known.read}",
            known.note if told else f"no rule. {known.note}",
        )
    why = next(
        (text for start, part, text in WHY if report.startswith(start) and part in name),
        "shape not readable",
    )
    return None, "", why


def _own_flash() -> tuple[DerivedInstructions, str, str]:
    """A kernel of one's own: no rule by its name, but the arithmetic of flash attention's rule, in
    tiles of 64 x 64.

    The grid says 64 queries a tile. No file says how many keys: 64 is the number that gives
    the counter.
    """
    side = 64
    tiles = count_attention_tiles_per_head(FLASH, side, side, True)
    done = 2 * FLASH.heads * tiles * side * side * 2 * FLASH.width
    rule = (
        f"{FLASH.heads} heads x {tiles} tiles that the mask leaves x {side} x {side} x "
        f"{2 * FLASH.width} x 2"
    )
    shape = (
        "16 heads, 2,048 x 2,048, width 64, causal; file name and grid (32 rows of 64, 16 heads)"
    )
    return (
        DerivedInstructions("causal tiles of a flash kernel", rule, tensor=done, math="bf16"),
        shape,
        (
            "own kernel, flash attention's arithmetic; 64 queries a tile by its grid, 64 keys "
            "fitted to the counter"
        ),
    )


def print_table(folder: Path) -> None:
    """Every row with its explanation, then reports without such counters."""
    found, without = rows(folder)
    ruled = [row for row in found if row.derived is not None]
    print(f"Reports of {folder}: launches with a rule and a shape that can be read")
    print(
        f"{'report':<24}{'kernel':<34}{'launches':>9}{'derived':>20}{'counted':>20}{'off':>8}  "
        "unit; shape; where it was read"
    )
    for row in ruled:
        off = "-" if row.deviation is None else f"{row.deviation:+.2%}"
        print(
            f"{row.report[:22]:<24}{_short(row.kernel):<34}{row.launches:>9,}{row.derived:>20,.0f}"
            f"{row.executed:>20,.0f}{off:>8}  {row.unit}; "
            f"{row.shape}{f' ({row.note})' if row.note else ''}"
        )
    near = sum(
        row.launches for row in ruled if row.deviation is not None and abs(row.deviation) <= NEAR
    )
    print(f"{near} of {sum(row.launches for row in ruled)} launches with a rule within 2 %")
    print("Counted, without a rule or a shape that can be read:")
    for report, kernel, unit, note in dict.fromkeys(
        (row.report, _short(row.kernel), row.unit, row.note) for row in found if row.derived is None
    ):
        mine = [
            row
            for row in found
            if (row.report, _short(row.kernel), row.unit, row.note) == (report, kernel, unit, note)
        ]
        low, high = (edge(row.executed for row in mine) for edge in (min, max))
        counted = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
        print(
            f"{report[:22]:<24}{kernel:<34}{sum(row.launches for row in mine):>9,}{'-':>12}"
            f"{counted:>28}{'':>8}  {unit}; {note}"
        )
    print(f"No fp32 or tensor counters in {len(without)} reports: {', '.join(without)}")
    print()


def _short(name: str) -> str:
    bare = re.sub(
        "^void |at::native::|<unnamed>::|cutlass::gemm::kernel::|cutlass::gemm::threadblock::|"
        r"\((?:int|bool)\)",
        "",
        name,
    )
    return bare[:32]


def facts(folder: Path) -> dict[str, dict[str, object]]:
    """Family -> launches and errors, of rules for tensor cores that these reports verify."""
    kept: dict[str, dict[str, object]] = {}
    for row in rows(folder)[0]:
        if row.deviation is None or not row.family.startswith("tensor product"):
            continue
        old = kept.get(row.family, {"launches": 0, "worst": 0.0})
        worst = round(max(float(str(old["worst"])), abs(row.deviation)), 5)
        launches = int(str(old["launches"])) + row.launches
        kept[row.family] = {
            "launches": launches,
            "within": worst,
            "worst": worst,
            "chip": "a V100 (of one shape)",
        }
    return kept
