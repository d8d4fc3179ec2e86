"""Verdicts on simulated sweeps: every reason that is there is found, with its number, and none that
is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.judge import Judgement, judge
from perfctl.orchestrator.ledger.causes.rule import Cause, explained_share
from perfctl.orchestrator.ledger.ledger import Ledger, ledger
from perfctl.orchestrator.ledger.prepared import studies
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix, headlines
from scripts.proof.verdicts import scenarios as sim
from tests.sample import sample

Scenario = sim.Scenario


def judged(scenario: Any) -> tuple[Judgement, Ledger]:
    (study,) = studies(sim.make_runs(scenario))
    entries = ledger(study)
    return judge(study, entries), entries


def assert_exactly_the_truth(scenario: Any) -> Judgement:
    judgement, _ = judged(scenario)
    rows, sweep = sim.find_rules(scenario)
    found = {
        place: {item.rule for item in judged.causes} for place, judged in judgement.rows.items()
    }
    assert found == rows
    assert {item.rule for item in judgement.sweep} == sweep
    return judgement


ALONE = {
    "nothing": Scenario(),
    "tile padding": Scenario(
        forward={"conv1": "padding", "conv2": "padding", "fc1": "padding", "fc2": "padding"}
    ),
    "Winograd F(2x2)": Scenario(forward={"block.conv_a": "winograd2", "conv2": "winograd2"}),
    "Winograd F(4x4)": Scenario(forward={"block.conv_a": "winograd4", "conv2": "winograd4"}),
    "FFT": Scenario(forward={"conv2": "fft"}),
    "TF32": Scenario(forward={"block.conv_a": "tf32", "block.conv_b": "tf32"}),
    "TF32 under an old ncu": Scenario(forward={"block.conv_a": "tf32"}, counters="old ncu"),
    "tensor cores": Scenario(forward={"block.conv_a": "fp16"}),
    "split-K": Scenario(forward={"proj": "splitk"}),
    "epilogue": Scenario(forward={"conv1": "epilogue"}),
    "layout": Scenario(forward={"conv1": "layout"}),
    "constant moves": Scenario(forward={"conv2": "phantom", "fc1": "phantom"}),
    "recomputation": Scenario(recompute=("block.conv_a", "block.conv_b")),
    "shared kernel": Scenario(shared=("block.conv_a", "block.conv_b")),
    "algorithm switch": Scenario(switch=("conv2", "winograd2", 64)),
    "wrong window": Scenario(window=1000),
    "wrong window of a batch in the sweep": Scenario(window=64),
    "missing backward": Scenario(missing="all"),
    "missing first backward": Scenario(missing="first"),
    "FADD alone": Scenario(counters="fadd"),
    "counter not collected": Scenario(counters="no tensor"),
    "host time": Scenario(host_time=True),
}

MIXED = {
    "padding in the wrong window": Scenario(
        forward={"conv1": "padding", "conv2": "padding"}, window=1000
    ),
    "Winograd run again in backward": Scenario(
        forward={"conv2": "winograd2"}, recompute=("conv2",)
    ),
    "TF32 without backward": Scenario(forward={"block.conv_a": "tf32"}, missing="all"),
    "tensor cores by name alone": Scenario(forward={"block.conv_a": "fp16"}, counters="no tensor"),
    "padding that looks like a batch of 1,024": Scenario(
        forward=dict.fromkeys(list(sim.BY_NAME)[1:], "padding"),
        missing="all",
        window=1000,
        batches=(16, 32),
    ),
    "FADD alone in the wrong window": Scenario(
        forward={"conv1": "epilogue"}, counters="fadd", window=1000
    ),
    "shared kernel in the wrong window": Scenario(
        shared=("block.conv_a", "block.conv_b"), window=1000
    ),
    "everything at once": Scenario(
        forward={
            "conv1": "padding",
            "conv2": "winograd4",
            "block.conv_a": "fft",
            "proj": "splitk",
            "fc2": "padding",
        },
        recompute=("block.conv_b",),
        missing="first",
        window=1000,
        host_time=True,
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_each_reason_alone_is_found_and_no_other(name: str) -> None:
    assert_exactly_the_truth(ALONE[name])


@pytest.mark.parametrize("name", MIXED)
def test_reasons_together_are_found_and_no_other(name: str) -> None:
    assert_exactly_the_truth(MIXED[name])


def test_the_clean_sweep_has_no_verdict_and_no_headline() -> None:
    judgement, entries = judged(Scenario())
    assert not judgement.rows and not judgement.sweep and not headlines(judgement, entries)


@pytest.mark.parametrize("seed", sample(range(120), 5))
def test_any_mix_of_reasons_is_found_and_no_other(seed: int) -> None:
    """But for the window in a row that recomputes: there it may be told of the sweep alone."""
    scenario = sim.draw_scenario(seed)
    judgement, _ = judged(scenario)
    rows, sweep = sim.find_rules(scenario)
    assert {item.rule for item in judgement.sweep} == sweep
    assert set(judgement.rows) == set(rows)
    for place, rules in rows.items():
        told = {item.rule for item in judgement.rows[place].causes}
        assert told in (rules, rules - {"wrong window"} if "recomputation" in rules else rules)


@cache
def _mixed(name: str) -> Judgement:
    return judged({**ALONE, **MIXED}[name])[0]


def one(name: str, batch: int, layer: str, rule: str, direction: str = "forward") -> Cause:
    (found,) = (
        item for item in _mixed(name).at(batch, layer, direction).causes if item.rule == rule
    )
    return found


@pytest.mark.parametrize("name", [*ALONE, *MIXED])
def test_no_verdict_without_a_number_in_its_sentence_and_something_to_do(name: str) -> None:
    judgement = _mixed(name)
    said = [item for row in judgement.rows.values() for item in row.causes] + list(judgement.sweep)
    assert all(
        any(letter.isdigit() for letter in describe_cause(item)) and describe_fix(item)
        for item in said
    )


@pytest.mark.parametrize(
    "name", ["tile padding", "FFT", "split-K", "recomputation", "shared kernel", *MIXED]
)
def test_factors_of_a_row_multiply_to_its_ratio(name: str) -> None:
    judgement, entries = judged({**ALONE, **MIXED}[name])
    for row in entries.rows:
        left = judgement.at(row.batch, row.layer, row.direction).unexplained
        assert left is None or left < 0.01, (row.name, row.batch, row.ratio)


def test_a_filter_of_9_padded_to_16_in_a_tile_twice_as_wide_is_3_6_times_paper() -> None:
    scenario = Scenario(forward={"conv1": "padding"}, batches=(64, 128))
    (item,) = judged(scenario)[0].at(64, "conv1", "forward").causes
    tiles = -(-64 * 26 * 26 // 128) * 128 * 128  # 32 channels in a tile of 128
    assert item.factor == pytest.approx(tiles * 16 / (64 * 26 * 26 * 32 * 9))
    assert "padded to 16" in describe_cause(item) and item.explained == pytest.approx(1)


def test_winograd_needs_16_multiplies_for_36_and_more_for_the_tiles_at_the_edge() -> None:
    item = one("Winograd F(2x2)", 64, "block.conv_a", "Winograd")
    multiplies = 16 / 36 * (64 / 56)  # 56 columns in tiles of 16
    transforms = (32 * 64 * 32 + 32 * 32 * 24) / (2 * 32 * 32 * 16 * 64) * multiplies
    assert item.factor == pytest.approx(multiplies + transforms, rel=1e-3)


def test_padding_is_worked_out_for_the_batch_that_was_seen() -> None:
    item = one("padding in the wrong window", 16, "conv2", "tile padding")
    # 64 channels in a tile of 128; 1000 x 576 rows are whole tiles
    assert item.factor == pytest.approx(2)


def test_recomputation_adds_one_forward_to_two_gradients() -> None:
    assert one(
        "recomputation", 32, "block.conv_a", "recomputation", "backward"
    ).factor == pytest.approx(1.5)


def test_split_k_adds_one_addition_a_slice_and_output() -> None:
    assert one("split-K", 64, "proj", "split-K").factor == pytest.approx(1 + 16 / (2 * 512))


def scaled(share: float) -> tuple[Judgement, Ledger]:
    """A clean sweep whose counters at batch 64 have only this share of their values."""
    runs = sim.make_runs(Scenario(batches=(64, 512)))
    less = [
        counter._replace(value=int((counter.value or 0) * share))
        for counter in runs[0].report.counters
    ]
    runs[0].report.counters[:] = less  # type: ignore[index]
    (study,) = studies(runs)
    entries = ledger(study)
    return judge(study, entries), entries


def test_what_no_rule_explains_is_said_in_percent() -> None:
    judgement, entries = scaled(0.7)
    assert all(not judged.causes for judged in judgement.rows.values())
    assert {judged.unexplained for judged in judgement.rows.values()} == {1.0}
    said = headlines(judgement, entries)
    assert len(said) == 3 and all(
        "0.700 times the estimated FLOPs" in item.sentence for item in said
    )
    assert all(
        "No rule explains it: 100.0% of the difference is unexplained" in item.sentence
        for item in said
    )


@pytest.mark.parametrize(
    ("share", "cause"), [(0.5, "one rank of 2, or a batch of 32"), (2, "a batch of 128 fits")]
)
def test_one_factor_of_all_rows_is_one_sentence(share: float, cause: str) -> None:
    judgement, entries = scaled(share)
    (said,) = headlines(judgement, entries)
    assert said.rules == ("whole step",) and cause in said.sentence
    for judged in judgement.rows.values():
        (item,) = judged.causes
        assert (item.rule, item.factor, item.confidence) == ("whole step", share, "plausible")
        assert judged.unexplained == pytest.approx(0, abs=0.01)


def test_headlines_put_the_sweep_first_and_gaps_of_less_than_a_hundredth_of_the_time_last() -> None:
    judgement, entries = judged(
        Scenario(
            forward={
                "conv1": "padding",
                "conv2": "winograd2",
                "block.conv_a": "winograd4",
                "fc2": "padding",
            },
            missing="first",
        )
    )
    said = headlines(judgement, entries)
    assert [item.place and item.place[1] for item in said] == [None, "block.conv_a", "conv2", "fc2"]
    most = {
        layer: max(row.share or 0 for row in entries.rows if row.name == f"{layer} forward")
        for layer in ("conv2", "fc2")
    }
    assert most["conv2"] > 0.01 > most["fc2"], "51 times the paper, in 0.08% of the time"
    assert "tile padding (predicted factor" in said[3].sentence


def test_gaps_come_before_switches_of_which_the_first_is_told() -> None:
    judgement, entries = judged(Scenario(switch=("conv2", "winograd2", 64), recompute=("conv2",)))
    said = headlines(judgement, entries)
    assert [item.rules for item in said] == [
        ("recomputation",),
        ("Winograd",),
        ("algorithm switch",),
    ]
    assert "1 more row changes its algorithm" in said[-1].sentence


def test_a_report_without_layers_on_paper_gets_no_verdict(synthetic: Any) -> None:
    (study,) = studies([synthetic.foreign_run(1)])
    assert judge(study, ledger(study)) == Judgement()


def test_forward_that_ran_again_under_a_range_of_its_own_is_recomputation() -> None:
    runs = []
    for run in sim.make_runs(Scenario(recompute=("conv2",), batches=(64,))):
        forward = {
            kernel.name
            for kernel in run.report.kernels
            if (kernel.layer, kernel.direction) == ("conv2", "forward")
        }
        kernels = [
            kernel._replace(direction="recompute")
            if (kernel.layer, kernel.direction) == ("conv2", "backward") and kernel.name in forward
            else kernel
            for kernel in run.report.kernels
        ]
        runs.append(replace(run, report=replace(run.report, kernels=kernels)))
    (study,) = studies(runs)
    found = judge(study, ledger(study))
    (item,) = found.at(64, "conv2", "recompute").causes
    assert item.rule == "recomputation" and "1.36 GFLOP" in describe_cause(item)
    assert not found.at(64, "conv2", "backward").causes


def test_one_layer_that_stays_within_its_tile_is_no_wrong_window() -> None:
    # both fit one tile of 128 rows
    found = judged(Scenario(forward={"fc1": "padding"}, batches=(64, 128)))[0]
    assert not found.sweep
    assert [item.rule for item in found.at(64, "fc1", "forward").causes] == ["tile padding"]


def test_a_single_batch_size_says_nothing_about_the_window() -> None:
    found = judged(Scenario(window=1000, batches=(64,)))[0]
    assert not found.sweep and all(not row.causes for row in found.rows.values())


@pytest.mark.parametrize(
    ("ratio", "factor", "share"),
    [
        (2.0, 2.0, 1.0),
        (4.0, 2.0, 0.5),
        (0.25, 0.5, 0.5),
        (2.0, 0.5, 0.0),
        (2.0, 8.0, 0.0),
        (1.0, 2.0, None),
        (2.0, None, None),
        (None, 2.0, None),
        (0, 2.0, 0),
        (1.004, 2.0, None),
        (2.0, 0, 0),
        (2.0, -1.0, 0),
        (0.5, 0.25, 0),
    ],
)
def test_the_explained_share_is_in_logarithms_between_0_and_1(
    ratio: float | None, factor: float | None, share: float | None
) -> None:
    assert explained_share(ratio, factor) == (None if share is None else pytest.approx(share))


def test_a_run_of_perfctl_ncu_is_not_told_to_use_it() -> None:
    for origin, advised in (("ingested", True), ("measured", False)):
        runs = [replace(run, origin=origin) for run in sim.make_runs(Scenario(window=1000))]
        (study,) = studies(runs)
        found = judge(study, ledger(study))
        todos = [describe_fix(item) for item in found.sweep if item.rule == "wrong window"]
        todos += [
            describe_fix(item)
            for row in found.rows.values()
            for item in row.causes
            if item.rule == "wrong window"
        ]
        assert todos and all(("'perfctl ncu' does" in todo) is advised for todo in todos)


def test_a_batch_beyond_the_sweep_may_be_one_that_the_program_pads_to() -> None:
    for window, beyond in ((1000, True), (256, True), (64, False)):
        (said,) = (
            item for item in judged(Scenario(window=window))[0].sweep if item.rule == "wrong window"
        )
        assert (f"or the program pads every batch to {window:,}" in describe_cause(said)) is beyond
