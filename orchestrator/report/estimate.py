"""An estimate as one text for the terminal and as one JSON document."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from perfctl.orchestrator.estimate.flops.engine import Totals, fused_only, types_of_products
from perfctl.orchestrator.estimate.memory import CONTEXT, Fit, Memory
from perfctl.orchestrator.estimate.sheets.layers import Line
from perfctl.orchestrator.estimate.sheets.network import NetworkSheet
from perfctl.orchestrator.estimate.sheets.sheet import Section, Sheet
from perfctl.orchestrator.estimate.sheets.slips import Finding
from perfctl.orchestrator.estimate.sheets.slips import explain as explain_check
from perfctl.orchestrator.estimate.step import Estimate, experts_assumption
from perfctl.orchestrator.report.files.documents import latex_page, latex_table
from perfctl.records.paper import CAPABILITY, LayerCall

if TYPE_CHECKING:
    from perfctl.records.paper import ModuleSeen

MIB, GIB = 1 << 20, 1 << 30
NAMED = 8
"""Layers that one line lists."""
WIDTH = 110
"""Columns of text beside each other; wider ones go below each other."""
HEADS = ("", "formula", "numbers", "result")
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#1a1a1a;background:#fff}table{border-collapse:collapse;width:100%;"
    "margin-bottom:1.5rem}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid "
    "#ddd;vertical-align:top}td:last-child,th:last-child{text-align:right;"
    "font-variant-numeric:tabular-nums}td:nth-child(n+2){font-family:ui-monospace,monospace;"
    "font-size:.9em}@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}th,"
    "td{border-color:#444}}"
)


@dataclass(frozen=True, slots=True)
class EstimateOutput:
    """Figures of one step, on paper. Memory in bytes."""

    model: str
    """As it was named."""
    mode: str
    batches: Mapping[int, Estimate]
    """Batch size -> its figures."""
    largest_batch: Fit | None
    """null: no memory was stated."""
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Check:
    """What a value by hand is."""

    JSON_INLINED = ("finding",)

    finding: Finding
    said: str


@dataclass(frozen=True, slots=True)
class LayerSheet:
    """The calculation of one layer at one batch size."""

    layer: str
    kind: str
    sections: tuple[Section, ...]
    check: Check | None
    """null: no --check."""


@dataclass(frozen=True, slots=True)
class LayerSheets:
    """--sheet with --layer, or --check."""

    model: str
    """As it was named."""
    batches: Mapping[int, LayerSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class NetworkSheets:
    """--sheet of a whole network."""

    model: str
    """As it was named."""
    batches: Mapping[int, NetworkSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


def columns(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int = 1) -> list[str]:
    """Aligned columns with a rule under the heads; the first ``left`` hold words, the
    others numbers."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            c.ljust(w) if at < left else c.rjust(w) for at, (c, w) in enumerate(cells)
        ).rstrip()

    return [line(heads), "-" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows)]


def model_table(modules: Sequence[ModuleSeen], calls: Sequence[LayerCall]) -> str:
    """One line a module, functional operations with multiply-adds under their parent."""
    forward: dict[str, list[LayerCall]] = defaultdict(list)
    for call in calls:
        if call.direction == "forward":
            forward[call.layer].append(call)
    rows: list[tuple[str, ...]] = []
    for module in modules:
        mine, indent = forward.get(module.path, []), "  " * max(module.depth - 1, 0)
        shape = " x ".join(map(str, module.output)) if module.output is not None else ""
        parameters = f"{module.parameters:,}" if module.parameters else ""
        own = macs_of([call for call in mine if call.kind == module.kind])
        rows.append(
            (
                indent + (module.path.rpartition(".")[2] or "(model)"),
                module.kind,
                shape,
                parameters,
                own,
            )
        )
        rows += [
            (f"{indent}  {call.kind}", "function", "", "", macs_of([call]))
            for call in mine
            if call.kind != module.kind and (call.macs is None or call.macs)
        ]
    seen = {row[0].strip() for row in rows}
    outside = [
        call.kind for call in forward.get("", []) if call.macs is None and call.kind not in seen
    ]
    rows += [(kind, "function", "", "", "not counted") for kind in outside]
    return "\n".join(columns(("layer", "kind", "output", "parameters", "MAC"), rows, left=3))


def macs_of(calls: Sequence[LayerCall]) -> str:
    total, unknown = sum(call.macs or 0 for call in calls), any(call.macs is None for call in calls)
    if unknown:
        return f"at least {total:,}" if total else "not counted"
    return f"{total:,}" if total else ""


