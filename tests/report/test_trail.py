"""The trail of a figure leads to kernels, counts, formula, rule and source, with the same numbers
as the ledger."""

import re
from dataclasses import replace

from perfctl.orchestrator.ledger.causes.judge import RowCauses, StudyCauses
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.ledger.page import build_ledger_matrix, build_ledger_view
from perfctl.orchestrator.report.ledger.trail import build_figure_source_trails
from tests.make import synthetic
from tests.report.outline import analysed


def swept():
    return analysed(*synthetic.gpu_sweep(16, 64))


def trail(found, key):
    (one,) = (item for item in build_figure_source_trails(found) if item.key == key)
    return one


def step(of, title):
    (one,) = (item for item in of.steps if item.title.startswith(title))
    return one


def digits(text):
    return [int(re.sub(r"\D", "", part)) for part in re.findall(r"\d[\d,]*", text)]


def test_every_row_of_the_ledger_has_a_trail_whose_key_stays_the_same():
    found = swept()
    keys = [item.key for item in build_figure_source_trails(found)]
    assert keys == [item.key for item in build_figure_source_trails(swept())] and len(
        set(keys)
    ) == len(keys)
    assert {f"{row.layer_label}/{row.direction}/{row.batch}" for row in found.ledger.rows} <= set(
        keys
    )


def test_the_first_step_is_the_ratio_of_the_ledger_and_the_sum_of_the_kernels_is_its_count():
    found = swept()
    row = next(row for row in found.ledger.rows if row.name == "conv2 forward" and row.batch == 64)
    assert row.ratio is not None and row.executed.value is not None
    way = trail(found, "conv2/forward/64")
    paper = 2 * synthetic.macs("conv2", 64)
    executed, estimated, *_ = digits(step(way, "Ratio").lines[0])
    assert (executed, estimated) == (round(row.executed.value), paper)
    kernels = step(way, "Kernels of a step")
    place = {name: at for at, name in enumerate(kernels.heads)}
    own = [line for line in kernels.rows if line[0] != "sum"]
    flops = [sum(digits(line[place["FLOP"]])) for line in own]
    assert sum(flops) == round(row.executed.value)
    for line, total in zip(own, flops, strict=True):
        each = {
            name: sum(digits(line[place[name]])) if name in place else 0
            for name in ("FADD", "FMUL", "FFMA")
        }
        assert each["FADD"] + each["FMUL"] + 2 * each["FFMA"] == total
    assert f"{synthetic.macs('conv2', 64):,}" in step(way, "Estimated").lines[0]


def test_the_source_names_the_report_the_launches_and_a_query_for_their_rows():
    found = swept()
    counting = found.study.get_batch(64).counted_or_derived_run
    assert counting is not None
    mine = [
        kernel.launch for kernel, key in counting.measured_launches if key == ("conv2", "forward")
    ]
    source = step(trail(found, "conv2/forward/64"), "Source")
    assert source.lines[0].startswith(f"Run {counting.run.id}: ncu")
    (query,) = source.code
    assert f"run_id = {counting.run.id} " in query and all(
        str(launch) in query for launch in mine[:1] + mine[-1:]
    )


def test_a_row_without_counts_says_why_and_still_has_its_formula():
    found = analysed(synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 64))
    way = trail(found, "conv2/forward/16")
    first = way.steps[0]
    assert first.title == "Executed / estimated"
    assert first.lines[1].startswith("Executed: not available: ")
    assert str(2 * synthetic.macs("conv2", 16)) in first.lines[2].replace(",", "")
    assert step(way, "Estimated").lines and not any("Source" in item.title for item in way.steps)


