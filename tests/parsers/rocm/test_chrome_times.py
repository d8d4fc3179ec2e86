"""What the events of rocprof's trace state twice."""

from __future__ import annotations

from perfctl.parsers.rocm.agreement import ChromeTimes

TIMES = {"BeginNs": "5000", "EndNs": "9000", "DurationNs": "4000", "Name": "hipFree"}
EVENT = {"name": "hipFree", "ts": "5", "dur": "4"}


def said(*arguments: dict[str, str]) -> str:
    times = ChromeTimes()
    for one in arguments:
        times.event(EVENT, one, operation=False)
    return " ".join(one.text for one in times.diagnostics())


def test_an_event_that_lost_its_arguments_is_told_from_the_others() -> None:
    assert said(TIMES, TIMES) == ""
    assert "1 event has no BeginNs and EndNs, as the other 2 have" in said(TIMES, {}, TIMES)
    assert said({}, {}) == "", "none has times: there is nothing to miss"
