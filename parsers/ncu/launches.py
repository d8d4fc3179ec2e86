"""Launches and their metric cells, as both CSV pages and the console text of ncu fill them. A
file's decimal style is known only at its end, so cells are kept as printed
(:mod:`perfctl.parsers.ncu.launches`) and become numbers when the counters are read."""

from __future__ import annotations

import json
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

from perfctl.parsers.ncu.advice import Rules
from perfctl.parsers.ncu.agreement import Shapes, doubts
from perfctl.parsers.ncu.facts import (
    BLOCKS,
    FACT_NAMES,
    KERNEL_FACTS,
    Facts,
    counts_flops,
    device_of,
    kernel_fields,
    kernel_of,
    name_gaps,
    place_of,
    with_steps,
    worked_out,
)
from perfctl.parsers.ncu.log import diagnostics, gaps, kernel_gaps, no_values, no_values_of
from perfctl.parsers.text.lines import Log, readable
from perfctl.parsers.text.numbers import (
    AmbiguousNumber,
    StyleEvidence,
    base_unit,
    read_value,
    scaled,
)
from perfctl.records.bulk import NumberedCounters
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Kernel, Report

TEXTS = 400_000
"""Distinct texts of a part, and one launch more: some 60 MB."""
CELLS = 4_000_000
"""Cells of a part, and one launch more: 48 MB."""
LAUNCHES = 100_000
"""Of a file; their names and facts stay in memory, some 2.5 KB each."""


class Part(NamedTuple):
    """Some cells, one array per item, and the texts that the numbers in ``text`` refer to."""

    launch: array[int]
    key: array[int]
    text: array[int]
    texts: list[str]


