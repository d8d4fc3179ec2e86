"""The sentences of a comparison, the same on the page, in the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.analyse.compare_records import (
    DIFFERS,
    GONE,
    MEANING,
    NEW,
    NOT_JUDGED,
    NOT_SHOWN,
    Comparison,
    Key,
    Pair,
    Row,
)
from perfctl.orchestrator.report.numbers import Cell, full, si, size, time

MINUS = "−"
Counts = tuple[Pair, Row]
"""A row that counts, and where it stands."""


@dataclass(frozen=True, slots=True)
class Said:
    """Everything in sentences."""

    banner: str | None
    """Over everything, where what is not comparable was compared by force."""
    news: tuple[str, ...]
    """What counts, worst first; one sentence where nothing does."""
    evidence: tuple[str | None, ...]
    """The part of the page behind each of ``news``: "layers"; None where there is none."""
    warnings: tuple[str, ...]


def findings(found: Comparison) -> Said:
    """Regressions, improvements, what is new or gone; then what could not be compared."""
    several = len({pair.heading for pair in found.pairs}) > 1
    counted = [*found.regressions, *found.improvements, *found.news]
    groups = _groups(counted)
    nothing = [] if found.regressions or found.improvements else _nothing(found)
    news = [*nothing, *(sentence(group, several) for group in groups)]
    evidence = [*(None for _ in nothing), *(part_of(group[0][1].key) for group in groups)]
    banner = None
    if found.forced and (blocked := reasons(tuple(pair for pair in found.pairs if pair.blocked))):
        banner = f"Not comparable, and compared by force: {'; '.join(blocked)}."
    return Said(banner, tuple(news), tuple(evidence), tuple(_warnings(found)))


def part_of(key: Key) -> str:
    """The part of the page that a row stands in."""
    if key.quantity in ("memory", "flops"):
        return key.quantity
    return {"step": "steps", "layer": "layers"}.get(key.level, "kernels")


def _nothing(found: Comparison) -> list[str]:
    if not any(pair.rows for pair in found.pairs):
        return ["Nothing was compared."]
    if found.judged == 0:
        return ["No time could be judged, so nothing is known to be as fast as it was."]
    return [f"No time or memory figure is shown to have changed by more than {found.gate * 100:g} %."]


def _groups(counted: list[Counts]) -> list[list[Counts]]:
    """Rows of one thing and one verdict, all batch sizes together. A kernel that goes the way of its layer is not said."""
    said = {(id(pair), row.key[3:5], row.verdict) for pair, row in counted if row.key.level == "layer"}
    groups: dict[tuple[object, ...], list[Counts]] = {}
    for pair, row in counted:
        if row.key.level != "kernel" or (id(pair), row.key[3:5], row.verdict) not in said:
            groups.setdefault((pair.heading, row.key, row.verdict), []).append((pair, row))
    return list(groups.values())


def sentence(group: list[Counts], several: bool = False) -> str:
    """What happened to one thing at one or several batch sizes, the weightiest in full.

    "conv2 forward is 20.1 % slower at batch 64 (95 % interval +18.9 % to +21.2 %; 4.12 ms in A, 4.95 ms in B)."
    """
    pair, row = group[0]
    where = _where([pair for pair, _ in group], several)
    at = f" at batch {pair.batch}" if len(group) > 1 and pair.batch else ""
    if row.verdict in (NEW, GONE):
        number = row.b if row.verdict == NEW else row.a
        assert number is not None
        size = f", {amount_of(row, number.median)} a step{at}"
        return (
            f"{row.name} is {row.verdict}{where}: {MEANING[row.verdict]}{size if row.key.quantity == 'time' else ''}."
        )
    assert row.a is not None and row.b is not None
    both = f"{amount_of(row, row.a.median)} in A, {amount_of(row, row.b.median)} in B"
    if row.verdict == DIFFERS:
        of = "a whole step" if row.key.level == "step" else row.name
        return f"Counted FLOPs of {of} differ{where}: {both}{at}."
    spread = f"95 % interval {around(row.interval)}" if row.interval else "the same in every repeat"
    rest = "".join(f", {_much(other)} at {one.batch}" for one, other in group[1:])
    return f"{row.name} is {_much(row)} {row.verdict}{_where([pair], several)} ({spread}; {both}){rest}."


def _much(row: Row) -> str:
    return percent_change(row.change or 0.0).lstrip("+" + MINUS)


def _where(pairs: list[Pair], several: bool) -> str:
    batches = ", ".join(pair.batch for pair in pairs if pair.batch)
    batch = f" at batch {batches}" if batches else ""
    return f"{batch} of {pairs[0].heading}" if several else batch


def _warnings(found: Comparison) -> list[str]:
    said = [f"Not comparable: {reason}. --force compares all the same." for reason in _blocked(found)]
    said += [f"Failed in B: {text}." for text in found.failed]
    for side, alone in (("A", found.only_a), ("B", found.only_b)):
        if alone:
            said.append(f"In {side} only: {'; '.join(alone)}.")
    said += dict.fromkeys(f"{note}." for pair in found.pairs for note in pair.notes)
    left = [(pair, row) for pair in found.pairs for row in pair.rows if row.verdict == NOT_JUDGED]
    if left:
        why: dict[str, int] = {}
        for _, row in left:
            why[row.why] = why.get(row.why, 0) + 1
        reason, count = max(why.items(), key=lambda item: item[1])
        rest = "" if count == len(left) else f", most of them because: {reason}"
        total = sum(len(pair.rows) for pair in found.pairs)
        said.append(f"{len(left)} of {total} rows are not judged{rest or f': {reason}'}.")
    said += _hidden(found)
    warned = dict.fromkeys(one.sentence for pair in found.pairs for one in pair.differences if not one.blocks)
    if warned:
        said.append(f"Also not the same: {'; '.join(warned)}.")
    return said


def _hidden(found: Comparison) -> list[str]:
    """Where the spread is so wide that a change beyond the gate would not be seen: no change shown is then no proof."""
    open_rows = [
        (pair, row)
        for pair in found.pairs
        for row in pair.rows
        if row.key.quantity == "time" and row.verdict == NOT_SHOWN and row.interval is not None
        and max(-row.interval[0], row.interval[1]) > found.gate
    ]  # fmt: skip
    if not open_rows:
        return []
    pair, row = open_rows[0]
    where = f" at batch {pair.batch}" if pair.batch else ""
    return [
        f"A change beyond the gate may hide in the spread of {len(open_rows)} of {found.judged} times: "
        f"{row.name}{where} changed by {around(row.interval)}. More repeats narrow it."
    ]


def _blocked(found: Comparison) -> list[str]:
    """One sentence for all batch sizes that the same facts block."""
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found.not_comparable:
        groups.setdefault(tuple(f"{one.sentence} ({one.why})" for one in pair.blocked), []).append(pair)
    return [f"{_places(pairs)}: {'; '.join(why)}" for why, pairs in groups.items()]


def _places(pairs: list[Pair]) -> str:
    batches = ", ".join(pair.batch for pair in pairs if pair.batch)
    return f"{pairs[0].heading}, batch {batches}" if batches else pairs[0].heading


def reasons(pairs: tuple[Pair, ...]) -> list[str]:
    """What blocks these pairs, each said once."""
    return list(dict.fromkeys(one.sentence for pair in pairs for one in pair.blocked))


def batch_of(pair: Pair) -> str:
    return pair.batch


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


def verdict_of(row: Row) -> Cell:
    """The verdict, with what it means and how sure it is."""
    title = MEANING[row.verdict]
    if row.p is not None and row.adjusted is not None:
        title += f"; p = {row.p:.2g} alone, {row.adjusted:.2g} among all rows of its level"
    return Cell(row.verdict, title, value=row.verdict)
