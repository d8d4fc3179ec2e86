"""Derived counts hold on hardware counters with known shapes, where ../shared has them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from perfctl.orchestrator.analyse.derived.records import Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive, verified


@cache
def silicon(file: str = "silicon") -> ModuleType:
    """A file of scripts/, which is no package."""
    path = Path(__file__).resolve().parents[3] / "scripts" / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"perfctl_scripts_{file}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_nearly_all_launches_of_the_a100_are_within_two_percent_and_none_is_far_off(shared: Path) -> None:
    found = list(silicon().rows(shared / "datasets" / "a100_operators"))
    assert len(found) > 1_000
    assert sum(silicon().near(row.error) for row in found) >= silicon().WANTED * len(found)
    assert sum(silicon().near(row.whole_error) for row in found) >= 0.95 * len(found)
    assert max(abs(row.error) for row in found if row.error is not None) < 0.15


def test_stated_errors_are_those_of_the_counters(shared: Path) -> None:
    families = defaultdict(list)
    for row in silicon().rows(shared / "datasets" / "a100_operators"):
        families[row.family].append(row)
    stated = {
        family: {"launches": one.launches, "within": one.within, "worst": one.worst, "chip": one.chip}
        for family, one in verified().items()
    }
    assert stated == json.loads(
        json.dumps(silicon().facts(families) | silicon("silicon_reports").facts(shared / "reports"))
    )


def test_reports_of_other_chips_agree_and_what_has_no_rule_says_why(shared: Path) -> None:
    """V100: a product on tensor cores; A100: an attention layer in fp32; RTX 5090: causal tiles."""
    pytest.importorskip("ncu_report")
    found, without = silicon("silicon_reports").rows(shared / "reports")
    ruled = [row for row in found if row.derived is not None]
    assert sum(row.launches for row in ruled) >= 20 and all(row.deviation == 0 for row in ruled)
    exact = {row.counted for row in ruled}
    causal = 32 * 33 // 2  # tiles of 64 x 64 that the mask leaves of 32 x 32
    assert {2 * 20480**3, 16 * causal * 64 * 64 * 128 * 2, 16 * 128 * 128 * 32} <= exact
    assert all(len(row.note) > 10 for row in found if row.derived is None)
    assert "b200_flashinfer_gqa_bf16_b1_ctx32k_p64.ncu.csv" in without


def test_the_right_shape_decides(shared: Path) -> None:
    """With twice the outputs no launch comes out right: the match is no accident."""
    for row in silicon().rows(shared / "datasets" / "a100_operators"):
        if row.family != "gemmSN":
            continue
        other = derive(Launch(row.name), Work(replace(row.shape, n=row.shape.n * 2), onto=True))
        assert other is not None and not silicon().near(other.ffma / row.ffma - 1)
