"""Every number of a finding is held against the section that the finding leads to.

A number is proved when a cell, a note or a drawing of that section shows it in the same unit, to
the digits that the sentence has, or when a rule of ``RULES`` works it out from cells of the page. A
sentence may also prove its own sums: "1,179,648 x 120 = 141,557,760" must be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware.machines import find_gpu_product
from perfctl.orchestrator.ledger.usage.inference import PAYS
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import Cell, Column, Table
from perfctl.orchestrator.report.view import Section, View
from tests.report.outline import unpacked

SCALE = {
    "": 1.0,
    "p": 1e-12,
    "n": 1e-9,
    "µ": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
}
UNITS = "FLOP/s|FLOP|images/s|samples/s|KiB|MiB|MAC|Hz|W|B|s"
NUMBER = re.compile(
    r"(?<![\w./…-])(?P<sign>[<>] )?(?P<digits>\d[\d,\u202f]*(?:\.\d+)?)(?:[ "
    r"\u2007\u2008\u202f]*(?P<percent>%)|[ \u2007\u2008\u202f]*(?P<prefix>[pnµmkMGTP]?)(?P<unit>"
    rf"{UNITS})(?![\w/])|[ \u2007\u2008]+(?P<bare>[kMGTP])(?!\w))?(?!\w|\.\d)"
)
QUOTED = re.compile(r"(?<!\w)'[^']*'|\S+=\S+|\S*::\S*|<[^>]*>")
"""Commands, options and template arguments: their digits are no figures."""


class Number(NamedTuple):
    """A figure with its unit, and half of its last digit."""

    value: float
    unit: str
    half: float
    text: str
    sign: str = ""
    """"<" or ">" where the figure is a limit."""

    def shows(self, fact: Fact) -> bool:
        if self.sign:
            return fact.unit == self.unit and (fact.value < self.value) is (self.sign == "<")
        return fact.unit == self.unit and abs(
            fact.value - self.value
        ) <= self.half * 1.001 + 1e-9 * abs(self.value)


class Fact(NamedTuple):
    unit: str
    value: float


def numbers(text: str) -> list[Number]:
    """Figures of a text; digits inside of names ("conv2", "128x64") are none. "0.35 to 0.38 ms" has
    one unit for both."""
    text = QUOTED.sub(" ", text)
    found: list[Number] = []
    ends = (len(text), None)
    for match in reversed([*NUMBER.finditer(text)]):
        unit = "%" if match["percent"] else match["unit"] or ""
        prefix = match["prefix"] or match["bare"] or ""
        place, after = ends
        if after is not None and not (unit or prefix) and text[match.end() : place] == " to ":
            unit, prefix = after
        ends = (match.start(), (unit, prefix))
        digits, scale = re.sub(r"[,\u202f]", "", match["digits"]), SCALE[prefix]
        unit, sign = "" if unit == "MAC" else unit, (match["sign"] or "").strip()
        half = scale * 0.5 * 10.0 ** -len(digits.partition(".")[2])
        exact = "." not in digits and scale == 1 and not unit
        found.append(
            Number(float(digits) * scale, unit, 0.0 if exact else half, match[0].strip(), sign)
        )
    return found[::-1]


def sections(study: View) -> list[Section]:
    return [part for part in study.chapters if isinstance(part, Section)]


def unproved(finding: Finding, study: View) -> list[str]:
    """The numbers of a finding that nothing on the page proves; empty when all are."""
    section = next((part for part in sections(study) if part.key == finding.evidence), None)
    if section is None:
        return [f"there is no section {finding.evidence}"]
    facts = [*_facts(section), *_trail(study, finding), *_sums(finding.text)]
    facts += [Fact("", float(word)) for word in dict(study.properties).get("batch", "").split()]
    # "nvprof run 1" is the name of a run
    facts += [Fact("", number) for number in cells(study, "runs", "Runs", "run")]
    for pattern, rule in RULES:
        if re.search(pattern, finding.text):
            facts += rule(study)
    return [one.text for one in numbers(finding.text) if not any(one.shows(fact) for fact in facts)]


def _facts(section: Section) -> Iterator[Fact]:
    for table in (*section.tables, *section.folded):
        yield from _table(table)
    if section.ledger is not None:
        view = section.ledger
        yield from _texts(view.notes)
        for group in view.groups:
            for line in group.lines:
                cells = [line.cells[column.label] for column in view.columns]
                yield from _row(view.columns, cells)
            yield from _texts([group.note or ""])
    for chart in section.charts:
        yield from _texts([chart.note, *re.findall(r">([^<]+)<", chart.svg)])
    yield from _texts(value for _, value in section.environment)


def _trail(study: View, finding: Finding) -> Iterator[Fact]:
    """What the finding's trail shows, without the lines that repeat the finding."""
    for packed in (
        part.trails for part in sections(study) if finding.trail in part.trails.get("trails", ())
    ):
        text, (_, steps) = packed["text"], packed["trails"][finding.trail]
        for _, said, _, rows, _ in steps:
            lines = [text[place] for place in said]
            yield from _texts(
                [line for line in lines if finding.first not in line and line not in finding.text]
            )
            yield from _texts([text[place] for place in chain.from_iterable(rows)])