def test_a_verdict_on_the_sweep_has_a_trail_and_the_finding_leads_to_it():
    found = swept()
    facts = {"name": "conv2 forward", "layer": "conv2", "first": 16, "last": 64}
    verdict = Cause("wrong window", None, facts, ("nothing",), variant="sweep, row")
    row = Cause("skipped border", 0.5, explained=1.0, row="conv2 forward")
    rows = {(64, "conv2", "forward"): RowCauses((row,), 0.0)}
    judged = replace(found, judgement=StudyCauses(rows, (verdict,)))
    way = trail(judged, "sweep/wrong-window")
    assert way.steps[0].lines == (describe_cause(verdict), f"→ {describe_fix(verdict)}")
    paper = step(way, "conv2 forward, estimated")
    assert [digits(line)[-1] for line in paper.lines] == [
        2 * synthetic.macs("conv2", batch) for batch in (16, 64)
    ]
    known = {item.key for item in build_figure_source_trails(judged)}
    shown = {item.trail for item in list_findings(judged)} - {None}
    assert "sweep/wrong-window" in shown and shown <= known


def test_the_matrix_shows_the_ratios_and_shares_of_the_ledger_and_colours_both_sides_of_paper():
    found = swept()
    matrix, view = build_ledger_matrix(found), build_ledger_view(found)
    assert matrix is not None and view is not None
    assert [*matrix.batches.values()] == ["16", "64"] and next(iter(matrix.measures)) == "ratio"
    lines = {line.key: line for group in view.groups for line in group.lines}
    for row in found.ledger.rows:
        line = lines[f"{row.layer_label}/{row.direction}/{row.batch}"]
        cell, (side, depth) = line.cells["ratio"], line.choose_tint("ratio")
        assert (cell.value is None) == (row.ratio is None)
        if row.ratio:
            assert abs(float(cell.value or 0) / row.ratio - 1) < 1e-5
            assert side == ("lo" if row.ratio < 1 else "hi") and 0 <= depth <= 100
        else:
            assert not side and (cell.style == "no" or row.ratio == 0)


def test_totals_are_sums_over_the_rows_that_have_both_figures_and_name_the_others():
    found = swept()
    view = build_ledger_matrix(found)
    assert view is not None and len(view.totals) == len(view.batches)
    for batch, total in zip((16, 64), view.totals, strict=True):
        rows = [row for row in found.ledger.rows if row.batch == batch and row.ratio is not None]
        counted, paper = (
            sum(row.executed.value or 0 for row in rows),
            sum(row.estimated.value or 0 for row in rows),
        )
        at = list(view.measures).index("ratio")
        assert abs(float(total[at].value or 0) - counted / paper) < 1e-5
        assert f"over {len(rows)} of " in (total[at].title or "")
        times = found.study.get_batch(batch).layer_times
        assert times is not None and total[1 - at].value == times.total.median


def test_a_total_with_a_lower_bound_says_at_least_and_one_without_figures_is_a_dash():
    found = swept()
    row = next(row for row in found.ledger.rows if row.ratio)
    part = replace(row, executed=replace(row.executed, launches=1, of_launches=2))
    rows = tuple(part if one is row else one for one in found.ledger.rows)
    view = build_ledger_matrix(replace(found, ledger=replace(found.ledger, rows=rows)))
    assert view is not None and [total[0].text[:1] for total in view.totals] == [
        "≥",
        view.totals[1][0].text[:1],
    ]
    assert (
        f"a lower bound, because the executed FLOPs of {row.name} are lower bounds"
        in view.total_note
    )
    without = tuple(
        replace(one, ratio=None) if one.batch == 16 else one for one in found.ledger.rows
    )
    view = build_ledger_matrix(replace(found, ledger=replace(found.ledger, rows=without)))
    assert view is not None and view.totals[0][0].style == "no" and view.totals[1][0].value
    assert "; without 8 rows." in view.total_note


def test_no_matrix_is_drawn_where_nothing_was_counted_or_timed():
    assert (
        build_ledger_matrix(analysed(synthetic.make_run(1, layer_calls=synthetic.layer_calls(64))))
        is None
    )