class _Numbers(dict[str, int]):
    """Printed text -> its number; a new text gets the next number and goes to ``texts``."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self._texts)
        self._texts.append(text)
        return number


class _Endings(dict[str, int]):
    """End of a line after the quote that opens its last cell -> number of that cell's text. Raises
    KeyError when the end is not one complete cell without quotes inside."""

    def __init__(self, ids: _Numbers) -> None:
        super().__init__()
        self._ids = ids

    def __missing__(self, ending: str) -> int:
        text = ending.rstrip("\r\n,")
        if text.find('"') != len(text) - 1:
            raise KeyError(ending)
        number = self[ending] = self._ids[text[:-1]]
        return number


class Cells:
    """All cells of a file, in its order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []
        self.launch, self.key, self.text = self._numbers = array("I"), array("I"), array("I")
        self.ids = _Numbers(self.texts)
        """Text -> its number in this part."""
        self.endings = _Endings(self.ids)
        """The same for readers of whole lines. Emptied with the texts."""
        self._evidence = StyleEvidence()
        self._file: IO[bytes] | None = None
        self._sizes: list[tuple[int, int]] = []
        """Of each part in the file: cells, bytes of its texts."""
        self.shapes = Shapes()

    def end(self, launch: int) -> None:
        """All cells since the last call are of this launch. Raises ReportError where there are too
        many launches, or the temporary file has no room."""
        if new := len(self.key) - len(self.launch):
            self.shapes.add(launch, self.key[-new:])
            self.launch.extend(repeat(launch, new))
        if len(self.texts) > TEXTS or len(self.key) > CELLS:
            self._put_away()
        if launch >= LAUNCHES:
            reason = f"it holds more than {LAUNCHES:,} launches, which do not fit into memory"
            remedy = "Split it between two launches and put the header above each part"
            raise ReportError(self.path, "ncu", reason, remedy)

    def evidence(self) -> StyleEvidence:
        """Evidence of all texts for the decimal style; call it once, at the end."""
        for text in self.texts:
            self._evidence.add(text)
        return self._evidence

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order; one at a time is in memory."""
        at = 0
        for count, size in self._sizes:
            assert self._file is not None
            self._file.seek(at)
            columns = array("I"), array("I"), array("I")
            for numbers in columns:
                numbers.fromfile(self._file, count)
            texts = json.loads(self._file.read(size))
            at = self._file.tell()
            yield Part(*columns, texts)
        yield Part(*self._numbers, self.texts)

    def _put_away(self) -> None:
        self.evidence()
        folder = tempfile.gettempdir()
        remedy = "Set TMPDIR to a folder with at least as much free space as the report has bytes"
        reason = f"metrics that do not fit into memory cannot be written to {folder}"
        with readable(self.path, "ncu", remedy, reason):
            self._write(json.dumps(self.texts).encode("ascii"))
        for numbers in self._numbers:
            del numbers[:]
        for kept in (self.texts, self.ids, self.endings):
            kept.clear()

    def _write(self, texts: bytes) -> None:
        if self._file is None:
            # lives as long as the cells
            self._file = tempfile.TemporaryFile(prefix="perfctl-ncu-")  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        self._sizes.append((len(self.key), len(texts)))
        for numbers in self._numbers:
            numbers.tofile(self._file)
        self._file.write(texts)
        self._file.flush()


CHUNK = 1024

NO_VALUE = frozenset({"", "n/a", "N/A", "no data", "nan", "-nan", "inf", "-inf"})
"""Texts that ncu prints instead of a missing value."""

_NUMBERED = ("stream", "device_index", "process", "context")
"""Fields of Kernel that are numbers in the identity cells."""

Read = tuple[int | float | None, str | None]
"""A number, or None and the state of the gap where a number was expected."""

_REASONS = {
    "not_available": (
        'ncu printed "{text}" in place of {count} values: this GPU or ncu version has no such '
        "metric, or "
        "it could not be collected"
    ),
    "ambiguous": (
        '{count} values such as "{text}" may be whole numbers or fractions, and nothing in the '
        "file says "
        "which; export it again with LC_ALL=C"
    ),
    "unreadable": (
        '{count} values such as "{text}" do not fit the number format of the rest of the file; '
        "export it "
        "again with LC_ALL=C"
    ),
}


class Launch(NamedTuple):
    """Identity cells of one launch, as printed; "" where the page has no such column."""

    order: int
    """ID; in console text, which has none, the place in the text."""
    name: str
    stream: str = ""
    block: str = ""
    grid: str = ""
    device: str = ""
    capability: str = ""
    process: str = ""
    context: str = ""
    push_pop: str = ""
    start_end: str = ""


class Table:
    """Launches and metric cells of one file."""

    def __init__(self, path: Path) -> None:
        self.launches: list[Launch] = []
        self.keys: list[tuple[str, str, str | None]] = []
        self._key_ids: dict[tuple[str, str, str | None], int] = {}
        self.cells = Cells(path)
        self.rules = Rules()
        self.counted: set[int] = set()
        """Launches for which a metric that FLOPs are made from has a number."""
        self._flops: set[int] = set()
        self.facts: dict[int, dict[int, str]] = {}
        """Of the cells in FACT_NAMES: key -> launch -> printed text, the first where there
        are several."""

    def key(self, name: str, unit: str, section: str | None) -> int:
        """Number of a metric in one unit and section; new ones get one."""
        key = (name, unit, section)
        number = self._key_ids.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            if name in FACT_NAMES:
                self.facts[number] = {}
            if counts_flops(name):
                self._flops.add(number)
        return number

    def add(self, launch: int, keys: Sequence[int], texts: Sequence[int]) -> None:
        """Take in cells of a launch: the numbers of their metrics, and of their texts
        in ``cells``."""
        self.cells.key.extend(keys)
        self.cells.text.extend(texts)
        if launch not in self.counted and not self._flops.isdisjoint(keys):
            pairs = zip(keys, texts, strict=True)
            if any(
                key in self._flops and self.cells.texts[text][:1].isdigit() for key, text in pairs
            ):
                self.counted.add(launch)
        if self.facts.keys().isdisjoint(keys):
            return
        for key, text in zip(keys, texts, strict=True):
            if key in self.facts:
                self.facts[key].setdefault(launch, self.cells.texts[text])


class Finished:
    """A table whose numbers have been read: gives the records of a Report. ``counters`` can be read
    many times."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.style = table.cells.evidence().decide()
        self._units = [base_unit(unit) for _, unit, _ in table.keys]
        self._is_scaled = any(scale != 1 for _, scale in self._units)
        self._order = _ranks([launch.order for launch in table.launches])
        self._facts = self._read_facts()
        self._kept: tuple[list[int | float | None], dict[int, str]] | None = None

    def _read(self, text: str) -> Read:
        """The number in a printed text; where there is none for a reason, the state of the gap."""
        try:
            number = read_value(text, self.style)
        except AmbiguousNumber:
            return None, "ambiguous"
        if number is not None:
            return number, None
        if text.strip().lower() in NO_VALUE:
            return None, "not_available"
        return None, None if text.strip("0123456789.,+-") else "unreadable"

    def _read_part(self, part: Part) -> tuple[list[int | float | None], dict[int, str]]:
        """The number of each text of a part, and the states of the texts that have no number for
        a reason."""
        in_memory = part.texts is self._table.cells.texts
        if in_memory and self._kept is not None:
            return self._kept
        read = list(map(self._read, part.texts))
        found = (
            [number for number, _ in read],
            {at: state for at, (_, state) in enumerate(read) if state is not None},
        )
        if in_memory:
            self._kept = found
        return found

    def report(
        self, form: str, log: Log, notes: Iterable[Diagnostic], printed: str = "CSV"
    ) -> Report:
        """The whole report; ``printed`` says what a file of this form is called."""
        kernels = self.kernels()
        no_grid = f"the {printed} has no Grid Size for a launch (ncu before 2023 prints none)"
        failed = [launch.name for launch in self._table.launches if _is_failed(launch.grid)]
        read = self._printed()
        missing = [*self.gaps(), *kernel_gaps(kernels, no_grid, read, failed)]
        missing += worked_out(kernels, (name for name, *_ in self._table.keys))
        if all(kernel.registers is None for kernel in kernels):
            missing += no_values_of("registers", "launch__registers_per_thread", kernels, read)
        return Report(
            tool="ncu",
            path=self._table.cells.path,
            form=form,
            devices=self.devices(),
            kernels=kernels,
            counters=self.counters(),
            gaps=(*missing, *gaps(log, printed), *self._table.rules.gaps()),
            diagnostics=(
                *diagnostics(log),
                *self._rounding(),
                *notes,
                *self._doubts(kernels, printed),
            ),
            advice=self._table.rules.ordered(self._order),
        )

    def counters(self) -> NumberedCounters:
        """In the order of the file."""
        keys = zip(self._table.keys, self._units, strict=True)
        return NumberedCounters(
            [(name, unit.name, section) for (name, _, section), unit in keys], self._columns
        )

    def _columns(self) -> Iterator[Sequence[Sequence[Any]]]:
        table = self._table
        scales = [unit.scale for unit in self._units]
        for part in table.cells.parts():
            read, _ = self._read_part(part)
            for first in range(0, len(part.key), CHUNK):
                cut = slice(first, first + CHUNK)
                ranks = list(map(self._order.__getitem__, part.launch[cut]))
                yield ranks, part.key[cut], *self._values(part, cut, read, scales)

    def _values(
        self, part: Part, cut: slice, read: list[int | float | None], scales: list[int]
    ) -> tuple[list[int | float | None], list[str | None]]:
        printed, texts = part.text[cut], part.texts
        values = list(map(read.__getitem__, printed))
        if self._is_scaled:
            for at, key in enumerate(part.key[cut]):
                if scales[key] != 1 and values[at] is not None:
                    values[at] = scaled(texts[printed[at]], values[at], self.style, scales[key])
        if None not in values:
            return values, [None] * len(values)
        pairs = zip(values, printed, strict=True)
        return values, [texts[text] or None if value is None else None for value, text in pairs]

    def kernels(self) -> list[Kernel]:
        """The launches in the order of their IDs."""
        numbered = enumerate(zip(self._order, self._table.launches, strict=True))
        counted = self._table.counted
        return with_steps(
            sorted(
                (
                    _kernel(*launch, self._facts.get(index, {}), index in counted)
                    for index, launch in numbered
                ),
                key=lambda kernel: kernel.launch,
            )
        )

    def devices(self) -> tuple[Device, ...]:
        """The devices the launches ran on, as far as the file tells them apart."""
        found: dict[int, Device] = {}
        for index, launch in enumerate(self._table.launches):
            at = int(launch.device) if _is_whole(launch.device) else None
            if at in found:
                continue
            known = self._facts.get(index, {})
            if at is None:
                number = kernel_fields(known).get("device_index")
                at = number if isinstance(number, int) else 0
            device = device_of(at, launch.capability or None, known)
            if device.name or device.compute_capability:
                found.setdefault(at, device)
        return tuple(found[at] for at in sorted(found))

    def _read_facts(self) -> dict[int, Facts]:
        facts: dict[int, Facts] = {}
        for key, texts in self._table.facts.items():
            name, unit = self._table.keys[key][0], self._units[key]
            known: Facts = {}
            for launch, text in texts.items():
                if text not in known:
                    value, state = self._read(text)
                    number = scaled(text, value, self.style, unit.scale)
                    known[text] = text if number is None and state is None else number, unit.name
                facts.setdefault(launch, {}).setdefault(name, known[text])
        return facts

    def _printed(self) -> dict[str, tuple[str, str]]:
        """Field of Kernel -> (its metric, the text in place of the first value that is none)."""
        found: dict[str, tuple[str, str]] = {}
        for key, texts in self._table.facts.items():
            name = self._table.keys[key][0]
            field = next((field for field, names in KERNEL_FACTS.items() if name in names), "")
            bad = next(
                (text for text in texts.values() if self._read(text)[1] == "not_available"), None
            )
            if field and bad is not None:
                found.setdefault(field, (name, bad))
        return found

    def gaps(self) -> list[Gap]:
        """One gap for each metric and reason that has cells without a number where one was
        expected, and for names."""
        counts: dict[tuple[str, str], int] = {}
        examples: dict[tuple[str, str], str] = {}
        for part in self._table.cells.parts():
            _, states = self._read_part(part)
            for key, text in zip(part.key, part.text, strict=True) if states else ():
                if text in states:
                    about = (self._table.keys[key][0], states[text])
                    counts[about] = counts.get(about, 0) + 1
                    examples.setdefault(about, part.texts[text])
        found = name_gaps([launch.name for launch in self._table.launches])
        for (name, state), count in counts.items():
            reason = _REASONS[state].format(text=examples[name, state], count=count)
            found.append(Gap(f"counter:{name}", state, reason))
        missing = sum(count for (_, state), count in counts.items() if state == "not_available")
        total = sum(len(part.key) for part in self._table.cells.parts())
        return [*found, *no_values(total, missing, next(iter(examples.values()), ""))]

    def _doubts(self, kernels: list[Kernel], printed: str) -> Iterator[Diagnostic]:
        """Only CSV has IDs of launches. The grid is checked where a metric states its
        blocks, too."""
        launches = self._table.launches
        ids = [launch.order for launch in launches] if printed == "CSV" else []
        sizes: dict[int, int] = {}
        for launch, facts in self._facts.items():
            stated = [facts[name][0] for name in BLOCKS if name in facts]
            if stated and isinstance(stated[0], int) and not _is_failed(launches[launch].grid):
                sizes[launch] = stated[0]
        ranked = {self._order[launch]: blocks for launch, blocks in sizes.items()}
        names = [launch.name for launch in launches]
        yield from doubts(ids, names, self._table.keys, self._table.cells.shapes, kernels, ranked)

    def _rounding(self) -> Iterator[Diagnostic]:
        pairs = zip(self._table.keys, self._units, strict=True)
        rounded = [f"{name} in {printed}" for (name, printed, _), unit in pairs if unit.scale != 1]
        if rounded:
            about = f"ncu printed them in scaled units (for example {rounded[0]})"
            text = (
                f"{len(rounded)} metrics are rounded because {about}; export with --print-units "
                "base for exact figures"
            )
            yield Diagnostic("info", "perfctl", text)


