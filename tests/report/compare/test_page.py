"""The page, the Markdown and the terminal of a comparison: one set of words, and names that
stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.commands import compare as command
from perfctl.orchestrator.compare.causes import align_layers_and_kernels
from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.compare.quantities import MEANING
from perfctl.orchestrator.report.compare.page import (
    build_comparison_output,
    build_comparison_page,
    build_comparison_summary,
    write_pull_request_markdown,
)
from perfctl.orchestrator.report.compare.why import (
    format_change_as_factor,
    format_change_interval,
    format_percent_change,
)
from perfctl.orchestrator.report.compare.words import describe_comparison_in_sentences
from perfctl.orchestrator.report.page import page
from perfctl.orchestrator.report.view import draw_view_on_terminal
from perfctl.records.report import Kernel
from tests.make import synthetic
from tests.make.two_sides import QUIET, gpu_side
from tests.report.outline import outline, printed

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>x",
    "a|b`c*d_e[f](javascript:x)",
    "@everyone #1",
    "x" * 4000,
    "\u202edirection\u202c",
    "\x1b[31mred\nline",
    "{{ 7*7 }}",
)


def slower(hostile="", torch="2.8.0"):
    """conv2 a fifth slower in B, with this name of a workload, a layer, kernels and a version."""

    def rename(side):
        def rename_kernel(kernel):
            layer = hostile if kernel.layer == "fc1" else kernel.layer
            name = f"{hostile} {side.label}" if kernel.layer == "fc2" else kernel.short_name
            return kernel._replace(layer=layer, short_name=name)

        runs = []
        for run in side.runs:
            facts = {**run.report.environment, "cudnn": hostile}
            kernels = list(map(rename_kernel, run.report.kernels))
            report = replace(run.report, kernels=kernels, environment=facts)
            runs.append(replace(run, report=report, workload=hostile))
        return ComparisonSide(f"{side.label} {hostile}", tuple(runs))

    sides = gpu_side("before", QUIET), gpu_side("after", QUIET, conv2=1.2, torch=torch)
    return compare_two_sides(
        *(map(rename, sides) if hostile else sides), is_forced=torch != "2.8.0"
    )


def terminal(found):
    return printed(draw_view_on_terminal(build_comparison_summary(found), 80))


def sentences(comparison):
    return describe_comparison_in_sentences(
        comparison, [align_layers_and_kernels(pair) for pair in comparison.pairs]
    )


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_page_terminal_and_markdown_say_the_same_sentences_and_a_kernel_not_what_its_layer_said():
    found = slower(torch="2.9.0")
    said = sentences(found)
    news, warnings = said.finding_and_warning_sentences
    assert any(
        sentence.startswith("conv2 forward is ") and "slower at batch 64" in sentence
        for sentence in news
    )
    text = flat(" ".join(outline(page.render_view_as_html(build_comparison_page(found))).words))
    for sentence in (*news, *warnings):
        assert flat(sentence) in text
        assert flat(sentence) in flat(write_pull_request_markdown(found).replace("\\", ""))
    for sentence in (*news[: said.open_findings], *warnings):
        assert flat(sentence) in flat(terminal(found))
    for verdict in {row.result for pair in found.pairs for row in pair.rows}:
        assert MEANING[verdict] in text
    news = sentences(slower()).finding_and_warning_sentences[0]
    assert sum("conv2 forward" in sentence for sentence in news) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_everywhere(name):
    found = slower(name)
    plain, hostile = (
        outline(page.render_view_as_html(build_comparison_page(slower()))),
        outline(page.render_view_as_html(build_comparison_page(found))),
    )
    assert hostile.tags.count("script") == plain.tags.count("script")
    assert "img" not in hostile.tags
    assert not [name for _, name, _ in hostile.attributes if name.startswith("on")]
    text = write_pull_request_markdown(found)
    assert not re.search(r"(?<!\\)<(script|img|b)\b", text)
    assert "@everyone" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {7, 8}
    shown = terminal(found)
    assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
    assert build_comparison_output(found).pairs


def test_every_link_of_the_page_leads_somewhere_in_it_and_the_same_comparison_gives_the_same_bytes():
    parsed = outline(page.render_view_as_html(build_comparison_page(slower())))
    targets = [
        value or "" for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")
    ]
    assert targets and all(target.startswith("#") for target in targets)
    assert {target[1:] for target in targets} <= set(parsed.ids)
    assert page.render_view_as_html(build_comparison_page(slower())) == page.render_view_as_html(
        build_comparison_page(slower())
    )


def test_a_page_of_nothing_is_a_page():
    found = compare_two_sides(
        ComparisonSide("A", (synthetic.cpu_run(1, 16),)),
        ComparisonSide("B", (replace(synthetic.cpu_run(2, 16), workload="u"),)),
    )
    text = page.render_view_as_html(build_comparison_page(found))
    assert "A and B have nothing in common to compare." in text
    assert "In A only: mnist_cnn, training, fp32" in text


@pytest.mark.parametrize(
    ("change", "text", "interval", "factor"),
    [
        (0.2013, "+20.1%", "−50.0% to +20.1%", "1.20"),
        (-0.03, "−3.0%", "−50.0% to −3.0%", "0.97"),
        (0, "0.0%", "−50.0% to 0.0%", "1.00"),
        (0.0001, "< 0.1%", "−50.0% to < 0.1%", "1.00"),
        (-0.0001, "> −0.1%", "−50.0% to > −0.1%", "1.00"),
        (9.5, "10.5 times", "0.50 to 10.5 times", "10.5"),
        (3239.0, "3,240 times", "0.50 to 3,240 times", "3,240"),
        (-0.9992, "−99.9%", "−50.0% to −99.9%", "< 0.01"),
    ],
)
def test_changes_have_a_sign_and_one_decimal_and_factors_are_never_0(
    change, text, interval, factor
):
    assert format_percent_change(change) == text
    assert format_change_interval((-0.5, change)) == interval
    assert format_change_as_factor(change) == factor


def test_a_kernel_with_other_launches_has_the_time_of_one_launch():
    def foreign(label, count, length):
        kernels = [
            Kernel(launch, "gemm", start_ns=100_000 * launch, duration_ns=length)
            for launch in range(count)
        ]
        return ComparisonSide(label, (synthetic.foreign_run(1, kernels=kernels, ranges=[]),))

    found = compare_two_sides(foreign("A", 11, 20_000), foreign("B", 2768, 20_800))
    (table,) = (
        part.tables[0] for part in build_comparison_page(found).chapters if part.key == "kernels"
    )
    (name,) = (row[0].text for row in table.rows)
    assert name.endswith("(11 launches in A, 2,768 in B; 20.0 µs and 20.8 µs each)")


@pytest.mark.parametrize(("origin", "is_advised"), [("ingested", False), ("measured", True)])
def test_only_sweeps_of_perfctl_are_advised_to_repeat(origin, is_advised):
    (run,) = gpu_side("A", (1.0,), steps=1).runs
    side = ComparisonSide("A", (replace(run, origin=origin),))
    stated: list[str] = []
    events = SimpleNamespace(warning=stated.append)
    command.raise_if_regressed_or_incomparable(
        command.CompareResult(compare_two_sides(side, side), False), events
    )  # type: ignore[arg-type]
    assert [("--repeat 5" in text) for text in stated] == [True] * is_advised