def totals_text(found: Estimate) -> str:
    """Totals, sizes, and which operations have no formula."""
    outputs = sum(
        call.write_bytes or 0 for call in found.calls if call.direction == "forward" and call.layer
    )
    weights = sum(module.parameter_bytes for module in found.modules)
    both, kept = (
        (2, "every output, and its gradient") if found.backward.macs else (1, "every output")
    )
    frozen = found.parameters - found.trainable
    lines = [
        (
            f"parameters            {found.parameters:,} (trainable {found.trainable:,}, not "
            f"trainable {frozen:,})"
        ),
        f"active for a token    {found.active_parameters:,}: of experts only its own"
        if found.experts
        else "",
        f"forward               {found.forward}",
        f"backward              {found.backward}"
        if found.backward.macs or found.backward.at_least
        else "",
        f"computed again        {found.recompute}"
        if found.recompute.macs or found.recompute.at_least
        else "",
        f"integer products      {found.integer_macs:,} multiply-adds, no FLOP"
        if found.integer_macs
        else "",
        (
            f"fused attention       + {found.fused.macs:,} MAC = {found.fused.flops:,} FLOP: Q K^T "
            "again in backward, where a fused kernel runs; not in the lines above"
        )
        if found.fused.macs
        else "",
        f"elementwise, forward  {found.forward.elementwise_flops:,} FLOP, not in the lines above",
        f"input size            {found.input_bytes / MIB:,.2f} MiB",
        (
            f"forward/backward size {both * outputs / MIB:,.2f} MiB, {kept}, as if none were freed "
            "(--memory: the real peak)"
        ),
        f"parameter size        {weights / MIB:,.2f} MiB",
        f"total size            {(found.input_bytes + both * outputs + weights) / MIB:,.2f} MiB",
        f"depends on data       {', '.join(found.data_dependent)}: another input gives other counts"
        if found.data_dependent
        else "",
    ]
    lines += [
        f"not counted           {call.formula}, in {call.layer or 'the model'}, {call.direction}"
        for call in found.calls
        if call.macs is None
    ]
    return "\n".join(filter(None, lines))


def types_text(found: Estimate) -> str:
    """FLOPs and bytes by type, and the casts; "" where every product takes fp32 anyway."""
    if found.precision == "fp32" and {
        row.type for row in found.types if row.forward_macs or row.backward_macs
    } <= {"fp32"}:
        return ""
    total = sum(row.forward_macs + row.backward_macs + row.recompute_macs for row in found.types)
    again = any(row.recompute_macs for row in found.types)
    rows = []
    for row in found.types:
        macs = row.forward_macs + row.backward_macs + row.recompute_macs
        sizes = (
            row.forward_macs,
            2 * row.forward_macs,
            2 * row.backward_macs,
            *([2 * row.recompute_macs] if again else []),
        )
        least = "at least " if row.unknown else ""
        cells = (f"{least}{value:,}" for value in sizes)
        rest = (
            f"{least}{row.elementwise_flops:,}",
            f"{row.forward_bytes:,}",
            f"{row.backward_bytes:,}",
        )
        rows.append((row.type, *cells, f"{macs / total:.2%}" if total else "", *rest))
    heads = (
        "type",
        "forward MAC",
        "forward FLOP",
        "backward FLOP",
        *(["computed again FLOP"] if again else []),
        "share",
        "elementwise FLOP, forward",
        "forward B",
        "backward B",
    )
    casts = found.casts
    said = (
        f"casts                 {casts.calls:,}: {casts.read_bytes:,} B read, "
        f"{casts.write_bytes:,} B written; in the bytes above"
    )
    lines = [*columns(heads, rows), *([said] if casts.calls else [])]
    if found.precision == "fp8":
        named = types_of_products(found.ops).items()
        left = [
            layer or "(model)"
            for (layer, kind), name in named
            if kind == "Linear" and "fp8" not in name
        ]
        if left:
            more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
            lines.append(
                f"Linear, not in fp8    {', '.join(left[:NAMED])}{more}: rows, inputs or outputs "
                "are no multiple of 16"
            )
        elif all(row.type != "fp8" for row in found.types):
            lines.append("no product in fp8     the model has no nn.Linear")
    return "\n".join(lines)


def _flops(total: Totals) -> str:
    return f"{'at least ' if total.at_least else ''}{total.flops:,}"


