"""Which damage a format could tell of, and which not, with the reason: what ``attack.py`` holds
silent mutants against.

A mutant changes rows of the store. Where the format says the same twice, perfctl has to notice;
where it says it once, a changed digit is as good as the right one. Rules name the tables of the
store that may change without a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

ROWS = (
    "line missing",
    "lines missing",
    "line twice",
    "lines copied",
    "rows missing",
    "rows copied",
)
ORDER = ("lines swapped",)
VALUES = (
    "number",
    "flipped bits",
    "hole",
    "repeated bytes",
    "cut",
    "value",
    "whole column",
    "cell missing",
    "value in the tree",
    "table or column missing",
    "digits swapped",
    "point lost",
    "sign",
    "unit",
    "cells swapped",
    "value of another row",
)
PLAIN = tuple(kind for kind in VALUES if kind not in ("sign", "unit"))
"""Sums are not negative, and their columns have one unit."""
EVERY = (*ROWS, *ORDER, *VALUES)
ANY = frozenset({"*"})
END, START, SMALL, TABLES, OUTPUTS, ROUNDED, UNIT, SHORT, LAST_OP = (
    "end",
    "start",
    "small",
    "tables",
    "outputs",
    "rounded",
    "unit",
    "short",
    "last op",
)
"""Where the lines stood that are missing, or that they differ within what rounding leaves open, or
in a unit, the same one in all headers. OUTPUTS: what is left ends in a line of another program than
the profiler. SHORT: the report is a summary of DLProf without the lines that state the time again.
LAST_OP: lines of ops with the highest number of their type."""
_OP = re.compile(rb'"?(\w+)_(\d+)"?,')
_SHARE = re.compile(rb"\s*(\d{1,3}\.\d)[,\s]")
"""At the beginning of a row of ``nsys stats``."""
_NVPROF_SUM = re.compile(
    rb"(.*\d%[\s,]+)([\d.]+)([num]?s)([\s,]+)(\d+)([\s,]+)([\d.]+)([num]?s)([\s,].*)"
)
"""A row of nvprof, as text or with units in the cells of its CSV: share, time, calls, average,
the rest."""
_OF_NVPROF = re.compile(rb"==\d*==|\d%|Time\(%\)|\d[num]?s\b|\bNo kernels")
"""Lines of nvprof, and rows of its tables."""
_NSYS_SUM = re.compile(
    rb"(\s*\d{1,3}\.\d[,\s]\s*)([\d,]+?)([,\s]\s*)(\d+)([,\s]\s*)(\d+\.\d+)([,\s].*)"
)
"""A row of nsys stats: share, time in whole ns, calls, average, the rest."""
_IN_BRACKETS = re.compile(rb"\((ns|us|ms|s|[KMG]i?B)\)")
_BEHIND = re.compile(rb"(?<=\d)(ns|us|ms|s)\b")
_SECONDS = {b"ns": 1e-9, b"us": 1e-6, b"ms": 1e-3, b"s": 1.0}

_ONCE = "a figure or a name that nothing else in the file states"
_NAME = "a name or another text that nothing else in the file states"
_SUMMED = "a median, a deviation or a rounded mean: calls and total do not follow from it"
_TOO_SMALL = "rows with less of the time than the rounding of the shares leaves open"
_GROUPED = "a name, by which rows of one kernel are added up: no printed number differs"
_UNCOUNTED = "rows have no numbers, and no row sums up all others"
_ALONE = "a report of one launch: nothing says which metrics it has"
_SHARED = "correlation IDs are shared with calls that were not recorded"
_NUMBERED = r'"?\w+_(?:[1-9]|\d\d)"?,.*(?:fprop|bprop)'
"""Rows of ops of PyTorch: CONV2D_1, CONV2D_2."""
_IN_SUMS = (
    "(?i)(?:all |ops |kernels |memory,|aggregated it|start it|stop it|gpu count|wall clock|total "
    "it|(?:tensor|non-tensor|io|cpu|other).*duration)"
)
"""Lines of a summary of DLProf that other lines repeat."""


class Change(NamedTuple):
    """How a mutant that was read without a word differs."""

    form: str
    """Recognised format of the undamaged report."""
    kind: str
    """Of damage."""
    tables: Collection[str]
    """Tables of the store with other rows; of sums that are named by their column,
    "summary COLUMN"."""
    figures: Collection[str]
    """Tables in which numbers differ, not only texts."""
    lost: Sequence[bytes]
    """Lines of the report that the mutant does not have."""
    places: Collection[str]
    """Where they stood."""
    even: bool
    """Readings of the report follow each other evenly."""
    launches: int
    """Kernels of the report."""
    adds_up: bool
    """All operations together have the calls and times that they had."""
    kept: Collection[str]
    """Tables with as many rows as before."""


class Rule(NamedTuple):
    """Damage that a format cannot tell of."""

    form: str
    """Beginning of the recognised format; "" for all."""
    kinds: tuple[str, ...]
    tables: frozenset[str]
    """The tables of the store that may differ, and no others; ANY: whatever they are."""
    reason: str
    figures: frozenset[str] = ANY
    """The tables of which numbers may differ; of the others only texts."""
    place: str | None = None
    """Only lines there."""
    uneven: bool = False
    """Only logs without a rhythm."""
    single: bool = False
    """Only reports of one launch, which has no other to be compared with."""
    regrouped: bool = False
    """Only where all operations together have the calls and times that they had."""
    kept: frozenset[str] = frozenset()
    """Only where these tables have as many rows as before: figures in them changed, none
    was lost."""
    together: frozenset[str] = frozenset()
    """Only where all of these tables differ: what would contradict the loss was lost with it."""
    unless: str = ""
    """Regular expression: lost lines that the format states twice."""

    def fits(self, change: Change) -> bool:
        """Is this the damage?"""
        return (
            change.form.startswith(self.form)
            and change.kind in self.kinds
            and (self.place is None or self.place in change.places)
            and not (self.uneven and change.even)
            and not (self.single and change.launches > 1)
            and not (self.regrouped and not change.adds_up)
            and self.kept.issubset(change.kept)
            and self.together.issubset(change.tables)
            and (self.tables == ANY or self.tables.issuperset(change.tables))
            and (self.figures == ANY or self.figures.issuperset(change.figures))
            and not (
                self.unless and any(re.match(self.unless.encode(), line) for line in change.lost)
            )
        )


def _of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SPREAD = frozenset(f"summary {name}" for name in ("Avg", "Med", "Min", "Max", "StdDev"))
_SUMS = _SPREAD | frozenset(
    f"summary {name}"
    for name in ("Total Time", "Total", "Instances", "Num Calls", "Count", "Calls")
)
_FACTS = _of("environment device run_device run")

_IN_EVENTS = _of("api_call op_instance stack op_signature sample operation range")

RULES = (
    Rule("", EVERY, _of("advice"), "advice is prose"),
    Rule("", EVERY, _of("diagnostic"), "messages of the profiler are prose"),
    Rule("", EVERY, _FACTS, "facts about the machine and the run stand once"),
    Rule("", ORDER, ANY, "the same lines in another order; where they are numbered, this is said"),
    Rule(
        "nsys stats",
        (*ROWS, "cut", "hole"),
        ANY,
        "whole tables that come last: which were printed is said nowhere",
        place=TABLES,
    ),
    *(
        Rule(form, ROWS, ANY, "the last lines of a file that does not state its length", place=END)
        for form in (
            "DCGM",
            "dcgmi",
            "Kineto",
            "nvidia-smi",
            "ncu",
            "nvprof trace",
            "rocprofv3 CSV",
            "perfctl samples",
            "DLProf CSV: iteration",
            "DLProf CSV: kernel",
            "DLProf CSV: group_op",
            "DLProf CSV: op_type",
            "DLProf CSV: expert_systems",
            "DLProf CSV: tensor_core",
        )
    ),
    Rule(
        "DLProf CSV: detail",
        ROWS,
        ANY,
        "the last lines of a file that does not state its length",
        place=END,
    ),
    # sums whose rows state total, mean and calls, and shares of the whole: a changed number must
    # not pass in these
    Rule(
        "nsys stats", (*ROWS, *VALUES), _of("operation") | _FACTS | _SUMS, _TOO_SMALL, place=SMALL
    ),
    Rule("nsys stats", VALUES, ANY, _GROUPED, figures=frozenset({"operation"}), regrouped=True),
    Rule("nsys stats", PLAIN, _SPREAD | _FACTS, _SUMMED),
    Rule(
        "nsys stats",
        PLAIN,
        ANY,
        f"{_SUMMED}; and names",
        figures=_SPREAD | {"operation"},
        regrouped=True,
    ),
    Rule(
        "nsys stats",
        PLAIN,
        _of("operation") | _FACTS | _SUMS,
        "a time within what its rounded mean leaves open",
        place=ROUNDED,
    ),
    Rule(
        "nsys stats",
        ("unit",),
        ANY,
        "the headers of all columns of times state the same other unit, and nothing else states "
        "one",
        place=UNIT,
    ),
    Rule(
        "nvprof summary",
        ("unit",),
        ANY,
        "all times state another unit, in which they are from 1 to 1,000, too",
        place=UNIT,
    ),
    Rule("nvprof summary", VALUES, ANY, _NAME, figures=frozenset()),
    Rule(
        "nvprof summary",
        (*ROWS, "cut"),
        ANY,
        "whole outputs that come last: how many there are is said nowhere",
        place=OUTPUTS,
    ),
    Rule("nvprof summary", PLAIN, _SPREAD, _SUMMED),
    Rule("nvprof summary", PLAIN, ANY, f"{_SUMMED}; and names", figures=_SPREAD),
    Rule(
        "nvprof summary",
        PLAIN,
        _of("summary") | _SUMS | {"summary Time"},
        "a time within what its rounded mean leaves open",
        place=ROUNDED,
    ),
    # the rest of the formats states each single figure once
    Rule("nsys SQLite", VALUES, ANY, _ONCE),
    Rule(
        "nsys SQLite",
        ("rows missing",),
        _of("thread environment device run run_device range api_call kernel_name"),
        "names of threads and strings are not numbered",
    ),
    Rule(
        "nsys SQLite",
        ("rows missing",),
        _of("range api_call kernel_launch kernel_layer kernel_part copy op_instance") | _FACTS,
        "the last ranges: rows are numbered, but how many there are is said nowhere",
        kept=_of("kernel_launch copy"),
    ),
    Rule("ncu", VALUES, ANY, _ONCE),
    Rule("ncu CSV, summary", VALUES, _of("summary") | _SUMS, _ONCE),
    Rule(
        "ncu CSV",
        ROWS,
        _of("metric metric_value kernel_launch advice summary") | _SUMS,
        _ALONE,
        single=True,
    ),
    Rule("ncu console", ROWS, ANY, "console text does not number launches or lines"),
    Rule("Kineto", VALUES, ANY, _ONCE),
    Rule(
        "Kineto",
        ROWS,
        _IN_EVENTS | _FACTS,
        "parts of an event, or calls of Python and of CUDA: counting their numbers, too, would "
        "take over 2 % of the reading",
    ),
    Rule(
        "Kineto",
        ROWS,
        _of("copy kernel_launch") | _IN_EVENTS | _FACTS,
        "a figure of an event stands once",
        kept=_of("copy kernel_launch"),
    ),
    Rule(
        "Kineto",
        ROWS,
        _of("copy") | _IN_EVENTS | _FACTS,
        "a copy that was lost with its call: copies are not numbered",
        together=_of("copy api_call"),
    ),
    Rule("rocprofv3", VALUES, ANY, _ONCE),
    Rule("rocprofv3 CSV", ("line missing", "lines missing"), _of("operation range"), _SHARED),
    Rule(
        "rocprofv3",
        ROWS,
        ANY,
        "numbers may begin anywhere: programs launch before the recording",
        place=START,
    ),
    *(
        rule
        for form in ("DLProf summary", "DLProf CSV: summary")
        for rule in (
            Rule(
                form,
                (*ROWS, *VALUES),
                ANY,
                "a line that stands outside of the sums",
                unless=_IN_SUMS,
            ),
            Rule(
                form,
                VALUES,
                ANY,
                "all iterations are only known to be at least the aggregated ones",
                kept=_of("summary"),
                unless=_IN_SUMS.replace("|total it", ""),
            ),
            Rule(form, VALUES, ANY, _NAME, figures=frozenset()),
            Rule(
                form,
                VALUES,
                _of("run summary"),
                "a summary without the mean of iterations states the time once",
                place=SHORT,
            ),
        )
    ),
    Rule(
        "DLProf CSV: detail",
        ("line missing", "lines missing"),
        ANY,
        "the last ops of a type: how many it has is said nowhere",
        place=LAST_OP,
    ),
    Rule(
        "DLProf CSV: detail",
        ("line missing", "lines missing"),
        ANY,
        "rows without numbers, as of TensorFlow",
        unless=_NUMBERED,
    ),
    Rule("DLProf CSV: detail", VALUES, ANY, _ONCE),
    *(
        rule
        for table in (
            "expert_systems",
            "group_op",
            "iteration",
            "kernel",
            "op_type",
            "tensor_core",
            "node_op",
        )
        for rule in (
            Rule(f"DLProf CSV: {table}", VALUES, ANY, _ONCE),
            Rule(f"DLProf CSV: {table}", ("line missing", "lines missing"), ANY, _UNCOUNTED),
        )
    ),
    Rule("DLProf database", VALUES, ANY, _ONCE),
    Rule("DLProf JSON", EVERY, ANY, "no real file is known"),
    Rule("nvidia-smi", VALUES, ANY, "a reading stands once"),
    *(
        Rule(
            form,
            ("report twice",),
            ANY,
            "its date is in whole seconds, in which a loop may print the same twice",
            uneven=True,
        )
        for form in ("nvidia-smi table", "nvidia-smi CSV, no header")
    ),
    Rule("nvidia-smi", ROWS, ANY, "the first readings of a log", place=START),
    Rule(
        "nvidia-smi",
        ROWS,
        ANY,
        "a table of one reading, or a log too short or uneven to have a rhythm",
        uneven=True,
    ),
    Rule(
        "DCGM", (*ROWS, *VALUES), ANY, "a line is one figure of one GPU, at times that are not even"
    ),
    Rule("dcgmi", (*ROWS, *VALUES), ANY, "readings have no times"),
    Rule("nvprof trace", (*ROWS, *VALUES), ANY, "rows of a trace have no numbers and no sum"),
    Rule("Proton", EVERY, ANY, "a tree of sums without totals"),
    Rule(
        "PyTorch memory",
        VALUES,
        _of("sample summary memory") | _FACTS,
        "sizes and kinds of single events stand once",
    ),
    Rule("perfctl bench", EVERY, ANY, "it is compared, and can be measured again"),
    Rule("perfctl workload record", VALUES, ANY, "recorded before records had checksums"),
    Rule("perfctl samples", VALUES, ANY, "recorded before records had checksums"),
    Rule("perfctl samples", ROWS, ANY, "recorded before records had checksums"),
    Rule("perfctl workload record", ROWS, ANY, "recorded before records had checksums"),
)
"""The first that fits counts."""


def excuse(change: Change) -> str | None:
    """Why the format cannot tell of the damage; None where it could."""
    return next((rule.reason for rule in RULES if rule.fits(change)), None)


def lost_lines(whole: bytes, mutant: bytes) -> tuple[list[bytes], set[str]]:
    """The lines that a mutant lacks, and where they stood: at the end of the file, right below its
    first line, or among the rows of sums whose shares are too small to be missed; and what else of
    the report bears on what it states twice."""
    if _is_unit(whole, mutant):
        return [], {UNIT}
    before, after = whole.splitlines(), mutant.splitlines()
    missing, found = Counter(before) - Counter(after), set[str]()
    lost = [line for line in missing.elements() if line.strip()]
    if b"Wall Clock Time" in whole and b"Average Iteration Time" not in whole:
        found.add(SHORT)
    if lost and _are_last_ops(lost, after):
        found.add(LAST_OP)
    if (few := len(before) - len(after)) <= 0:
        new = list((Counter(after) - Counter(before)).elements())
        if len(lost) == len(new) == 1 and _is_rounding(lost[0], new[0]):
            found.add(ROUNDED)
        return lost, found
    last = len(after) - 1
    if before[:last] == after[:last] and (last < 0 or before[last].startswith(after[last])):
        found.add(END)
        first = before[last] if last >= 0 and before[last] != after[last] else before[last + 1]
        if not _SHARE.match(first):
            found.add(TABLES)
        if (
            after
            and mutant.endswith(b"\n")
            and not _OF_NVPROF.search(next(filter(None, reversed(after)), b""))
        ):
            found.add(OUTPUTS)
    if before[:1] + before[1 + few :] == after or before[few:] == after:
        found.add(START)
    if lost and _are_small(before, lost, list((Counter(after) - Counter(before)).elements())):
        found.add(SMALL)
    return lost, found


def _are_last_ops(lost: Sequence[bytes], left: Sequence[bytes]) -> bool:
    """Are all of them ops, none of which has a lower number than one of its type that is left?"""
    highest: dict[bytes, int] = {}
    for line in left:
        if found := _OP.match(line):
            highest[found[1]] = max(highest.get(found[1], 0), int(found[2]))
    ops = [_OP.match(line) for line in lost]
    return all(op is not None and int(op[2]) > highest.get(op[1], 0) for op in ops)


def _is_unit(whole: bytes, mutant: bytes) -> bool:
    """Is the unit in brackets in all headers another one, or that behind all numbers?"""
    for units in (_IN_BRACKETS, _BEHIND):
        old, new = units.findall(whole), units.findall(mutant)
        if units.sub(b"()", whole) == units.sub(b"()", mutant):
            changed = {one for one, two in zip(old, new, strict=True) if one != two}
            return len(changed) == 1 and not changed.intersection(new)
    return False


def _are_small(before: Sequence[bytes], lost: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Do the rows that are lost have less of the time than the rounding of the largest share leaves
    open (``doubts.implied_whole``)? What is left of a row, its name aside, has to stand in one that
    was lost. Announcements of tables may be lost with them."""
    lost = [line for line in lost if not line.startswith((b"Processing [", b"SKIPPED: "))]
    shares = [float(found[1]) for line in before if (found := _SHARE.match(line))]
    gone = [float(found[1]) for line in lost if (found := _SHARE.match(line))]
    if (
        not gone
        or len(gone) < len(lost)
        or any(not any(_figures(one) == _figures(two) for two in lost) for one in new)
    ):
        return False
    return sum(gone) <= 100 * 2 * 0.05 / max(shares) and max(gone) < min(1.0, max(shares))


