"""A comparison in sentences and rows: for the page, the terminal, a pull request (Markdown), and programs (JSON)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.compare import records
from perfctl.orchestrator.analyse.compare.records import BETTER, NEWS, WORSE, Comparison, Number, Pair, Row
from perfctl.orchestrator.report.cells import Cell, amount, nothing, size_cell, text_cell, time_cell
from perfctl.orchestrator.report.files.documents import Part, markdown_text, of_view
from perfctl.orchestrator.report.numbers import DASH, full, si, size, time
from perfctl.orchestrator.report.tables import Column, Table
from perfctl.orchestrator.report.terminal import from_view
from perfctl.orchestrator.report.text_tables import add_rows, grid, text

if TYPE_CHECKING:
    from rich.console import RenderableType

MINUS = "−"
ROWS, ELSEWHERE = 12, "--out compare.html shows them"
"""Rows of a table in the terminal, and the place of the others."""
MARKDOWN_ROWS = 25
LEFT_OUT = ("workload", "why", "95 % interval")
"""Columns of the page that do not fit a terminal of 80 columns."""
Counts = tuple[Pair, Row]
"""A row that counts, and its pair."""
ROWS_SHOWN, SENTENCES = 400, 7
"""Rows of one table, those that count first; findings before "more"."""
BAR_REACH = 0.25
"""The bar beside a change ends at this change, or at the largest one of the table where that is less."""
STYLES = {"worse": WORSE, "better": BETTER, "news": NEWS}
"""Class of a row -> its verdicts, in the order of the rows."""
PARTS = (
    ("steps", "Steps", "step", ("time", "throughput"), "Time of a step and of its phases"),
    ("memory", "Memory", "step", ("memory",), "Memory figures of a run"),
    ("layers", "Layers", "layer", ("time",), "Time per step by layer and direction"),
    ("kernels", "Kernels", "kernel", ("time",), "Time per step by kernel"),
    ("flops", "Counted FLOPs", "", ("flops",), "Counted FLOPs of a step, exact; 1 multiply-add = 2 FLOPs"),
)
"""(key, title, level or "" for all, quantities, caption) of the tables."""


@dataclass(frozen=True, slots=True)
class Said:
    """Everything in sentences."""

    banner: str | None
    """Above everything, where runs that are not comparable were compared by force."""
    news: tuple[str, ...]
    """Changes, worst first; one sentence where nothing changed."""
    evidence: tuple[str | None, ...]
    """The part of the page that proves each of ``news``: "layers"; None where there is none."""
    warnings: tuple[str, ...]


def findings(found: Comparison) -> Said:
    """Regressions, improvements, new and gone; then everything that could not be compared."""
    several = len({pair.heading for pair in found.pairs}) > 1
    groups = _groups([*found.regressions, *found.improvements, *found.news])
    news = [sentence(group, several) for group in groups]
    parts = {"step": "steps", "layer": "layers"}
    keys = (group[0][1].key for group in groups)
    evidence: list[str | None] = [
        key.quantity if key.quantity in ("memory", "flops") else parts.get(key.level, "kernels") for key in keys
    ]
    if not found.regressions and not found.improvements:
        same = f"No time or memory figure is shown to have changed by more than {found.gate * 100:g} %."
        if found.judged == 0:
            same = "No time could be judged, so nothing is known to be as fast as it was."
        news.insert(0, same if any(pair.rows for pair in found.pairs) else "Nothing was compared.")
        evidence.insert(0, None)
    blocked = dict.fromkeys(one.sentence for pair in found.pairs for one in pair.blocked)
    banner = f"Not comparable, and compared by force: {'; '.join(blocked)}." if found.forced and blocked else None
    return Said(banner, tuple(news), tuple(evidence), tuple(_warnings(found)))


def _groups(counted: list[Counts]) -> list[list[Counts]]:
    """Rows of one thing and one verdict over all batch sizes; without kernels whose layer has the same verdict."""
    said = {(id(pair), row.key[3:5], row.verdict) for pair, row in counted if row.key.level == "layer"}
    groups: dict[tuple[object, ...], list[Counts]] = {}
    for pair, row in counted:
        if row.key.level != "kernel" or (id(pair), row.key[3:5], row.verdict) not in said:
            groups.setdefault((pair.heading, row.key, row.verdict), []).append((pair, row))
    return list(groups.values())


def sentence(group: list[Counts], several: bool = False) -> str:
    """The change of one thing at one or several batch sizes, the weightiest in full.

    "conv2 forward is 20.1 % slower at batch 64 (95 % interval +18.9 % to +21.2 %; 4.12 ms in A, 4.95 ms in B)."
    """
    pair, row = group[0]
    places = _places_of([pair for pair, _ in group], several)
    at = _places_of([pair]) if len(group) > 1 else ""
    if row.verdict in (records.NEW, records.GONE):
        number = row.b if row.verdict == records.NEW else row.a
        assert number is not None
        size = f", {amount_of(row, number.median)} a step{at}" if row.key.quantity == "time" else ""
        return f"{row.name} is {row.verdict}{places}: {records.MEANING[row.verdict]}{size}."
    assert row.a is not None and row.b is not None
    both = f"{amount_of(row, row.a.median)} in A, {amount_of(row, row.b.median)} in B"
    if row.verdict == records.DIFFERS:
        of = "a whole step" if row.key.level == "step" else row.name
        return f"Counted FLOPs of {of} differ{places}: {both}{at}."
    spread = f"95 % interval {around(row.interval)}" if row.interval else "the same in every repeat"
    rest = "".join(f", {_much(other)} at {one.batch}" for one, other in group[1:])
    return f"{row.name} is {_much(row)} {row.verdict}{_places_of([pair], several)} ({spread}; {both}){rest}."


def _much(row: Row) -> str:
    return percent_change(row.change or 0.0).lstrip("+" + MINUS)


def _places_of(pairs: list[Pair], several: bool = False) -> str:
    batches = ", ".join(pair.batch for pair in pairs if pair.batch)
    batch = f" at batch {batches}" if batches else ""
    return f"{batch} of {pairs[0].heading}" if several else batch


def _warnings(found: Comparison) -> list[str]:
    said = [f"Not comparable: {reason}. --force compares all the same." for reason in _blocked(found)]
    said += [f"Failed in B: {text}." for text in found.failed]
    said += [f"In {side} only: {'; '.join(only)}." for side, only in (("A", found.only_a), ("B", found.only_b)) if only]
    said += dict.fromkeys(f"{note}." for pair in found.pairs for note in pair.notes)
    why = Counter(row.why for pair in found.pairs for row in pair.rows if row.verdict == records.NOT_JUDGED)
    if why:
        ((reason, most),) = why.most_common(1)
        which = "" if most == why.total() else ", most of them because"
        total = sum(len(pair.rows) for pair in found.pairs)
        said.append(f"{why.total()} of {total} rows are not judged{which}: {reason}.")
    said += _hidden(found)
    warned = dict.fromkeys(one.sentence for pair in found.pairs for one in pair.differences if not one.blocks)
    if warned:
        said.append(f"Also not the same: {'; '.join(warned)}.")
    return said


def _hidden(found: Comparison) -> list[str]:
    wide = [
        (pair, row)
        for pair in found.pairs
        for row in pair.rows
        if row.key.quantity == "time" and row.verdict == records.NOT_SHOWN and row.interval is not None
        and max(-row.interval[0], row.interval[1]) > found.gate
    ]  # fmt: skip
    return [
        f"A change beyond the gate may hide in the spread of {len(wide)} of {found.judged} times: "
        f"{row.name}{_places_of([pair])} changed by {around(row.interval)}. More repeats narrow it."
        for pair, row in wide[:1]
    ]


def _blocked(found: Comparison) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found.not_comparable:
        groups.setdefault(tuple(f"{one.sentence} ({one.why})" for one in pair.blocked), []).append(pair)
    for why, pairs in groups.items():
        batches = ", ".join(pair.batch for pair in pairs if pair.batch)
        yield f"{pairs[0].heading}{f', batch {batches}' if batches else ''}: {'; '.join(why)}"


def quantity(kind: str, value: float) -> str:
    """A figure of this kind in words: "4.12 ms", "18 MB", "1.36 GFLOP", "3.9 k samples/s"."""
    if kind == "time":
        return time(value)
    if kind == "memory":
        return size(value)
    return si(value, "FLOP") if kind == "flops" else f"{si(value)} samples/s"


def amount_of(row: Row, value: float) -> str:
    """Counts stand in full: their difference may be in the last digit."""
    return full(value, "FLOP") if row.key.quantity == "flops" else quantity(row.key.quantity, value)


def percent_change(change: float) -> str:
    """ "+20.1 %", "−3.0 %", "0.0 %"; from a factor of 10 on "10.5 times"."""
    if change >= 9:
        return f"{si(change + 1)} times"
    text = f"{abs(change) * 100:.1f} %"
    if text == "0.0 %" and change:
        return "< 0.1 %" if change > 0 else f"> {MINUS}0.1 %"
    return text if not change else ("+" if change > 0 else MINUS) + text


def around(ends: tuple[float, float] | None) -> str:
    """ "+18.9 % to +21.2 %"."""
    return "" if ends is None else " to ".join(percent_change(end) for end in ends)


@dataclass(frozen=True, slots=True)
class Bar:
    """A change on a scale from -reach to +reach, in percent of its width."""

    left: float
    width: float
    middle: float
    style: str
    """worse, better, news or plain."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table."""

    cells: tuple[Cell, ...]
    bar: Bar | None
    style: str


