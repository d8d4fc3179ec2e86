"""Which damage a format could tell of, and which not, with the reason: what ``fuzz/attack.py`` holds silent mutants against.

A mutant changes rows of the store. Where the format says the same twice, perfctl has to notice; where it says it once, a
changed digit is as good as the right one. Rules name the tables of the store that may change without a word.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

ROWS = ("line missing", "lines missing", "line twice", "rows missing")
ORDER = ("lines swapped",)
VALUES = (
    "number", "flipped bits", "hole", "repeated bytes", "cut", "value", "whole column", "cell missing", "value in the tree",
    "table or column missing",
)  # fmt: skip
EVERY = (*ROWS, *ORDER, *VALUES)
ANY = frozenset({"*"})
END, START = "end", "start"
"""Where the lines stood that are missing."""


class Rule(NamedTuple):
    """Damage that a format cannot tell of."""

    form: str
    """Beginning of the recognised format; "" for all."""
    kinds: tuple[str, ...]
    tables: frozenset[str]
    """The tables of the store that may differ, and no others; ANY: whatever they are."""
    reason: str
    figures: bool = True
    """Whether numbers may differ; else only texts."""
    place: str | None = None
    """Only lines there."""
    uneven: bool = False
    """Only logs without a rhythm."""


def _of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ONCE = "a figure or a name that nothing else in the file states"
_NAME = "a name or another text that nothing else in the file states"
_SUMMED = "a median, a deviation or a rounded mean: calls and total do not follow from it"
_SHARED = "correlation IDs are shared with calls that were not recorded"
_FACTS = _of("environment device run_device run")

RULES = (
    Rule("", EVERY, _of("advice"), "advice is prose"),
    Rule("", EVERY, _FACTS, "facts about the machine and the run stand once"),
    Rule("", ORDER, ANY, "the same lines in another order; where they are numbered, this is said"),
    Rule("", ROWS, ANY, "the last lines of a file that does not state its length", place=END),
    # sums whose rows state total, mean and calls: a changed number must not pass in operations
    Rule("nsys stats", VALUES, ANY, _NAME, figures=False),
    Rule("nsys stats", VALUES, _of("summary") | _FACTS, _SUMMED),
    Rule("rocprof stats", VALUES, ANY, _NAME, figures=False),
    Rule("rocprof stats", VALUES, _of("summary"), _SUMMED),
    Rule("rocprof JSON", VALUES, ANY, _NAME, figures=False),
    Rule("rocprof JSON", VALUES, _of("copy kernel_launch operation") | _FACTS, "sizes, grids and numbers of devices stand once"),
    Rule("rocprof database", VALUES, _of("copy kernel_launch kernel_name operation") | _FACTS, "sizes, grids and names stand once"),
    # the rest of the formats states each single figure once
    Rule("nsys SQLite", VALUES, ANY, _ONCE),
    Rule("nsys SQLite", ("rows missing",), _of("thread environment device run run_device range api_call kernel_name"),
         "names of threads and strings are not numbered"),
    Rule("ncu", VALUES, ANY, _ONCE),
    Rule("ncu console", ROWS, ANY, "console text does not number launches or lines"),
    Rule("Kineto", VALUES, ANY, _ONCE),
    Rule("Kineto", ROWS, _of("api_call op_instance stack op_signature sample operation range") | _FACTS,
         "parts of an event, or calls of Python and of CUDA: counting their numbers, too, would take over 2 % of the reading"),
    Rule("rocprofv3", VALUES, ANY, _ONCE),
    Rule("rocprofv3 CSV", ("line missing", "lines missing"), _of("operation range"), _SHARED),
    Rule("rocprof-compute", VALUES, ANY, _ONCE),
    Rule("rocprof-compute", ROWS, ANY, "numbers begin with 0 or 1", place=START),
    Rule("rocprofv3", ROWS, ANY, "numbers may begin anywhere: programs launch before the recording", place=START),
    Rule("DLProf summary", (*ROWS, *VALUES), ANY, "a line that stands outside of the sums"),
    Rule("DLProf CSV: summary", (*ROWS, *VALUES), ANY, "a line that stands outside of the sums"),
    Rule("DLProf CSV", VALUES, ANY, _ONCE),
    Rule("DLProf CSV", ("line missing", "lines missing"), ANY, "rows have no numbers, and no row sums up all others"),
    Rule("DLProf database", VALUES, ANY, _ONCE),
    Rule("DLProf JSON", EVERY, ANY, "no real file is known"),
    Rule("nvidia-smi", VALUES, ANY, "a reading stands once"),
    Rule("nvidia-smi", ROWS, ANY, "the first readings of a log", place=START),
    Rule("nvidia-smi", ROWS, ANY, "a table of one reading, or a log too short or uneven to have a rhythm", uneven=True) ,
    Rule("DCGM", (*ROWS, *VALUES), ANY, "a line is one figure of one GPU, at times that are not even"),
    Rule("dcgmi", (*ROWS, *VALUES), ANY, "readings have no times"),
    Rule("nvprof", (*ROWS, *VALUES), ANY, "not checked: the tool ended with CUDA 12"),
    Rule("Proton", EVERY, ANY, "a tree of sums without totals"),
    Rule("PyTorch memory", EVERY, ANY, "events without numbers"),
    Rule("perfctl bench", EVERY, ANY, "it is compared, and can be measured again"),
    Rule("perfctl workload record", VALUES, ANY, "recorded before records had checksums"),
    Rule("perfctl samples", VALUES, ANY, "recorded before records had checksums"),
    Rule("perfctl samples", ROWS, ANY, "recorded before records had checksums"),
    Rule("perfctl workload record", ROWS, ANY, "recorded before records had checksums"),
)  # fmt: skip
"""The first that fits counts."""


def excuse(
    form: str, kind: str, tables: Collection[str], *, figures: bool, place: str | None, even: bool
) -> str | None:
    """Why the format cannot tell of the damage; None where it could. ``figures``: numbers differ, not only texts.
    ``even``: readings follow each other evenly."""
    for rule in RULES:
        fits = (
            form.startswith(rule.form)
            and kind in rule.kinds
            and rule.place in (None, place)
            and not (rule.uneven and even)
        )
        if fits and (rule.tables == ANY or rule.tables.issuperset(tables)) and (rule.figures or not figures):
            return rule.reason
    return None


def place_of(whole: bytes, mutant: bytes) -> str | None:
    """Whether the lines that a mutant lacks stood at the end of the file, or right below its first line."""
    before, after = whole.splitlines(), mutant.splitlines()
    if len(after) >= len(before):
        return None
    if before[: len(after)] == after:
        return END
    lost = len(before) - len(after)
    return START if before[:1] + before[1 + lost :] == after or before[lost:] == after else None
