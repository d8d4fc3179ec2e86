"""Generation on paper as text, as sheets and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfctl.orchestrator.estimate.generation import (
    MEASURES,
    Cache,
    CachePart,
    Generation,
    LayerWork,
    Phase,
    layer_work,
)
from perfctl.orchestrator.report.estimate import columns, html_page, mark
from perfctl.orchestrator.report.files.documents import latex_page, latex_table

PHASE_HEADS = (
    "phase",
    "steps",
    "tokens",
    "context",
    "MAC",
    "FLOP",
    "weights read B",
    "cache read B",
    "cache written B",
    "FLOP/B",
)
LAYER_HEADS = (
    "layer",
    "kind",
    "MAC",
    "FLOP",
    "elementwise FLOP",
    "weights read B",
    "cache read B",
    "cache written B",
    "FLOP/B",
    "op by op B",
)
CONVENTION = (
    "1 multiply-add (MAC) is 2 FLOPs; FLOP/B: FLOPs for each byte of weights and cache. Tokens are "
    "those of one sequence."
)

_SheetPart = tuple[str, tuple[str, ...], list[tuple[str, ...]], int]


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """--prompt."""

    model: str
    """As it was named."""
    batches: Mapping[int, Generation]
    """Batch size -> its figures."""
    mode: Literal["generate"] = "generate"


def as_text(found: Mapping[int, Generation], every_layer: bool, notes: Sequence[str]) -> str:
    """Both phases, parameters and cache, for each batch size; with ``every_layer`` a table of
    layers for each phase."""
    parts = []
    for batch, one in found.items():
        title = (
            f"{one.name}, batch {batch:,}: prompt {one.prompt:,}, then {one.generate:,} steps of "
            "one token"
        )
        parts.append(
            f"{title}\n\n"
            + "\n".join(columns(PHASE_HEADS, list(map(_phase_row, one.phases)), left=1))
        )
        if every_layer:
            for phase in one.phases[:2]:
                rows = [_layer_row(row) for row in phase.layers]
                parts.append(
                    f"{phase.name}, by layer\n\n" + "\n".join(columns(LAYER_HEADS, rows, left=2))
                )
        parts.append("\n".join(_facts(one)))
    return "\n\n".join((*parts, "\n".join((CONVENTION, *notes))))


def _phase_row(phase: Phase) -> tuple[str, ...]:
    totals = phase.totals
    least = "at least " if totals.at_least else ""
    context = (
        ""
        if phase.name == "total"
        else f"{phase.first:,}"
        if phase.first == phase.last
        else f"{phase.first:,}-{phase.last:,}"
    )
    intensity = f"{phase.intensity:,.2f}" if phase.intensity is not None else ""
    moved = (
        phase.total(name) for name in ("weight_bytes", "cache_read_bytes", "cache_written_bytes")
    )
    tokens = (
        ""
        if phase.name == "total"
        else f"{phase.tokens:,}"
        if phase.tokens == 1 or phase.steps == 1
        else f"{phase.first:,}-{phase.last:,}"
    )
    return (
        phase.name,
        f"{phase.steps:,}",
        tokens,
        context,
        f"{least}{totals.macs:,}",
        f"{least}{totals.flops:,}",
        *(f"{value:,}" for value in moved),
        least + intensity,
    )


def _layer_row(row: LayerWork) -> tuple[str, ...]:
    least = "at least " if row.unknown else ""
    values = (
        row.elementwise_flops,
        row.weight_bytes,
        row.cache_read_bytes,
        row.cache_written_bytes,
    )
    intensity = f"{2 * row.macs / row.bytes:,.2f}" if row.bytes and row.macs else ""
    return (
        row.layer or "(model)",
        row.kind,
        f"{least}{row.macs:,}",
        f"{least}{2 * row.macs:,}",
        f"{least}{values[0]:,}",
        *(f"{value:,}" for value in values[1:]),
        intensity,
        f"{row.other_bytes:,}",
    )


def _facts(one: Generation) -> list[str]:
    lines = [f"parameters            {one.parameters:,}"]
    if one.active_parameters is not None:
        lines.append(f"active for a token    {one.active_parameters:,}: of experts only its own")
    if one.cache is not None:
        lines += cache_lines(one.cache)
    elif not one.cached:
        lines.append("KV cache              none: each step runs all tokens again")
    for phase in one.phases[:2]:
        lines += [
            (
                f"not counted           {name} ({count:,} {'call' if count == 1 else 'calls'}), in "
                f"{phase.name}"
            )
            for name, count in phase.totals.unknown
        ]
    return lines


def cache_lines(cache: Cache) -> list[str]:
    """Bytes for a token with how they come about, and the size at the end."""
    growing = [part for part in cache.parts if part.grows]
    fixed = [part for part in cache.parts if not part.grows]
    kind = " and ".join(cache.dtypes)
    lines = [
        (
            f"KV cache              {cache.bytes_per_token:,} B a token and sequence, {kind}: "
            f"{_worked(growing)}"
        )
    ]
    if fixed:
        lines.append(f"of fixed size         {cache.fixed_bytes:,} B a sequence: {_worked(fixed)}")
    lines.append(
        f"at the end            {cache.bytes:,} B: {cache.tokens:,} tokens, batch {cache.batch:,}"
    )
    if cache.latent is not None and growing:
        compressed, expanded = cache.latent
        layers, item = sum(part.layers for part in growing), growing[0].item_bytes
        sizes = {
            name: values * layers * item
            for name, values in (("compressed", compressed), ("expanded", expanded))
        }
        each = sorted({part.each for part in growing})
        kept = (
            "compressed" if cache.keeps_latent else "expanded" if each == [expanded] else "neither"
        )
        more = (
            ""
            if each in ([compressed], [expanded])
            else f", {' or '.join(map(str, each))} values in all"
        )
        lines.append(
            f"latent attention      compressed {compressed:,} values a token and layer = "
            f"{sizes['compressed']:,} B a token; as keys and values of all heads {expanded:,} = "
            f"{sizes['expanded']:,} B. This model keeps: {kept}{more}"
        )
    return lines


def _worked(parts: Sequence[CachePart]) -> str:
    """ "32 layers x (keys 32 x 128 + values 32 x 128) x 2 B"."""
    texts = []
    for part in parts:
        tensors = " + ".join(
            f"{name} {' x '.join(map(str, shape))}" for name, shape in part.tensors
        )
        window = f", the last {part.keeps:,} tokens kept" if part.keeps is not None else ""
        count = f"{part.layers:,} {'layer' if part.layers == 1 else 'layers'}"
        texts.append(f"{count} x ({tensors}) x {part.item_bytes} B{window}")
    return "; ".join(texts) or "no layer keeps a token"


def _sheet_parts(one: Generation) -> list[_SheetPart]:
    """(Title, heads, rows, columns of words): the phases, then the layers of prefill and of decode
    with their totals."""
    parts: list[_SheetPart] = [("Phases", PHASE_HEADS, list(map(_phase_row, one.phases)), 1)]
    for phase in one.phases[:2]:
        sums = layer_work(
            "total", "", [phase.total(name) for name in MEASURES], phase.totals.unknown
        )
        rows = [*map(_layer_row, phase.layers), _layer_row(sums)]
        parts.append((f"{phase.name[:1].upper()}{phase.name[1:]}, by layer", LAYER_HEADS, rows, 2))
    return parts


def _title(model: str, one: Generation) -> str:
    return f"{model}, batch {one.batch:,}, prompt {one.prompt:,}, generate {one.generate:,}"


def _lines(one: Generation) -> list[str]:
    return [" ".join(line.split()) for line in (*_facts(one), CONVENTION, *one.notes)]


def _text_sheet(model: str, found: Mapping[int, Generation]) -> str:
    out = []
    for one in found.values():
        title = _title(model, one)
        out += [title, "=" * len(title), ""]
        for name, heads, rows, left in _sheet_parts(one):
            out += [name, "", *columns(heads, rows, left=left), ""]
        out += [*_lines(one), ""]
    return "\n".join(out)


def _markdown_sheet(model: str, found: Mapping[int, Generation]) -> str:
    out = []
    for one in found.values():
        out += [f"# {mark(_title(model, one))}", ""]
        for name, heads, rows, left in _sheet_parts(one):
            out += [
                f"## {mark(name)}",
                "",
                f"| {' | '.join(heads)} |",
                f"|{'---|' * left}{'---:|' * (len(heads) - left)}",
            ]
            out += [*(f"| {' | '.join(map(mark, row))} |" for row in rows), ""]
        out += [*(f"- {mark(line)}" for line in _lines(one)), ""]
    return "\n".join(out)


def _latex_sheet(model: str, found: Mapping[int, Generation]) -> str:
    parts: list[tuple[str, str, Sequence[str]]] = []
    for one in found.values():
        for name, heads, rows, left in _sheet_parts(one):
            parts.append(
                (
                    f"{_title(model, one)}: {name}",
                    latex_table(heads, rows, left, last_is_total=left == 2),
                    (),
                )
            )
        parts.append(("Notes", "", _lines(one)))
    return latex_page(parts, landscape=True)


def _html_sheet(model: str, found: Mapping[int, Generation]) -> str:
    from html import escape

    body = ""
    for one in found.values():
        body += f"<h2>{escape(_title(model, one))}</h2>"
        for name, heads, rows, _ in _sheet_parts(one):
            head = "".join(f"<th scope=col>{escape(text)}</th>" for text in heads)
            lines = "".join(
                f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
            )
            table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
            body += f"<h3>{escape(name)}</h3><div class=wide>{table}</div>"
        body += f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in _lines(one))}</ul>"
    style = (
        ".wide{overflow-x:auto}td:nth-child(n+3),th:nth-child(n+3){text-align:right}body{max"
        "-width:100rem}"
    )
    return html_page(model, body, style)


FORMS: dict[str, Callable[[str, Mapping[int, Generation]], str]] = {
    "text": _text_sheet,
    "md": _markdown_sheet,
    "tex": _latex_sheet,
    "html": _html_sheet,
}
"""--format -> how the sheet is written."""