def calls_table(calls: Sequence[LayerCall]) -> str:
    """Every layer, operation and direction: multiply-adds, elementwise FLOPs, elements, bytes."""
    rows = [
        (
            call.layer or "(model)",
            call.kind,
            call.direction,
            f"{call.calls:,}",
            f"{call.macs:,}" if call.macs is not None else "not counted",
            f"{call.elementwise_flops:,}" if call.elementwise_flops is not None else "not counted",
            *(
                f"{value or 0:,}"
                for value in (call.output_elements, call.read_bytes, call.write_bytes)
            ),
        )
        for call in calls
    ]
    heads = (
        "layer",
        "kind",
        "direction",
        "calls",
        "MAC",
        "elementwise FLOP",
        "output elements",
        "B read",
        "B written",
    )
    return "\n".join(columns(heads, rows, left=3)) if rows else ""


def directions_table(calls: Sequence[LayerCall], recompute: bool) -> str:
    """FLOPs of every layer with multiply-adds, a column for each direction."""
    shown = ["forward", "grad_input", "grad_weight", *(["recompute"] if recompute else [])]
    sums: dict[tuple[str, str], Counter[str]] = {}
    for call in calls:
        if call.macs and not fused_only(call):
            sums.setdefault((call.layer or "(model)", call.kind), Counter())[call.direction] += (
                call.flops or 0
            )
    rows = [
        (*named, *(f"{directions[name]:,}" for name in shown)) for named, directions in sums.items()
    ]
    return (
        "\n".join(columns(("layer", "kind", *(f"{name} FLOP" for name in shown)), rows, left=2))
        if rows
        else ""
    )


def memory_text(memory: Memory) -> str:
    """Memory of a step: the sizes, then what was taken for the GPU, then what is not known."""
    peak = memory.peak
    moment = (
        f"{peak.phase}, {peak.layer or 'outside of layers'} ({peak.op})"
        if peak.op
        else "before the step"
    )
    rows = (
        ("parameters", memory.parameters),
        ("buffers", memory.buffers),
        ("gradients", memory.gradients),
        ("optimizer state", memory.optimizer),
        ("inputs and targets", memory.inputs),
        ("kept for backward", memory.activations),
        ("peak", peak.bytes),
        ("peak, 512-byte blocks", memory.rounded_peak),
        ("cuBLAS workspaces", memory.cublas_workspace),
        ("allocated at the peak", memory.allocated),
        ("reserved by the allocator", memory.reserved),
    )
    lines = [f"{name:<27}{size:>18,} B" for name, size in rows if size or name != "buffers"]
    shares = ", ".join(f"{name} {size:,}" for name, size in peak.by_category.items())
    least, most = (memory.reserved + size for size in CONTEXT)
    lines += [
        f"peak reached in            {moment}",
        f"made of                    {shares}",
        (
            f"on the device              {least / GIB:.2f} to {most / GIB:.2f} GiB with the CUDA "
            "context, as nvidia-smi shows it"
        ),
    ]
    major, minor = memory.gpu or CAPABILITY
    named = f"GPU: compute capability {major}.{minor}" + (
        "" if memory.gpu else ", as none was named (--gpu h100)"
    )
    threads = [
        f"workspace: {name}'s thread, {size:,} B" for name, size in memory.workspaces.items()
    ]
    lines += [f"assumed                    {text}" for text in (named, *memory.assumed, *threads)]
    return "\n".join(lines + [f"not known                  {text}" for text in memory.not_known])


def fit_text(fit: Fit, limit: int) -> str:
    """Largest batch, what it needs and what stays free; why the next does not fit."""
    free = f"{fit.reserve / GIB:.2f} GiB left free for the CUDA context and cuDNN (--reserve)"
    if fit.batch is None:
        return (
            f"every batch fits: a step needs {fit.needed:,} B at any batch, {limit:,} B are there, "
            f"{free}"
        )
    if not fit.batch:
        return f"not even one sample fits: {_next(fit, limit)}, {limit:,} B are there, {free}"
    return (
        f"largest batch {fit.batch:,}: needs {fit.needed:,} B of {limit:,} B, with {free} and "
        f"{fit.margin:,} B more; {fit.batch + 1:,} would need {_next(fit, limit)}"
    )


def _next(fit: Fit, limit: int) -> str:
    if fit.next_needed + fit.reserve > limit:
        return f"{fit.next_needed:,} B"
    return (
        f"{fit.next_needed:,} B, for which the allocator has no pieces that are large enough "
        "(fragmentation)"
    )