@dataclass(frozen=True, slots=True)
class CompareTable:
    """One section."""

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    hidden: int
    notes: tuple[str, ...]
    change_at: int
    gate: float
    """Width of the gate on the bars' scale, in percent; 0 for exact counts, which have none."""


@dataclass(frozen=True, slots=True)
class CompareView:
    """The whole page."""

    title: str
    made_at: str
    sides: tuple[tuple[str, str, str], ...]
    """("A", label, runs and device), then B."""
    gate: str
    banner: str | None
    findings: tuple[tuple[str, str | None], ...]
    """(sentence, key of the table that proves it)."""
    more: tuple[tuple[str, str | None], ...]
    warnings: tuple[str, ...]
    tables: tuple[CompareTable, ...]
    facts: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...]
    """(heading, ((fact, A, B, "", "blocks" or "warns"), ...))."""
    words: tuple[tuple[str, str], ...]
    """(verdict, its meaning), those that occur."""


def compare_view(found: Comparison, *, made_at: str) -> CompareView:
    """The record of templates/compare.html."""
    said = findings(found)
    news = tuple(zip(said.news, said.evidence, strict=True))
    used = dict.fromkeys(row.verdict for pair in found.pairs for row in pair.rows)
    return CompareView(
        f"{found.b.label} against {found.a.label}", made_at, (_side("A", found), _side("B", found)),
        f"{found.gate * 100:g} %", said.banner, news[:SENTENCES], news[SENTENCES:], said.warnings,
        tuple(tables(found)), tuple(_facts(found.pairs)),
        tuple((verdict, meaning) for verdict, meaning in records.MEANING.items() if verdict in used),
    )  # fmt: skip