def _is_rounding(one: bytes, other: bytes) -> bool:
    """Do two rows of sums differ in their times, by no more than rounding leaves open, and beside
    it in nothing but median, extremes and deviation? One call has its time as its mean, so there is
    nothing to round."""
    nsys, changed = _NSYS_SUM.fullmatch(one), _NSYS_SUM.fullmatch(other)
    if (
        nsys
        and changed
        and [*nsys.groups()][2:6] == [*changed.groups()][2:6]
        and nsys[1] == changed[1]
    ):
        calls, mean = int(nsys[4]), float(nsys[6])
        half = 10.0 ** -len(nsys[6].partition(b".")[2]) / 2
        times = [int(row[2].replace(b",", b"")) for row in (nsys, changed)]
        return calls > 1 and all(abs(time - mean * calls) <= half * calls for time in times)
    first, second = _NVPROF_SUM.fullmatch(one), _NVPROF_SUM.fullmatch(other)
    if (
        not first
        or not second
        or first.groups()[2:] != second.groups()[2:]
        or first[1] != second[1]
    ):
        return False
    unit, digit = _SECONDS[first[8]], 10.0 ** -len(first[7].partition(b".")[2])
    mean = float(first[7]) * unit * int(first[5])
    # both are cut off, to whole ns at least
    off = (int(first[5]) + 1) * max(digit * unit, _SECONDS[b"ns"])
    return int(first[5]) > 1 and abs(float(second[2]) * _SECONDS[first[3]] - mean) <= off


def _figures(line: bytes) -> list[bytes]:
    return line.split(b"," if line.count(b",") > 8 and b"   " not in line[:20] else None)[:8]
