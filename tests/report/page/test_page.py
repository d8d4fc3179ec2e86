"""The page: self-contained, the same every time, hostile names harmless, nothing unknown shown
as 0; an overview of several run groups first."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256

import pytest

from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.orchestrator.report.tables import (
    TURNING,
    Column,
    build_complete_table,
    build_table,
    encode_column_in_smallest_form,
    number_cell,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.paper import LayerCall
from perfctl.records.report import Gap, Kernel, OpCall
from tests.make import synthetic
from tests.report.outline import HOSTILE, launch_columns, outline, unpacked

WHEN = "2026-11-20 20:40 UTC"
SIGNED = (("−", -480_000), ("+", 480_000))
NAMES = (*HOSTILE, "{{ 7 * 7 }} {% raw %} $\\frac{1}{2}$ \x00 \ud800")


def html(*runs):
    return render_view_as_html(build_report_view(runs, generated_at=WHEN), "run.html")


@pytest.fixture(scope="module")
def sweep():
    return synthetic.gpu_sweep(*synthetic.BATCHES)


@pytest.fixture(scope="module")
def page(sweep):
    return html(*sweep)


@cache
def harmless(length):
    """A page of plain names of this length: long findings are folded."""
    return outline(html(*hostile("h" * length)))


def test_the_same_runs_give_the_same_bytes_and_no_runs_a_page_that_says_so(sweep, page):
    assert html(*sweep) == page
    assert "There are no runs to show" in html()


def test_nothing_is_loaded_from_elsewhere_and_the_full_figure_from_the_dimensions_is_there(page):
    assert not re.search(
        r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//|url\(\s*[\"']?(?:https?:)?//|@import", page
    )
    assert not [value for _, name, value in outline(page).attributes if name == "src"]
    flops = 2 * 64 * 64 * 24 * 24 * 288
    assert f'title="{flops:,} FLOP' in page
    assert "1.36\u00a0<u>GFLOP</u>" in page and "1 multiply-add = 2 FLOPs" in page


def test_every_link_leads_to_a_place_in_the_page_and_ids_are_unique(sweep):
    found = outline(html(*sweep, synthetic.foreign_run(50), synthetic.foreign_run(51)))
    targets = {
        value[1:]
        for _, name, value in found.attributes
        if name == "href" and value and value.startswith("#")
    }
    assert targets <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_five_batches_of_many_layers_under_two_profilers_stay_below_three_megabytes():
    def deep(run):
        """The same run with 40 copies of its four layers."""
        names = [f"backbone.layer{n // 10}.{n % 10}." for n in range(40)]
        formula = (
            "64 x 64 x 24 x 24 x (32 x 3 x 3) = 679,477,248 MAC; x 2 = 1,358,954,496 FLOP; "
            "2,359,296 bias additions"
        )
        calls = tuple(
            call._replace(
                layer=name + call.layer, position=4 * place + (call.position or 0), formula=formula
            )
            for place, name in enumerate(names)
            for call in run.layer_calls
        )
        size = len(run.report.kernels)
        kernels = [
            kernel._replace(
                layer=kernel.layer and name + kernel.layer, launch=kernel.launch + place * size
            )
            for place, name in enumerate(names)
            for kernel in run.report.kernels
        ]
        counters = [
            counter._replace(launch=counter.launch + place * size)
            for place in range(len(names))
            for counter in run.report.counters
        ]
        return replace(
            run, layer_calls=calls, report=replace(run.report, kernels=kernels, counters=counters)
        )

    runs = [
        deep(run)
        for number, batch in enumerate(synthetic.BATCHES, 1)
        for run in synthetic.gpu_pair(number, batch)
    ]
    assert len(html(*runs).encode()) < 3_000_000


def test_a_hundred_thousand_kernels_stay_below_six_megabytes():
    kernels = [
        Kernel(
            n,
            f"void kernel_{n % 40}<float, {n % 7}>(float*, long)",
            layer=f"layer{n % 9}",
            direction="forward",
            device_index=0,
            stream=7,
            grid_x=n % 300,
            block_x=128,
            registers=32,
            start_ns=n * 4211 + n % 17,
            duration_ns=1000 + (n * 7919) % 50_000,
        )
        for n in range(100_000)
    ]
    page = html(synthetic.foreign_run(1, kernels=kernels))
    assert len(page.encode()) < 6_000_000
    data = launch_columns(page)
    assert data["rows"] == 100_000
    (start,) = (column for column in data["columns"] if column["label"] == "start")
    starts = unpacked(start, 100_000)
    assert starts[-1] - starts[0] == kernels[-1].start_ns - kernels[0].start_ns


def test_compact_columns_hold_every_launch_unchanged(sweep, page):
    data = launch_columns(page)
    columns = {column["label"]: unpacked(column, data["rows"]) for column in data["columns"]}
    kernels = [
        kernel
        for run in sorted(sweep, key=lambda run: (run.batch_size, run.profiler))
        for kernel in run.report.kernels
    ]
    assert columns["kernel"] == [kernel.name for kernel in kernels]
    assert columns["time"] == [kernel.duration_ns for kernel in kernels]
    assert columns["layer"] == [kernel.layer for kernel in kernels]
    assert columns["start"] == [kernel.start_ns for kernel in kernels]
    assert columns["executed"].count(None) == len(kernels) // 2


@pytest.mark.parametrize(
    "values",
    [
        [1_700_000_000_000_000_000 + 6_000 * n for n in range(100)],
        [2**70 * n for n in range(100)],
        [-5, 7, 3] * 40 + [*range(60)],
        [None, 0.5, *range(98)],
        [True, False] * 50,
    ],
    ids=["unix times", "beyond 64 bits", "negative", "missing values", "truths"],
)
def test_a_compact_column_is_read_back(values):
    column = json.loads(json.dumps(encode_column_in_smallest_form("", "", "", values)))
    assert unpacked(column, len(values)) == values


def test_a_page_allows_its_own_script_and_nothing_else():
    page = html(synthetic.cpu_run(1, 64))
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert len(policy) == 1
    rules = dict(rule.split(" ", 1) for rule in policy[0].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert (rules["base-uri"], rules["form-action"]) == ("'none'", "'none'")
    assert page.index("http-equiv") < page.index("<style>")


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_text_everywhere(name):
    page = html(*hostile(name))
    found = outline(page)
    drawn = {"svg", "g", "path", "text", "use", "defs", "wbr"}
    assert [tag for tag in found.tags if tag not in drawn] == [
        tag for tag in harmless(len(name)).tags if tag not in drawn
    ]
    assert [
        (tag, attribute) for tag, attribute, _ in found.attributes if attribute.startswith("on")
    ] == []
    page.encode("utf-8")
    for block in found.blocks:
        assert "</script" not in block and json.loads(block)
    assert "49" not in re.findall(r"\b49\b", "".join(found.words))


def test_no_mark_in_a_name_turns_a_line_of_the_page_around():
    """Neither as it is nor as JSON writes it, where the page's script would bring it back."""
    page = html(*hostile(f"abc{''.join(map(chr, TURNING))}gnp.exe"))
    assert "abc\ufffd" in page
    assert not [mark for mark in TURNING if chr(mark) in page or f"\\u{mark:04x}" in page.lower()]