def tables(found: Comparison) -> Iterable[CompareTable]:
    """One table a part that has rows; every pair's rows in it, by batch size."""
    several = len({pair.heading for pair in found.pairs}) > 1
    for key, title, level, quantities, caption in PARTS:
        chosen = [
            (pair, row)
            for pair in found.pairs
            for row in pair.rows
            if row.key.quantity in quantities and level in ("", row.key.level)
        ]
        if chosen:
            yield _table(key, title, caption, chosen, found.gate, several)


def _table(key: str, title: str, caption: str, chosen: Sequence[Counts], gate: float, several: bool) -> CompareTable:
    if key in ("kernels", "layers"):
        order = [*STYLES.values(), (), (records.NOT_JUDGED,)]  # the rest is third
        rank = {verdict: place for place, verdicts in enumerate(order) for verdict in verdicts}
        chosen = sorted(chosen, key=lambda item: (rank.get(item[1].verdict, 3), -item[1].weight))
    shown = chosen[:ROWS_SHOWN]
    ends = [abs(end) for _, row in shown for end in (row.change, *(row.interval or ())) if end is not None]
    reach = min(max([*ends, gate * 1.5, 0.001]), max(BAR_REACH, gate * 1.5))
    base = "B" if key == "memory" else "FLOP" if key == "flops" else "ns"
    heads = [
        *([Column("workload", style="text")] if several else []), Column("batch"),
        Column("what", style="code" if key == "kernels" else "text"), Column("A", base=base), Column("B", base=base),
        Column("change"), Column("95 % interval", note="of this row alone"), Column("verdict", style="text"),
    ]  # fmt: skip
    reasons = {row.why if row.verdict == records.NOT_JUDGED else None for _, row in chosen}
    common = reasons.pop() if len(reasons) == 1 else None
    lines = tuple(_line(pair, row, reach, several, said=common is None) for pair, row in shown)
    notes = (f"Not judged: {common}.",) if common else ()
    if not common:
        heads.append(Column("why", style="text"))
    band = 0 if key == "flops" else round(100 * gate / reach, 2)
    hidden = len(chosen) - len(lines)
    return CompareTable(key, title, caption, tuple(heads), lines, hidden, notes, 5 if several else 4, band)


