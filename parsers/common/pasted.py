"""Takes off what was put around the lines of a tool after it printed them: a terminal's colours,
the ranks of ``srun --label``, torchrun and mpirun, a log's timestamps, quote marks, indentation,
the fences of Markdown, a notebook, and a spreadsheet's semicolons and decimal commas.

The beginning of a file says what there is (:func:`find_decoration_removers`); whatever opens a text
applies it (``lines.open_undecorated_text``), so no parser needs to know.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice, pairwise

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_FENCE = re.compile(r"^[ >]*(?:```|~~~).*$", re.MULTILINE)
_PREFIXES = (
    re.compile(r" *(?P<rank>\d{1,6}): ?"),  # srun --label
    re.compile(r"\[(?P<rank>rank\d+|default\d+)\]:? ?"),  # torchrun
    re.compile(r"\[(?P<rank>\d+,\d+)\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    re.compile(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? (?! *,)"
    ),
    re.compile(r"> ?"),
)
_NOTEBOOK = re.compile(r'\s*\{[^{}\[\]]*"cells"\s*:\s*\[')
_STRING = r'"(?:[^"\\]|\\.)*+"'
_OUTPUT = re.compile(rf'"text(?:/plain)?"\s*:\s*(\[(?:{_STRING}|[\s,])*+|{_STRING})')
_GERMAN = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+(?:,\d+)?|[-+]?\d+,\d+")
"""A number with a decimal comma or with points between thousands."""
_SECTION = re.compile(r"^( *)Section: ", re.MULTILINE)
_LAYERS = 4
"""Prefixes before a line, one in front of another."""
_SAMPLE = 400
"""Lines of the beginning that decide."""
_HEADER = 20
"""Lines of the beginning that have the header of a table."""
_CODE = 4
"""Blanks before each line of a block of code in Markdown."""
Unwrap = Callable[[str], str]


@lru_cache(maxsize=4)
def find_decoration_removers(head: str) -> tuple[Unwrap, ...]:
    """Return the steps that take off what is around a tool's lines, in their order; () where there
    is nothing. ``head``: the beginning of the text."""
    steps: list[Unwrap] = []
    text = head

    def add_decoration_remover(step: Unwrap) -> None:
        nonlocal text
        steps.append(step)
        text = step(text)

    if _NOTEBOOK.match(text):
        add_decoration_remover(_read_notebook_outputs)
    if "\x1b" in text:
        add_decoration_remover(partial(_COLOUR.sub, ""))
    for _ in range(_LAYERS):
        prefix = next(
            (prefix for prefix in _PREFIXES if _has_prefix_on_most_lines(prefix, text)), None
        )
        if prefix is None:
            break
        add_decoration_remover(partial(_drop_prefix_and_group_by_rank, prefix))
    if not steps and text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return ()
    if _FENCE.search(text):
        add_decoration_remover(lambda full_text: _FENCE.sub("", full_text))
    if depth := _measure_markdown_indentation(text):
        add_decoration_remover(lambda full_text: re.sub(rf"(?m)^ {{{depth}}}", "", full_text))
    if _is_semicolon_csv(text):
        add_decoration_remover(_convert_semicolon_to_comma_csv)
    return tuple(steps)


def _first_nonblank_lines(text: str) -> list[str]:
    lines = islice(re.finditer(r"[^\r\n]*\S[^\r\n]*", text), _SAMPLE)
    return [line[0].lstrip("\ufeff") for line in lines]


def _has_prefix_on_most_lines(prefix: re.Pattern[str], text: str) -> bool:
    """Return whether the prefix is before all lines but a tenth."""
    lines = _first_nonblank_lines(text)
    matches = sum(prefix.match(line) is not None for line in lines)
    return matches > 1 and matches >= 0.9 * len(lines)


def _drop_prefix_and_group_by_rank(prefix: re.Pattern[str], text: str) -> str:
    """Return the lines without it. The lines of one rank stand together, the ranks in the order of
    their first lines, as each of them printed its own."""
    lines: dict[str, list[str]] = {}
    rank = ""
    for line in text.splitlines(keepends=True):
        match = prefix.match(line)
        rank = match.groupdict().get("rank", "") if match else rank
        lines.setdefault(rank, []).append(line[match.end() :] if match else line)
    return "".join("".join(of_rank) for of_rank in lines.values())


def _measure_markdown_indentation(text: str) -> int:
    """Return the blanks that Markdown asks for before a block of code; what the tool itself indents
    stays. ncu's sections have as many blanks of their own."""
    depth = min(
        (len(line) - len(line.lstrip(" ")) for line in _first_nonblank_lines(text)), default=0
    )
    if sections := _SECTION.findall(text):
        return max(min(depth, *(len(blanks) - _CODE for blanks in sections)), 0)
    return depth // _CODE * _CODE


def _read_notebook_outputs(text: str) -> str:
    """Return what the cells of a notebook printed; of a cut text, what is whole."""
    outputs = []
    for match in _OUTPUT.finditer(text):
        strings = re.findall(_STRING, match[1])
        outputs += [str(json.loads(string, strict=False)) for string in strings]
        outputs.append("\n")
    return "".join(outputs)


def _is_semicolon_csv(text: str) -> bool:
    lines = _first_nonblank_lines(text)[:_HEADER]
    return any(
        "," not in line and 1 < line.count(";") == below.count(";")
        for line, below in pairwise(lines)
    )


def _convert_semicolon_to_comma_csv(text: str) -> str:
    """Return CSV with commas and decimal points. Points between thousands are taken out where some
    number has a decimal comma, which tells that they are none of a fraction."""
    rows = list(csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=";"))
    is_german = any(re.fullmatch(r"[-+]?\d+,\d+", cell) for row in rows for cell in row)
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in rows:
        writer.writerow(
            cell.replace(".", "").replace(",", ".")
            if is_german and _GERMAN.fullmatch(cell)
            else cell
            for cell in row
        )
    return output.getvalue()