def _table(table: Table) -> Iterator[Fact]:
    yield Fact("", table.total)
    yield from _texts(
        [table.caption, *table.notes, *(f"{one.label} {one.note or ''}" for one in table.columns)]
    )
    for row in table.rows:
        yield from _row(table.columns, row)


def _row(columns: Sequence[Column], cells: Sequence[Cell]) -> Iterator[Fact]:
    for column, cell in zip(columns, cells, strict=True):
        yield from _texts([cell.text, cell.title or ""])
        if isinstance(cell.value, (int, float)):
            yield _fact(column, cell)


def _fact(column: Column, cell: Cell) -> Fact:
    value = float(cell.value)  # type: ignore[arg-type]
    if "%" in cell.text:
        return Fact("%", value * 100)
    if column.base:
        return Fact("s", value / 1e9) if column.base == "ns" else Fact("B", value)
    return Fact(
        column.unit
        if column.unit in UNITS.split("|")
        else column.label
        if column.label in UNITS
        else "",
        value,
    )


def _texts(texts: Iterator[str] | Sequence[str]) -> Iterator[Fact]:
    for text in texts:
        yield from (Fact(one.unit, one.value) for one in numbers(text))


def _sums(text: str) -> Iterator[Fact]:
    """Of "a x b = c" and "ceil(a things / b) x c = d", which must be right, and of "c ... (a
    x b)"."""
    for found in re.finditer(r"\(((?:[\d,]+ x )+[\d,]+)\)", text):
        factors = _whole(found[1])
        if f"{prod(factors):,}" in text:
            yield from (Fact("", float(one)) for one in factors)
    rounded = re.sub(CEIL, lambda found: f"{-(-_whole(found[1])[0] // _whole(found[2])[0])}", text)
    for found in re.finditer(r"((?:[\d,]+(?: \w+)? x )+[\d,]+)[^.=()x]*= ([\d,]+)", rounded):
        factors, (result,) = _whole(found[1]), _whole(found[2])
        assert prod(factors) == result, f"{found[0]} is {prod(factors):,}"
        inside = chain.from_iterable(_whole(" ".join(pair)) for pair in re.findall(CEIL, text))
        yield from (Fact("", float(one)) for one in (*factors, result, *inside))


CEIL = r"ceil\(([\d,]+)[^/)]* / ([\d,]+)[^)]*\)"


def _whole(text: str) -> list[int]:
    return [int(one.replace(",", "")) for one in re.findall(r"(?<!\w)\d[\d,]*", text)]


def cells(study: View, section: str, caption: str, label: str) -> list[float]:
    """Values of a column of a table of the page; 0 for a dash."""
    found = (
        table
        for part in sections(study)
        if part.key == section
        for table in (*part.tables, *part.folded)
    )
    for table in found:
        if table.caption.startswith(caption):
            places = [place for place, column in enumerate(table.columns) if column.label == label]
            return [float(row[place].value or 0) for row in table.rows for place in places]  # type: ignore[arg-type]
    return []