def _line(pair: Pair, row: Row, reach: float, several: bool, *, said: bool) -> Line:
    meaning = records.MEANING[row.verdict]
    if row.p is not None and row.adjusted is not None:
        meaning += f"; p = {row.p:.2g} alone, {row.adjusted:.2g} among all rows of its level"
    cells = [text_cell(pair.heading)] if several else []
    cells += [
        text_cell(pair.batch or DASH), Cell(name_of(row), row.basis, value=row.name),
        _value(row, row.a, "A"), _value(row, row.b, "B"),
        nothing(row.why) if row.change is None else Cell(percent_change(row.change), value=round(row.change, 6)),
        text_cell(around(row.interval)) if row.interval else nothing(row.why), Cell(row.verdict, meaning, value=row.verdict),
        *([text_cell(row.why)] if said else []),
    ]  # fmt: skip
    style = next((style for style, verdicts in STYLES.items() if row.verdict in verdicts), "")
    return Line(tuple(cells), _bar(row, reach, style), style)


def name_of(row: Row) -> str:
    """The name, with the grids where they changed, else with the launches where their number changed."""
    if row.a is None or row.b is None:
        return row.name
    if set(row.a.grids) != set(row.b.grids):
        a, b = (", ".join(side.grids[:3]) + (", ..." if len(side.grids) > 3 else "") for side in (row.a, row.b))
        return f"{row.name} (grid {a or 'not known'} in A, {b or 'not known'} in B)"
    a_many, b_many = row.a.launches, row.b.launches
    if a_many is None or b_many is None or a_many == b_many:
        return row.name
    return f"{row.name} ({a_many:g} launches in A, {b_many:g} in B)"


def _value(row: Row, number: Number | None, side: str) -> Cell:
    if number is None:
        return nothing(f"not in {side}")
    if row.key.quantity == "memory":
        return size_cell(number.median)
    if row.key.quantity != "time":
        return amount(number.median, "FLOP" if row.key.quantity == "flops" else "")
    note = f"median of {number.runs} run{'s' if number.runs > 1 else ''}, {number.steps} values"
    if number.runs > 1:
        note += f"; runs from {time(number.low)} to {time(number.high)}"
    if number.interval is not None:
        note += f"; 95 % interval {time(number.interval[0])} to {time(number.interval[1])}"
    return time_cell(number.median, note=note)