def hostile(name):
    """A study and a foreign report with the name in every place that a report can write to."""
    cpu = synthetic.cpu_run(1, 64)
    calls = tuple(
        replaced._replace(layer=name, kind=name, formula=name) for replaced in cpu.layer_calls
    )
    ranges = [item._replace(layer=name if item.layer else None) for item in cpu.report.ranges]
    operations = [item._replace(name=name, category=name) for item in cpu.report.operations]
    gaps = (Gap(name, "not_collected", name, name),)
    cpu = replace(
        cpu,
        layer_calls=calls,
        workload=name,
        artifact=name,
        command=(name,),
        sweep_command=name,
        report=replace(
            cpu.report, ranges=ranges, operations=operations, gaps=gaps, environment={name: name}
        ),
    )
    foreign = synthetic.foreign_run(2)
    kernels = [kernel._replace(name=name, short_name=None) for kernel in foreign.report.kernels]
    named = [item._replace(name=name) for item in foreign.report.ranges]
    return [
        cpu,
        replace(
            foreign, artifact=name, report=replace(foreign.report, kernels=kernels, ranges=named)
        ),
    ]


def test_what_is_not_collected_is_a_dash_with_a_reason_and_the_commands_to_repeat_are_there():
    page = html(synthetic.cpu_run(1, 64))
    assert "perfctl measures FLOPs with GPU counters" in page
    cells = re.findall(r'<td class="no"[^>]*>([^<]*)</td>', page)
    assert cells and set(cells) == {"–"}
    assert "perfctl torch mnist_cnn --batches 16 32 64" in page
    assert "python -m perfctl.workloads mnist_cnn --batch 64" in page
    assert "generated for tests" in page