def _layers(study: View) -> Iterator[Fact]:
    """A layer's share is the sum over its directions at one batch size, and the matrix and chart
    show the same."""
    sums: dict[tuple[str, str], float] = {}
    (view,) = (part.ledger for part in sections(study) if part.ledger is not None)
    for group in view.groups:
        for line in group.lines:
            batch, share = line.cells["batch"].text, line.cells["share"].value
            sums[group.layer, batch] = sums.get((group.layer, batch), 0.0) + float(share or 0)
    yield from (Fact("%", share * 100) for share in sums.values())


def _factor(study: View) -> Iterator[Fact]:
    """Time per sample at the first and the last batch size, the larger over the smaller."""
    times = [time for time in cells(study, "sweep", "Batch sweep", "time per sample") if time]
    yield Fact("", max(times[0], times[-1]) / min(times[0], times[-1]))


def _scatter(study: View) -> Iterator[Fact]:
    """The scatter of a step over its samples."""
    labels = ("fastest step", "slowest step", "time per step", "time per sample")
    for low, high, step, each in zip(
        *(cells(study, "sweep", "Batch sweep", label) for label in labels), strict=True
    ):
        if step:
            yield Fact("s", low * each / step / 1e9)
            yield Fact("s", high * each / step / 1e9)


def _copied(study: View) -> Iterator[Fact]:
    """Sums over the kinds of copies, and their part of the time of copies and kernels."""
    took, kernels = (
        sum(cells(study, "ranges", "Copies", "time")),
        sum(cells(study, "kernels", "Kernels", "time")),
    )
    yield from (Fact("s", took / 1e9), Fact("", sum(cells(study, "ranges", "Copies", "times"))))
    yield from (
        Fact("B", sum(cells(study, "ranges", "Copies", "bytes"))),
        Fact("%", 100 * took / (took + kernels)),
    )


def _executed(study: View) -> Iterator[Fact]:
    """A kernel's FLOPs by path over those executed."""
    whole = cells(study, "kernels", "Kernels", "executed")
    for path in ("fp32", "fp64", "fp16", "tensor"):
        each = cells(study, "kernels", "Kernels", path)
        yield from (
            Fact("%", 100 * part / total) for part, total in zip(each, whole, strict=False) if total
        )


def _values(section: str, caption: str, label: str) -> Callable[[View], Iterator[Fact]]:
    """Of a column of a table, as they are."""
    return lambda study: (Fact("", value) for value in cells(study, section, caption, label))


def _ratios(section: str, caption: str, *labels: str) -> Callable[[View], Iterator[Fact]]:
    """Of values of the last of these columns over those of the first one."""

    def rule(study: View) -> Iterator[Fact]:
        below, above = (cells(study, section, caption, label) for label in (labels[0], labels[-1]))
        yield from (Fact("", value / other) for value in above for other in below if other)

    return rule


def _clock(study: View) -> Iterator[Fact]:
    """What the host's clock would mean: 2 FLOPs a multiply-add over its time. The growth: last
    batch over the first."""
    work, times = (
        cells(study, "times", "CPU-timer times", label) for label in ("MAC", "CPU timer")
    )
    yield from (
        Fact("FLOP/s", 2 * one / time * 1e9) for one, time in zip(work, times, strict=True) if time
    )
    batches = [int(one) for one in dict(study.properties)["batch"].split()]
    yield Fact("", max(batches) / min(batches))


def _by_hand(study: View) -> Iterator[Fact]:
    """conv2 of mnist_cnn by its dimensions: 32 to 64 channels, 3x3, 24x24 outputs; 11x11 for the
    slip; 4 B a value."""
    batch, channels, weights = 64, 64, 64 * 32 * 3 * 3
    slipped, outputs = (batch * channels * side * side for side in (11, 24))
    sizes = (weights, channels, slipped, outputs)
    for value in (*sizes, weights + channels + slipped, weights + channels + outputs):
        yield from (Fact("", value), Fact("B", value * 4), Fact("KiB", value * 4 / 1024))
        yield Fact("", value * 4 / 1024)
    yield Fact("B", 4)
    yield Fact("", 120)  # 11 x 11, as it was worked out by hand


