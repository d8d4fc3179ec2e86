"""Rows of JSON become records only with the types that the record says."""

from __future__ import annotations

import re

import pytest

from perfctl.parsers.own.json import typed
from perfctl.records.report import Step


def row(**changed: object) -> dict[str, object]:
    return {"number": 1, "phase": "step", "start_ns": None, "duration_ns": 5, "loss": 0.5} | changed


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"loss": 2},
        {"loss": None},
        {"duration_ns": 2**63 - 1},
        {"duration_ns": -(2**63)},
        {"accuracy": 1.0},
    ],
)
def test_a_whole_row_is_its_record_and_a_whole_number_may_stand_for_a_float(
    changed: dict[str, object],
) -> None:
    assert typed(Step, row(**changed)) == Step(**row(**changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"number": None}, TypeError, "Step.number is 'None'"),
        ({"number": 1.0}, TypeError, "Step.number is '1.0'"),
        ({"phase": 3}, TypeError, "Step.phase is '3'"),
        ({"loss": "y" * 61}, TypeError, f"Step.loss is '{'y' * 60}'"),
        ({"duration_ns": 0.5}, TypeError, "Step.duration_ns is '0.5'"),
        ({"duration_ns": 2**63}, OverflowError, "Step.duration_ns does not fit 64 bits"),
        ({"duration_ns": -(2**63) - 1}, OverflowError, "Step.duration_ns does not fit 64 bits"),
        ({"loss": 2**64}, OverflowError, "Step.loss does not fit 64 bits"),
        ({"mood": "good"}, TypeError, "mood"),
    ],
)
def test_a_field_of_another_type_is_named_with_what_stands_in_it(
    changed: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        typed(Step, row(**changed))
