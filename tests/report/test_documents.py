"""Markdown and LaTeX of results: every row and figure is there, and no name is taken for markup."""

import re

import pytest

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report import terminal
from perfctl.orchestrator.report.files.documents import (
    FORMS,
    escape_latex,
    escape_markdown,
    write_latex,
    write_markdown,
)
from perfctl.orchestrator.report.tables import Column, Table, text_cell
from perfctl.orchestrator.report.terminal import DOCUMENT, build_run_group_views
from perfctl.orchestrator.report.view import View
from tests.make import synthetic

HOSTILE = "a|b & 50% of $x_1 #2 {y} ~z^2 \\input{/etc/passwd} <b>[link](x) *µ* − → ≥ 中 \u202f|"
SPECIAL = re.compile(r"(?<!\\)(?:\\\\)*[&%#_$~^]")
"""A character that LaTeX takes for a command, with no backslash before it."""


def cells(line):
    """The cells of one row of a table in LaTeX."""
    return [cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(" \\\\"))]


def sound(document):
    """The rows of every table of a LaTeX document, after a check of its structure."""
    lines, open_now, rows, columns = document.splitlines(), list[str](), [], 0
    for line in lines:
        for what, name, rest in re.findall(r"\\(begin|end)\{(\w+)\}(?:\{(.*)\}$)?", line):
            if what == "end":
                assert open_now.pop() == name
            else:
                open_now.append(name)
                columns = len(re.sub(r"p\{[^}]*\}", "p", rest)) if name == "longtable" else columns
        if line.endswith(" \\\\"):
            assert open_now[-1] == "longtable"
            rows.append(cells(line))
            assert len(rows[-1]) == columns, line
    assert open_now == [] and document.count("\\toprule") == document.count("\\bottomrule")
    assert document.startswith("\\documentclass") and "{booktabs,longtable}" in document
    body = document.partition("\\begin{document}")[2].replace("\\&", "").replace(" & ", " ")
    words = re.sub(r"\$[-+]\$|\$\\[a-z]+\$|--+|(?<!\\)~", "", body)
    assert not SPECIAL.search(words), SPECIAL.search(words)
    assert re.sub(r"\\[{}]", "", body).count("{") == re.sub(r"\\[{}]", "", body).count("}")
    return rows


def hostile(*rows):
    """Return a view of hostile names with one table."""
    columns = (Column(HOSTILE, style="text"), Column("n"))
    cells = tuple(tuple(map(text_cell, row)) for row in rows)
    table = Table(columns, cells, HOSTILE, notes=(HOSTILE,))
    return View(HOSTILE, (HOSTILE, "[label]"), (table,), notes=(HOSTILE,))


def test_no_name_is_taken_for_a_command_of_latex():
    document = write_latex(hostile((HOSTILE, "[1]"), ("[2pt]", "−1.5%")))
    rows = sound(document)
    assert len(rows) == 3 and rows[2][1] == "$-$1.5\\%"
    assert "\\input" not in document and "\\textbackslash{}input" in document
    assert "(U+4E2D)" in escape_latex(HOSTILE), "what T1 fonts lack is named"
    assert not re.search(r"(\\\\|\\midrule|\\endhead|\\item) ?\n?\[", document), (
        "a bracket would be an argument"
    )


def test_no_name_is_taken_for_markup_of_markdown():
    text = write_markdown(hostile((HOSTILE, "1"), ("b", "2")))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in table] == [3] * 4, "two cells in every row"
    assert "<b>" not in text and "\\[link\\]" in text
    assert escape_markdown("a_b") == "a\\_b"


@pytest.mark.parametrize("form", ["md", "tex"])
def test_a_ledger_has_every_layer_direction_and_batch_size_with_its_figures(form):
    runs = [*synthetic.gpu_pair(1, 64), *synthetic.gpu_pair(11, 128)]
    found = [analyse_study(study) for study in group_into_studies(runs)]
    expected = {(row.layer, row.direction, row.batch) for one in found for row in one.ledger.rows}
    text = FORMS[form](
        View(chapters=(view for one in found for view in build_run_group_views(one, DOCUMENT)))
    )
    if form == "tex":
        rows = [[cell.removeprefix("{}") for cell in row] for row in sound(text)]
    else:
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines()
            if line.startswith("|")
        ]
    shown = {(layer.replace("\\_", "_"), direction, batch) for layer, direction, batch, *_ in rows}
    assert {(layer, direction, str(batch)) for layer, direction, batch in expected} <= shown
    assert "1 multiply-add = 2 FLOPs" in text
    conv2 = next(row for row in rows if row[:3] == ["conv2", "forward", "64"])
    macs = 64 * 24 * 24 * 64 * 32 * 3 * 3  # batch, output, kernels, inputs, kernel
    assert f"{2 * macs / 1e9:.2f} G" in conv2, "three digits, in a unit of its own"


@pytest.mark.parametrize("form", FORMS)
def test_a_run_has_its_facts_and_findings(form):
    run = synthetic.gpu_pair(1, 64)[1]
    text = FORMS[form](
        View(chapters=terminal.build_run_views(run, show_all=True, is_document=True))
    )
    if form == "tex":
        sound(text)
    assert (
        "conv2 forward executed 0.500 times the estimated FLOPs" in text
        and f"About run {run.id}" in text
    )