def test_the_rule_of_two_flops_stands_only_on_pages_with_flops(page):
    rule = "<strong>1 multiply-add = 2 FLOPs.</strong>"
    assert rule in page
    assert rule not in html(synthetic.foreign_run(1, profiler="nsys"))


def test_the_first_finding_shows_the_first_clause_of_its_fix():
    kernels = [Kernel(0, "gemm", start_ns=0, duration_ns=50_000, device_index=0)]
    calls = (OpCall("cudaFree", 0, 1000), OpCall("cudaFree", 1000, 599_000))
    shown = html(synthetic.foreign_run(1, kernels=kernels, waiting_calls=calls, ranges=[]))
    assert "Allocate and pin memory once and use it again.</summary>" in shown


def test_where_numbers_come_from_is_said_beside_them_and_under_the_charts(sweep, page):
    assert "replayed from an earlier capture" in page
    assert "an existing report" in html(synthetic.foreign_run(1))
    drawings = re.findall(r'<figure class="drawing">.*?</figure>', page, re.DOTALL)
    assert drawings and all('<p class="note">recorded; ' in drawing for drawing in drawings)
    here = html(*(replace(run, origin="measured") for run in sweep))
    assert '<p class="note">measured; ' not in here


def test_the_matrix_comes_first_then_two_charts_and_the_others_stand_in_the_sweep(page):
    parts = re.findall(r'<section id="s1-(\w+)".*?</section>', page, re.DOTALL)
    assert parts[:5] == ["ledger", "charts", "breakdown", "roofline", "sweep"]
    titles = re.findall(r'<figure class="drawing">\s*<figcaption>([^<]*)', page)
    shares = "Share of the kernel time of all steps by layer, all passes, by batch size"
    assert titles[:2] == ["Time per sample, by batch size", shares]
    assert len(titles) == 5
    assert "Batch sweep" in page


def test_one_batch_is_no_sweep(sweep):
    page = html(*(run for run in sweep if run.batch_size == sweep[0].batch_size))
    assert re.findall(r'<h3 id="s1-sweep-h">([^<]*)', page) == ["More charts"]


def test_an_estimate_looks_the_same_in_the_list_of_launches():
    counters = [*synthetic.fp_counters(0, 0, 0, 500, pipe=100), *synthetic.fp_counters(1, 1, 1, 1)]
    run = synthetic.foreign_run(1, profiler="ncu", device=synthetic.V100, counters=counters)
    data = launch_columns(html(run))
    columns = {column["label"]: column for column in data["columns"]}
    assert unpacked(columns["tensor"], 3) == [512 * 100, 0, None]
    looks = unpacked(columns["tensor"]["state"], 3)
    assert [state[:2] for state in looks] == [["est", "~ "], ["", ""], ["no", ""]]
    assert "512 x tensor instructions" in looks[0][2] and "no counters" in looks[2][2]
    assert "state" not in columns["time"]


def test_a_column_that_is_empty_for_one_reason_says_it_once_above_the_table():
    page = html(synthetic.cpu_run(1, 64), synthetic.cpu_run(2, 128))
    ledger = re.search(r'<section id="s1-ledger".*?<script', page, re.DOTALL)
    assert ledger is not None
    shown = re.sub(r"<script.*?</script>", "", ledger.group(), flags=re.DOTALL)
    assert shown.count("perfctl measures FLOPs with GPU counters") == 1
    assert not any("NVIDIA" in head for head in re.findall(r"<thead>.*?</thead>", shown, re.DOTALL))


