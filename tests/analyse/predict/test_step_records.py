"""The JSON of a step model made by hand: every field, and each way in which it can be damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfctl.orchestrator.analyse.predict import trees
from perfctl.orchestrator.analyse.predict.step_model import from_json, to_json
from perfctl.orchestrator.analyse.predict.step_parts import PARTS
from tests.analyse.made_fits import fit_of

FIT = fit_of({"conv forward": 2.0, "step forward": 0.5}, {"forward": {"step forward": 1.0}, "backward": {}})
FIRST = [2.0, *[0.0] * (len(PARTS) - 2), 0.5]


def test_a_fit_is_written_field_by_field_and_read_back() -> None:
    whole = to_json(FIT)
    assert json.loads(json.dumps(whole)) == {
        "format": "perfctl step 1", "name": "made up", "precision": "fp32", "training": True, "parts": list(PARTS),
        "machine": {
            "name": "Test CPU", "kind": "cpu", "flops_per_second": {"fp32": 100e9}, "bytes_per_second": 20e9,
            "memory_bytes": None, "sms": None, "clock_hz": None, "l2_bytes": None, "launch_seconds": None,
            "power_w": None, "process_nm": None,
        },
        "costs": FIRST, "phases": {"forward": [*[0.0] * (len(PARTS) - 1), 1.0], "backward": [0.0] * len(PARTS)},
        "fitted": json.loads(json.dumps(trees.to_json(FIT.fitted))), "families": ["f"], "optimizers": ["momentum"],
    }  # fmt: skip
    assert from_json(json.loads(json.dumps(whole))) == FIT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"costs": [float("inf"), *FIRST[1:]]}, f"costs must be {len(PARTS)} figures of 0 or more"),
        ({"costs": [float("nan"), *FIRST[1:]]}, "figures of 0 or more"),
        ({"costs": [*FIRST[:-1], -1e-9]}, "figures of 0 or more"),
        ({"costs": FIRST[1:]}, "figures of 0 or more"),
        ({"costs": [*FIRST, 0.0]}, "figures of 0 or more"),
        ({"phases": {"forward": [1.0]}}, "figures of 0 or more"),
        ({"costs": 5}, "not a fitted step model"),
        ({"machine": {"name": "x"}}, "not a fitted step model"),
        ({"parts": [*PARTS[1:], PARTS[0]]}, "other parts or features than this version's: fit again"),
        ({"fitted": {**trees.to_json(FIT.fitted), "features": ["x"]}}, "other parts or features"),
        ({"format": None}, "format is None, not 'perfctl step 1': fit again"),
    ],
)
def test_what_is_damaged_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_json({**to_json(FIT), **change})


@pytest.mark.parametrize(
    "name",
    ["name", "machine", "precision", "training", "parts", "costs", "phases", "fitted", "families", "optimizers"],
)
def test_each_field_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is missing$"):
        from_json({key: value for key, value in to_json(FIT).items() if key != name})