def _bar(row: Row, reach: float, style: str) -> Bar | None:
    if row.change is None:
        return None
    low, high = row.interval or (row.change, row.change)
    left, right, middle = (50 + 50 * min(max(end / reach, -1), 1) for end in (low, high, row.change))
    return Bar(round(left, 2), round(max(right - left, 0), 2), round(middle, 2), style or "plain")


def _side(which: str, found: Comparison) -> tuple[str, str, str]:
    side = found.a if which == "A" else found.b
    used = [run for pair in found.pairs for run in (pair.runs_a if which == "A" else pair.runs_b)]
    devices = dict.fromkeys(run.device.name or run.device.kind for run in used if run.device)
    started = sorted(run.started_at for run in used if run.started_at)
    origins = sorted({run.origin for run in used})
    of = f" of {len(side.runs)}, for the other side has none like it" if side.runs and not used else ""
    parts = [
        f"{len(used)} run{'s' if len(used) != 1 else ''}{of}", ", ".join(devices), started[0][:10] if started else "",
        "" if origins in ([], ["measured"]) else " and ".join(origins),
    ]  # fmt: skip
    return which, side.label, ", ".join(part for part in parts if part)


def _facts(pairs: Sequence[Pair]) -> Iterable[tuple[str, tuple[tuple[str, str, str, str], ...]]]:
    """Every fact, those that differ first; equal tables of several batch sizes once."""
    seen: dict[tuple[tuple[str, str, str, str], ...], list[str]] = {}
    for pair in pairs:
        differ = {found.fact for found in pair.differences}
        lines = [(one.fact, one.a, one.b, "not comparable" if one.blocks else "differs") for one in pair.differences]
        lines += [(name, a, b, "") for name, a, b in pair.facts if name not in differ and name != "batch"]
        title = f"{pair.heading}, batch {pair.batch}" if pair.batch else pair.heading
        seen.setdefault(tuple(lines), []).append(title)
    for table, titles in seen.items():
        yield "; ".join(titles), table


def terminal(found: Comparison) -> list[RenderableType]:
    """Sentences, then the tables of the page cut to what fits 80 columns."""
    view = compare_view(found, made_at="")
    out: list[RenderableType] = [text(f"{view.title}   gate {view.gate}", "bold")]
    out += [text(f"{side}  {label}: {runs}") for side, label, runs in view.sides]
    if view.banner:
        out.append(text(f"! {view.banner}", "bold"))
    sentences = grid(("", "right"), ("", "left"), heads=False)
    news = [sentence for sentence, _ in (*view.findings, *view.more)]
    add_rows(sentences, [(str(number), sentence) for number, sentence in enumerate(news[:ROWS], 1)])
    if (left := len(news) - ROWS) > 0:
        sentences.add_row("", text(f"and {left} more: {ELSEWHERE}", "dim"))
    add_rows(sentences, [("!", sentence) for sentence in view.warnings])
    return [*out, sentences, *map(_shown, view.tables)]


def _table_of(view: CompareTable) -> Table:
    at = [column.label for column in view.columns].index("verdict")
    rows = [(*line.cells[:at], replace(line.cells[at], style=line.style), *line.cells[at + 1 :]) for line in view.lines]
    return Table(view.columns, tuple(rows), view.title, view.hidden, notes=view.notes)


def _shown(view: CompareTable) -> RenderableType:
    numbers = [column.label for column in view.columns if column.style == "num"]
    return from_view(_table_of(view), ROWS, ELSEWHERE, left_out=LEFT_OUT, whole=numbers, code=32)