def as_text(found: Mapping[int, Estimate], every_row: bool, notes: Sequence[str] = ()) -> str:
    """Tables and totals of the first batch size, then one line for each when there are several,
    then the notes."""
    first = next(iter(found.values()))
    parts = [model_table(first.modules, first.calls)]
    if first.backward.macs or first.recompute.macs:
        parts.append(directions_table(first.calls, bool(first.recompute.macs)))
    if every_row:
        parts.append(calls_table(first.calls))
    parts += [totals_text(first), types_text(first)]
    if first.memory is not None:
        parts.append(memory_text(first.memory))
    if len(found) > 1:
        rows = [
            (
                f"{size:,}",
                _flops(one.forward),
                _flops(one.backward),
                f"{one.memory.peak.bytes:,}" if one.memory else "",
            )
            for size, one in found.items()
        ]
        parts.append(
            "\n".join(columns(("batch", "forward FLOP", "backward FLOP", "peak B"), rows, left=0))
        )
    more = (experts_assumption(first.experts),) if first.experts else ()
    parts.append("\n".join((*notes, *more)))
    return "\n\n".join(filter(None, parts))


def sheet_output(
    model: str,
    sheets: Mapping[int, Sheet],
    findings: Mapping[int, Finding],
    problems: Sequence[str],
) -> LayerSheets:
    """Return for each batch size the sheet, and what explains the hand value."""
    batches = {}
    for size, sheet in sheets.items():
        finding = findings.get(size)
        check = None
        if finding is not None:
            check = Check(finding, explain_check(finding, sheet.layer))
        batches[size] = LayerSheet(sheet.layer, sheet.kind, sheet.sections, check)
    return LayerSheets(model, batches, problems)


def heading(sheet: Sheet) -> str:
    """conv2 (Conv2d)"""
    return f"{sheet.layer or 'the model'} ({sheet.kind})" if sheet.kind else sheet.layer


def sheet_as_text(sheet: Sheet) -> str:
    """Aligned columns for a terminal."""
    first = max((len(line.what) for section in sheet.sections for line in section.lines), default=0)
    out = [heading(sheet), "=" * len(heading(sheet))]
    for section in sheet.sections:
        widths = [
            first,
            *(
                max(map(len, column))
                for column in list(zip(*map(_cells, section.lines), strict=True))[1:]
            ),
        ]
        out += ["", section.title, "-" * len(section.title)]
        out += [text for line in section.lines for text in _lines(line, widths)]
    return "\n".join(out) + "\n"


def _cells(line: Line) -> tuple[str, str, str, str]:
    return line.what, line.formula, line.numbers, line.result


def _lines(line: Line, widths: list[int]) -> list[str]:
    if sum(widths) <= WIDTH:
        return [
            "  "
            + "  ".join(
                text.ljust(width) for text, width in zip(_cells(line), widths, strict=True)
            ).rstrip()
        ]
    terms = [f"{term};" for term in line.formula.split("; ")] if line.formula else []
    parts = [
        *(terms[:-1]),
        *(f"= {text}" if terms else text for text in (line.numbers, line.result) if text),
    ]
    if terms:
        parts.insert(len(terms) - 1, terms[-1].rstrip(";"))
    front = [line.what, *[""] * (len(parts) - 1)]
    return [
        f"  {what.ljust(widths[0])}  {part}".rstrip()
        for what, part in zip(front, parts, strict=True)
    ]


def as_markdown(sheet: Sheet) -> str:
    """One table a section."""
    out = [f"# {mark(heading(sheet))}"]
    for section in sheet.sections:
        out += ["", f"## {section.title}", "", f"| {' | '.join(HEADS)} |", "|---|---|---|---:|"]
        out += [f"| {' | '.join(mark(cell) for cell in _cells(line))} |" for line in section.lines]
    return "\n".join(out) + "\n"


def mark(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("_", "\\_")
        .replace("<", "&lt;")
    )


def as_html(sheet: Sheet) -> str:
    """A page that stands alone: no script, nothing loaded."""
    head = "".join(f"<th scope=col>{name}</th>" for name in HEADS)
    body = ""
    for section in sheet.sections:
        rows = (
            "".join(f"<td>{escape(cell)}</td>" for cell in _cells(line)) for line in section.lines
        )
        lines = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
        body += f"<h2>{escape(section.title)}</h2>{table}"
    return html_page(heading(sheet), body)


def html_page(title: str, body: str, style: str = "") -> str:
    """``body`` is HTML, ``title`` text."""
    title = escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}{style}</style></head><body><h1>{title}</h1>{body}</"
        "body></html>\n"
    )


def as_latex(sheet: Sheet) -> str:
    """A document that stands alone, one table a section."""
    parts = [
        (section.title, latex_table(HEADS, list(map(_cells, section.lines)), 3), ())
        for section in sheet.sections
    ]
    return latex_page([(heading(sheet), "", ()), *parts])


FORMS: dict[str, Callable[[Sheet], str]] = {
    "text": sheet_as_text,
    "md": as_markdown,
    "tex": as_latex,
    "html": as_html,
}
"""--format -> how the sheet is written."""