def test_rows_without_multiply_adds_and_time_are_folded_and_printed():
    run = synthetic.cpu_run(1, 64)
    idle = tuple(
        LayerCall(f"relu{n}", "ReLU", "forward", 0, 0, 0, 4, 4, 4, "0 MAC", position=9 + n)
        for n in range(4)
    )
    busy = LayerCall("block", "Pool", "forward", None, None, 0, 4, 4, 4, None, position=20)
    page = html(replace(run, layer_calls=(*run.layer_calls, *idle, busy)))
    assert page.count('<tbody class="minor">') == 4 + 1, (
        "conv1 has no input gradient, and was not timed"
    )
    assert "show 5 rows without multiply-adds" in page
    assert re.search(r"@media print.*\.minor { display: table-row-group; }", page, re.DOTALL)
    assert "without multiply-adds, each" not in html(run)


def test_the_trail_of_each_row_has_its_formula_and_the_table_leads_to_it(page):
    for batch in synthetic.BATCHES:
        macs = synthetic.macs("conv2", batch)
        assert f"{macs:,} = {2 * macs:,} FLOP" in page
    (first, *_) = synthetic.BATCHES
    assert f'data-trail="conv2/forward/{first}">formula, kernels, source</a>' in page


def test_failed_runs_are_listed_with_their_reason_and_differences_between_runs_are_marked():
    page = html(synthetic.cpu_run(1, 64), synthetic.failed_run(2, 256))
    assert page.count("CUDA out of memory at batch 256") >= 2
    one, two = synthetic.cpu_run(1, 64), synthetic.cpu_run(2, 128)
    two = synthetic.with_report(two, environment={"torch": "2.9", "threads": "2"})
    page = html(one, two)
    table = re.search(r"<figcaption>Differences between the runs.*?</figure>", page, re.DOTALL)
    assert table is not None
    assert re.findall(r"<td[^>]*>([^<]*)</td>", table.group()) == [
        "torch",
        "2.8",
        "torch b64",
        "torch",
        "2.9",
        "torch b128",
    ]
    assert "<dt>threads</dt><dd>2</dd>" in page


def shown(runs):
    return build_report_view(runs, generated_at=WHEN)


def rows(found):
    (overview,) = found.tables
    return [
        {column.label: cell.text for column, cell in zip(overview.columns, row, strict=True)}
        for row in overview.rows
    ]


@pytest.fixture(scope="module")
def both():
    """A sweep on a GPU with counters, and one on a CPU without."""
    gpu = synthetic.gpu_sweep(16, 64)
    return [*gpu, *(synthetic.cpu_run(200 + batch, batch) for batch in (16, 64))]


def test_a_row_has_the_figures_of_the_batch_with_the_most_samples_a_second(both):
    gpu, cpu = rows(shown(both))
    assert gpu["fastest batch"] == "64" and gpu["batch"] == "16 64"
    step = 20_000 + 900 * 64  # ns, as synthetic has it
    assert gpu["samples/s"] == f"{64e9 / step / 1e3:.0f}"
    executed = paper = 0.0
    for layer in synthetic.LAYERS:
        work = 2 * synthetic.macs(layer, 64)
        passes = 1 if layer == "conv1" else 2  # the first layer has no input gradient
        executed += work * (passes + (0.5 if layer == "conv2" else 1))
        paper += work * (passes + 1)
    assert float(gpu["executed / estimated"]) == pytest.approx(executed / paper, rel=0.01)
    assert cpu["executed / estimated"] == "–" and cpu["profiler"] == "torch 2.8"


def test_columns_that_no_study_has_are_one_sentence_and_a_single_study_has_no_overview(both):
    one = [run for run in both if run.profiler == "torch"]
    assert shown(one).tables == ()
    found = shown([*one, *(replace(run, workload="other_cnn") for run in one)])
    (overview,) = found.tables
    labels = [column.label for column in overview.columns]
    assert "executed / estimated" not in labels and "GPU busy" not in labels
    assert any("executed / estimated" in note for note in overview.notes)


def test_reports_without_times_and_counts_stand_in_the_table_and_in_no_drawing():
    found = shown([synthetic.foreign_run(1), synthetic.foreign_run(2)])
    assert [row["model or report"] for row in rows(found)] == ["foreign1.sqlite", "foreign2.sqlite"]
    assert found.charts == ()
    assert {row["GPU busy"] for row in rows(found)} == {"71.4%"}, "2,500 of 3,500 ns"