def markdown(found: Comparison) -> str:
    """A summary for a pull request: the sentences of the page, and the rows that count as a table."""
    said = findings(found)
    a, b = _escaped(found.a.label), _escaped(found.b.label)
    worse, better, news = (len(found.rows(group)) for group in (WORSE, BETTER, NEWS))
    lines = [
        f"### perfctl compare: {b} against {a}",
        "",
        f"**{worse} worse, {better} better, {news} new, gone or different**; gate {found.gate * 100:g} %. "
        f"A is {a}, B is {b}.",
        "",
    ]
    if said.banner:
        lines += [f"> **{_escaped(said.banner)}**", ""]
    lines += [f"- {_escaped(sentence)}" for sentence in said.news[:SENTENCES]]
    if len(said.news) > SENTENCES:
        lines.append(f"- and {len(said.news) - SENTENCES} more")
    lines += [f"- ⚠ {_escaped(sentence)}" for sentence in said.warnings]
    whole = (("step", "time"), ("step", "memory"))
    steps = [(pair, row) for pair in found.pairs for row in pair.rows if row.key[:2] in whole]
    counted = [*found.regressions, *found.improvements, *found.news]
    for title, chosen in (("What counts", counted), ("Steps and memory", steps)):
        if chosen:
            lines += ["", f"<details><summary>{title}</summary>", "", *_markdown_rows(chosen), "", "</details>"]
    return "\n".join(lines) + "\n"


def _markdown_rows(chosen: list[tuple[Pair, Row]]) -> list[str]:
    lines = ["| batch | what | A | B | change | 95 % interval | verdict |", "|--:|---|--:|--:|--:|--:|---|"]
    for pair, row in chosen[:MARKDOWN_ROWS]:
        values = (DASH if side is None else quantity(row.key.quantity, side.median) for side in (row.a, row.b))
        change = DASH if row.change is None else percent_change(row.change)
        cells = (pair.batch or DASH, name_of(row), *values, change, around(row.interval) or DASH, row.verdict)
        lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
    if len(chosen) > MARKDOWN_ROWS:
        lines.append(f"\nand {len(chosen) - MARKDOWN_ROWS} more")
    return lines


def _escaped(words: str) -> str:
    """At most 300 characters of a name or sentence, as Markdown takes it for text."""
    return markdown_text(words if len(words) <= 300 else words[:299] + "…")


def document(found: Comparison) -> list[Part]:
    """The sentences and whole tables of the page, for Markdown and LaTeX."""
    view = compare_view(found, made_at="")
    news = tuple(sentence for sentence, _ in (*view.findings, *view.more))
    banner = (view.banner,) if view.banner else ()
    sides = tuple(f"{side} is {label}: {runs}" for side, label, runs in view.sides)
    said = (f"Gate {view.gate}.", *sides, *banner, *news, *view.warnings)
    return [Part(view.title, said), *(of_view(_table_of(one)) for one in view.tables)]


def as_json(found: Comparison) -> dict[str, Any]:
    """The whole comparison for programs. Times in ns, memory in bytes, FLOPs with 1 multiply-add = 2."""
    said = findings(found)
    return {
        "a": {"label": found.a.label, "runs": [run.id for pair in found.pairs for run in pair.runs_a]},
        "b": {"label": found.b.label, "runs": [run.id for pair in found.pairs for run in pair.runs_b]},
        "gate": found.gate, "forced": found.forced, "regressions": len(found.regressions),
        "improvements": len(found.improvements), "news": len(found.news), "not_comparable": len(found.not_comparable),
        "findings": list(said.news), "warnings": list(said.warnings), "only_a": list(found.only_a),
        "only_b": list(found.only_b), "failed_in_b": list(found.failed),
        "pairs": [
            {"heading": pair.heading, "batch_a": pair.batch_a, "batch_b": pair.batch_b, "comparable": not pair.blocked,
             "differences": [asdict(one) for one in pair.differences], "rows": [_row_json(row) for row in pair.rows]}
            for pair in found.pairs
        ],
    }  # fmt: skip


def _row_json(row: Row) -> dict[str, Any]:
    fields = ("name", "change", "interval", "p", "adjusted", "verdict", "why", "basis")
    sides = {side: None if number is None else asdict(number) for side, number in (("a", row.a), ("b", row.b))}
    return {**row.key._asdict(), **{name: getattr(row, name) for name in fields}, **sides}
