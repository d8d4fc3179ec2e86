"""What makes two sides not comparable, or is only said. All runs here are synthetic."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfctl.orchestrator.analyse.compare import compare
from perfctl.orchestrator.analyse.compare_facts import FACTS
from perfctl.orchestrator.analyse.compare_records import (
    MEANING,
    Side,
)
from perfctl.parsers.records import Sample
from perfctl.parsers.stored import Run
from tests.analyse.two_sides import ENVIRONMENT, H200


def changed(run: Run, what: dict[str, Any]) -> Run:
    """The run with other facts: fields of Run, of its Report, of its Device, or environment."""
    report, fields = run.report, dict(what)
    if "environment" in fields:
        report = replace(report, environment={**report.environment, **fields.pop("environment")})
    if "samples" in fields:
        report = replace(report, samples=fields.pop("samples"))
    return replace(run, report=report, **fields)


def sampled(clock: float) -> list[Sample]:
    return [Sample(at, 0.9, None, None, None, None, int(clock * 1e6), 0) for at in range(5)]


@pytest.mark.parametrize(
    ("fact", "what"),
    [
        ("device", {"device": replace(H200, name="NVIDIA A100")}),
        ("largest clock", {"device": replace(H200, clock_hz=1_200_000_000)}),
        ("driver", {"device": replace(H200, driver_version="535.1")}),
        ("SM clock while it ran", {"samples": sampled(1400)}),
        ("tf32_conv", {"environment": {"tf32_conv": "on"}}),
        ("tf32_matmul", {"environment": {"tf32_matmul": "on"}}),
        ("torch", {"environment": {"torch": "2.9.0"}}),
        ("cuda", {"environment": {"cuda": "13.0"}}),
        ("cudnn", {"environment": {"cudnn": "9.1"}}),
        ("cudnn_benchmark", {"environment": {"cudnn_benchmark": "on"}}),
        ("precision", {"precision": "bf16"}),
        ("mode", {"mode": "infer"}),
        ("variant", {"variant": "conv2=32,128,5,1"}),
        ("batch", {"batch_size": 128}),
        ("profiler", {"profiler": "torch"}),
        ("world_size", {"environment": {"world_size": "2"}}),
    ],
)
def test_what_makes_two_sides_not_comparable_is_named_and_force_compares_all_the_same(
    side: Any, fact: str, what: dict[str, Any]
) -> None:
    dice = random.Random(11)
    a, b = side("A", 3, dice, samples=sampled(1900)), side("B", 3, dice, samples=sampled(1910))
    assert not compare(a, b).not_comparable
    other = Side("B", tuple(changed(run, what) for run in b.runs))
    found = compare(a, other)
    (pair,) = found.not_comparable
    assert [one.fact for one in pair.blocked] == [fact]
    assert not pair.rows
    forced = compare(a, other, force=True)
    assert not forced.not_comparable
    assert forced.pairs[0].rows
    assert forced.pairs[0].blocked == pair.blocked


@pytest.mark.parametrize(
    ("fact", "what"),
    [
        ("host", {"host": "node7"}),
        ("python", {"environment": {"python": "3.12.1"}}),
        ("profiler version", {"profiler_version": "9.9"}),
        ("origin", {"origin": "recorded"}),
        ("threads of the host", {"environment": {"threads": "8"}}),
    ],
)
def test_what_is_only_said_does_not_block(side: Any, fact: str, what: dict[str, Any]) -> None:
    dice = random.Random(12)
    b = Side("B", tuple(changed(run, what) for run in side("B", 3, dice).runs))
    (pair,) = compare(side("A", 3, dice), b).pairs
    assert [(one.fact, one.blocks) for one in pair.differences] == [(fact, False)]
    assert pair.rows


def test_a_fact_that_one_side_did_not_record_is_said_and_does_not_block(side: Any) -> None:
    dice = random.Random(13)
    bare = {key: value for key, value in ENVIRONMENT.items() if key != "cudnn"}
    (pair,) = compare(side("A", 3, dice), side("B", 3, dice, environment=bare)).pairs
    (said,) = pair.differences
    assert (said.fact, said.a, said.b, said.blocks) == ("cudnn", "9.10", "not recorded", False)


def test_repeats_that_differ_among_themselves_are_no_repeats(side: Any) -> None:
    dice = random.Random(14)
    runs = side("A", 3, dice).runs
    mixed = Side("A", (*runs[:2], changed(runs[2], {"environment": {"torch": "2.9.0"}})))
    (pair,) = compare(mixed, Side("B", mixed.runs)).not_comparable
    assert [one.fact for one in pair.blocked] == ["torch"]


def test_the_threads_of_a_cpu_are_the_machine(synthetic: ModuleType) -> None:
    a, b = (synthetic.cpu_run(number, 64) for number in (1, 2))
    other = changed(b, {"environment": {"threads": "16"}})
    (pair,) = compare(Side("A", (a,)), Side("B", (other,))).not_comparable
    assert [one.fact for one in pair.blocked] == ["threads"]


def test_every_fact_is_in_the_table_once() -> None:
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_the_documentation_has_every_fact_and_every_verdict_as_they_are() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    for fact in FACTS:
        effect = "not comparable" if fact.blocks else "said"
        assert f"| {fact.name} | {effect} |" in text
    for verdict, meaning in MEANING.items():
        assert f"| {verdict} | {meaning} |" in text