def _kernel(rank: int, launch: Launch, facts: Facts, counted: bool) -> Kernel:
    fields = kernel_fields(facts)
    for prefix, text in (("grid", launch.grid), ("block", launch.block)):
        if not _is_failed(text) and (dimensions := _dimensions(text)):
            fields.update(
                zip((f"{prefix}_x", f"{prefix}_y", f"{prefix}_z"), dimensions, strict=True)
            )
    named = zip(
        _NUMBERED, (launch.stream, launch.device, launch.process, launch.context), strict=True
    )
    fields.update((field, int(text)) for field, text in named if _is_whole(text))
    place = place_of(launch.push_pop, launch.start_end, launch.name)
    return kernel_of(rank, launch.name, place, fields, counted=counted)


@lru_cache(maxsize=4096)
def _dimensions(text: str) -> tuple[int, ...] | None:
    """ "(16, 8, 1)" -> (16, 8, 1); None for anything else."""
    parts = [part.strip() for part in text.strip().removeprefix("(").removesuffix(")").split(",")]
    return tuple(map(int, parts)) if len(parts) == 3 and all(map(_is_whole, parts)) else None


def _is_failed(grid: str) -> bool:
    """Is it a grid, or block, of nothing, which ncu prints of a launch that failed?"""
    return 0 in (_dimensions(grid) or ())


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _ranks(orders: list[int]) -> list[int]:
    """Position of each launch when sorted by ID; launches with one ID keep the order of
    the file."""
    ranks = [0] * len(orders)
    for rank, index in enumerate(sorted(range(len(orders)), key=orders.__getitem__)):
        ranks[index] = rank
    return ranks