def _top(study: View) -> Iterator[Fact]:
    """Kernel time of a name over that of all."""
    times = cells(study, "kernels", "Kernels", "time")
    yield from (Fact("%", 100 * one / sum(times)) for one in times if one)


def _families(study: View) -> Iterator[Fact]:
    """Time and launches of the kernels of a family, and their share."""
    (table,) = (
        table
        for part in sections(study)
        for table in part.tables
        if part.key == "kernels" and table.caption.startswith("Kernels")
    )
    labels = [column.label for column in table.columns]
    sums: dict[str, list[float]] = {}
    for row in table.rows:
        cells_by_label = dict(zip(labels, row, strict=True))
        of_family = sums.setdefault(cells_by_label["family"].text, [0.0, 0.0])
        of_family[0] += float(cells_by_label["time"].value or 0)  # type: ignore[arg-type]
        of_family[1] += float(cells_by_label["launches"].value or 0)  # type: ignore[arg-type]
    total = sum(time for time, _ in sums.values())
    for time, launches in sums.values():
        yield from (Fact("s", time / 1e9), Fact("", launches), Fact("%", 100 * time / total))


def _idle(study: View) -> Iterator[Fact]:
    """The share of the time without a kernel, and of that with one without start-up."""
    for share in cells(study, "utilization", "Share of time with a kernel", "share"):
        yield Fact("%", 100 * (1 - share))
    columns = [
        cells(study, "utilization", "Time without a kernel", label) for label in ("start-up", "of")
    ]
    for starting, window in zip(*columns, strict=False):
        for running in cells(study, "utilization", "Share of time with a kernel", "a kernel runs"):
            yield Fact("%", 100 * running / (window - starting))


def _small_grids(study: View) -> Iterator[Fact]:
    """Shares of the time in launches with fewer blocks than the GPU has SMs, and of idle SMs."""
    (grid,) = (grid for part in sections(study) for grid in part.grids if grid.key == "launches")
    columns = {column["label"]: unpacked(column, grid.rows) for column in grid.columns}
    gpu = find_gpu_product(dict(study.properties)["device"])
    sms = gpu.sms if gpu else 132  # of the synthetic GPU
    times, blocks = columns["time"], [prod(map(int, text.split("×"))) for text in columns["grid"]]
    filled = [min(number / sms, 1) for number in blocks]
    small = sum(time for time, share in zip(times, filled, strict=True) if share < 1)
    idle = sum(time * (1 - share) for time, share in zip(times, filled, strict=True))
    yield from (Fact("", sms), Fact("%", 100 * small / sum(times)))
    yield Fact("%", 100 * idle / sum(times))


def _summed_copies(study: View) -> Iterator[Fact]:
    """The share of copies in sums of a report without launches."""
    copies, kernels = (
        sum(cells(study, "operators", f"{title}, summed", "device time"))
        for title in ("Copies and memsets", "Kernels")
    )
    yield Fact("s", copies * 1e-9)
    yield Fact("%", 100 * copies / (copies + kernels))


RULES: tuple[tuple[str, Callable[[View], Iterator[Fact]]], ...] = (
    ("takes more time than any layer|is the most expensive layer", _layers),
    ("with the batch size by a factor of", _factor),
    ("Time per sample", _scatter),
    ("copies and memsets? took|copy or memset took", _copied),
    ("^Copies and memsets take ", _summed_copies),
    (" executed .* of it is ", _executed),
    ("times the median", _ratios("latency", "Latency", "p50", "p95")),
    ("of the kernel time", _top),
    ("Kernels of the family", _families),
    (" runs no kernel for ", _idle),
    ("fewer blocks than the ", _small_grids),
    ("times as many as", _ratios("throughput", "Images per second", "images/s")),
    ("timed batches", _values("latency", "Latency", "batches")),
    ("more images/s", lambda study: iter([Fact("%", 100 * PAYS)])),
    ("a batch of [0-9]", _values("times", "CPU-timer times", "batch")),
    ("manual estimate of conv2", _by_hand),
    ("times of .* do not change with the batch", _clock),
)
"""(pattern of the sentence, what is worked out from the page's cells)."""