def test_step_and_busy_share_of_a_single_batch_size_are_above_the_findings(both):
    (existing,) = shown([synthetic.foreign_run(1)]).chapters
    assert dict(existing.properties).get("GPU busy") == "71.4%", "2,500 of 3,500 ns"
    assert "step" not in dict(existing.properties), "no step was timed"
    measured = next(run for run in both if run.profiler == "torch")
    (group,) = shown([measured]).chapters
    assert re.fullmatch(r"\S+ µs \(\S+ µs to \S+ µs in \d steps\)", dict(group.properties)["step"])


def test_of_many_groups_and_of_existing_reports_only_the_first_is_open(both):
    measured = [run for run in both if run.profiler == "torch"]
    few = [replace(run, workload=f"cnn{number}") for run in measured for number in range(3)]
    many = [replace(run, workload=f"cnn{number}") for run in measured for number in range(4)]
    existing = [synthetic.foreign_run(number) for number in (1, 2)]
    folded = [[group.is_folded for group in shown(runs).chapters] for runs in (few, many, existing)]
    assert folded == [[False] * 3, [False, True, True, True], [False, True]]


def test_a_closed_report_states_its_first_finding_and_whose_recording_it_repeats():
    first, second = synthetic.foreign_run(1), synthetic.foreign_run(2)
    third = replace(synthetic.foreign_run(3), report=move_kernels(first.report, by_ns=10))
    page = html(first, second, third)
    closed = re.findall(r'<details class="single"><summary>(.*?)</summary>', page)
    (finding, *_) = shown([first]).chapters[0].findings
    assert re.sub("<.*?>", "", closed[0]).replace("\u00a0", " ") == (
        f"foreign2.sqlite: the same recording as foreign1.sqlite {finding.first}"
    )
    assert closed[1].startswith("foreign3.sqlite <span")


def move_kernels(report, *, by_ns):
    """Return the report with kernels that start later."""
    kernels = [kernel._replace(start_ns=kernel.start_ns + by_ns) for kernel in report.kernels]
    return replace(report, kernels=kernels)


def test_curves_name_what_differs_and_every_row_and_name_leads_to_its_study(both):
    page = html(*both)
    part = re.search(r'<section id="overview".*?</section>', page, re.DOTALL)
    assert part is not None
    assert re.findall(r"<figcaption>([^<]*)", part.group()) == [
        "Overview",
        "Samples per second, by batch size",
    ]
    assert re.findall(r'<a href="#(s\d)">', part.group()) == ["s1", "s2", "s1", "s2"]
    assert "synthetic CPU" in part.group() and page.index('id="overview"') < page.index(
        '<article id="s1"'
    )
    assert '<nav class="studies"' not in page


def test_the_order_of_the_rows_is_said_where_it_is_true():
    columns = [Column("a"), Column("b", order="descending"), Column("c", order="ascending")]
    heads = {
        name: [column.order for column in made.columns]
        for name, cells in {
            "first that is in order": [[1, 9, 1], [2, 3, 2]],
            "not in order": [[1, 1, 2], [2, 3, 1]],
            "one row": [[1, 1, 1]],
        }.items()
        if (made := build_table("t", columns, cells)) is not None
    }
    assert heads == {
        "first that is in order": ["", "descending", ""],
        "not in order": ["", "", ""],
        "one row": ["", "", ""],
    }


def test_a_number_whose_title_has_a_minus_is_sorted_by_its_value():
    cells = [number_cell("0.48 ms", f"{sign}480,000 ns", ns, mark=sign) for sign, ns in SIGNED]
    table = build_complete_table("Changes", [time_column("change")], [[cell] for cell in cells])
    page = render_view_as_html(View("Changes", tables=(table,)))
    assert [f'data-v="{ns}"' in page for _, ns in SIGNED] == [True, True]


@pytest.mark.parametrize(("batches", "batch"), [((16,), "16"), ((16, 64), "{batch}")])
def test_the_command_of_one_batch_size_has_it_and_that_of_several_a_gap(batches, batch):
    runs = [
        replace(run, command=("python", "train.py", "--batch", str(run.batch_size), "--record"))
        for run in synthetic.gpu_sweep(*batches)
    ]
    (study,) = group_into_studies(runs)
    lines = [command for _, command in about.list_reproduction_commands(study)]
    assert f"python train.py --batch {batch} --record" in lines
