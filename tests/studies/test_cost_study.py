"""perfctl study cost: relations whose answer is known, and the study of the points that come
with perfctl."""

import csv
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands.bench import load_bench_points
from perfctl.orchestrator.commands.study import plan_study_bench
from perfctl.orchestrator.launch.sweep.study import split_study_into_parts
from perfctl.orchestrator.predict.bench import (
    FLOPS,
    MEMORY,
    TIME,
    SizeObservation,
    correlate_quantities_with_sizes,
    correlate_quantity_with_size,
    list_size_observations,
)
from perfctl.orchestrator.statistics import compute_fisher_interval
from tests.studies.asking import ask

BENCH = Path(__file__).resolve().parent.parent / "data" / "bench-cpu" / "bench.json"


def observed(count, family="vgg"):
    """Time is 3e-9 s x parameters^2; the width falls as the parameters grow."""
    return [
        SizeObservation(
            family,
            f"{family}:{n}",
            4,
            {"parameters": n, "width": 100.0 - n, "batch": 4.0},
            {TIME: 3e-9 * n * n},
        )
        for n in range(1, count + 1)
    ]


def test_a_power_law_has_rank_correlation_1_its_exponent_and_no_interval():
    found = correlate_quantity_with_size("vgg", TIME, "parameters", observed(12))
    assert found.ranked is not None
    assert (found.ranked.value, found.ranked.interval) == (pytest.approx(1.0), None)
    assert found.exponent == pytest.approx(2)
    assert (found.points, found.networks, found.has_few_points) == (12, 12, False)
    falling = correlate_quantity_with_size("vgg", TIME, "width", observed(9)).ranked
    assert falling is not None
    assert (falling.value, falling.interval) == (pytest.approx(-1.0), None)


def test_fewer_than_10_points_are_marked_and_what_does_not_vary_has_a_reason():
    assert correlate_quantity_with_size("vgg", TIME, "parameters", observed(9)).has_few_points
    found = correlate_quantity_with_size("vgg", TIME, "batch", observed(9))
    assert (found.ranked, found.linear, found.reason) == (None, None, "it is equal in every point")
    assert (
        correlate_quantity_with_size("vgg", MEMORY, "batch", observed(9)).reason
        == "no point has both values"
    )


def test_depth_and_width_are_not_compared_across_families():
    rows = correlate_quantities_with_sizes([*observed(5), *observed(5, "mlp")])
    assert {row.size for row in rows if row.family == "vgg"} == {"parameters", "width", "batch"}
    assert "width" not in {row.size for row in rows if row.family == "all"}
    assert next(row.points for row in rows if (row.family, row.size) == ("all", "parameters")) == 10


def test_fishers_interval_is_that_of_his_z():
    reach = 1.959964 / math.sqrt(25 - 3)
    low, high = compute_fisher_interval(0.5, 25, ranked=False) or (0, 0)
    assert (math.atanh(low), math.atanh(high)) == pytest.approx(
        (math.atanh(0.5) - reach, math.atanh(0.5) + reach)
    )
    wide = compute_fisher_interval(0.5, 25, ranked=True) or (0, 0)
    assert math.atanh(wide[1]) - math.atanh(0.5) == pytest.approx(reach * math.sqrt(1 + 0.5**2 / 2))
    assert (
        compute_fisher_interval(0.5, 3, ranked=False)
        is compute_fisher_interval(1.0, 9, ranked=True)
        is None
    )


def test_the_interval_holds_the_true_correlation_19_times_of_20():
    dice, true, held = random.Random(3), 0.6, 0
    for _ in range(400):
        made = []
        for number in range(20):
            x = dice.gauss(0, 1)
            y = true * x + math.sqrt(1 - true**2) * dice.gauss(0, 1)
            made.append(SizeObservation("vgg", str(number), 1, {"width": x + 9}, {TIME: y + 9}))
        interval = (correlate_quantity_with_size("vgg", TIME, "width", made).linear or (0, None))[1]
        assert interval is not None
        held += interval[0] <= true <= interval[1]
    assert abs(held / 400 - 0.95) < 3 * math.sqrt(0.05 * 0.95 / 400)


def test_sizes_of_a_point_are_its_plans_and_memory_is_what_the_steps_added():
    point = next(one for one in load_bench_points(file=BENCH) if one.family == "vgg")
    (found,) = list_size_observations([point])
    settings = dict(word.split("=") for word in point.model.partition(":")[2].split(","))
    assert (found.sizes["depth"], found.sizes["width"]) == (
        float(settings["depth"]),
        float(settings["width"]),
    )
    assert found.values[MEMORY] == point.memory_bytes["peak"] - point.memory_bytes["before"]
    assert found.values[FLOPS] == point.features["flops:forward"] + point.features["flops:backward"]


def test_the_points_of_48_networks_give_the_whole_page_with_all_families_in_one_chart(
    tmp_path, capsys
):
    out = tmp_path / "st"
    assert run_command_line(["study", "cost", "--from", str(BENCH), "--out", str(out)]) == 0
    assert "the fit and the calculator: a file of perfctl bench export has no peaks" in " ".join(
        capsys.readouterr().err.split()
    )
    charts = {path.name for path in (out / "charts").iterdir()}
    sizes = ("parameters", "depth", "width", "kernel", "input", "batch")
    assert charts == {
        "parameters-time.png",
        *(f"{q}-{q}-against-{s}.png" for q in ("time", "memory", "flops") for s in sizes),
    }
    points = json.loads(BENCH.read_text())["points"]
    with (out / "tables" / "parameters-time-of-a-step-against-parameters.csv").open() as file:
        rows = {row["family"]: row for row in csv.DictReader(file)}
    assert int(rows["all families"]["points"]) == len(points)
    assert int(rows["VGG"]["points"]) == sum(one["model"].startswith("vgg") for one in points)


def test_the_quick_design_has_all_families_two_batch_sizes_and_enough_steps_for_a_fit(tmp_path):
    request = plan_study_bench(ask("cost", tmp_path, quick=True))
    families = {
        family: {p.batch for p in request.points if p.family == family}
        for family in ("vgg", "resnet", "inception", "mlp")
    }
    assert all(len(batches) == 2 for batches in families.values())
    assert len(request.points) == 24 >= 20, "a fit needs 20"
    commands = [
        words for _, words in split_study_into_parts(ask("cost", tmp_path, quick=True)).parts
    ]
    assert [words[-2:] for words in commands] == [("--part", f"{n}/4") for n in (1, 2, 3, 4)]
    part = plan_study_bench(replace(ask("cost", tmp_path, quick=True), part="2/4"))
    assert part.part == (2, 4)
    assert len(part.points) == 6


def test_a_design_of_ones_own_holds_in_the_quick_form_too(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("batches = [2]\n[families.mlp]\ndepth = [2]\nwidth = [64]\nimage = [16]\n")
    request = plan_study_bench(ask("cost", tmp_path, quick=True, design=own))
    assert {point.family for point in request.points} == {"mlp"}
