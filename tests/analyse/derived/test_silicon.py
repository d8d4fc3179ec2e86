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

from perfctl.orchestrator.analyse.derived.records import Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive, verified


@cache
def silicon() -> ModuleType:
    """scripts/silicon.py, which is no package."""
    path = Path(__file__).resolve().parents[3] / "scripts" / "silicon.py"
    spec = importlib.util.spec_from_file_location("perfctl_scripts_silicon", path)
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
    assert json.loads(json.dumps(silicon().facts(families))) == {
        family: {"launches": one.launches, "within": one.within, "worst": one.worst, "chip": one.chip}
        for family, one in verified().items()
        if family in families
    }


def test_the_right_shape_decides(shared: Path) -> None:
    """With twice the outputs no launch comes out right: the match is no accident."""
    for row in silicon().rows(shared / "datasets" / "a100_operators"):
        if row.family != "gemmSN":
            continue
        other = derive(Launch(row.name), Work(replace(row.shape, n=row.shape.n * 2), onto=True))
        assert other is not None and not silicon().near(other.ffma / row.ffma - 1)
