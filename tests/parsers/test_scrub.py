"""A scrubbed copy holds every measurement and no environment; what cannot be scrubbed for sure
is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, scrub, secret_scan
from perfctl.records.report import Report
from tests.parsers.nsys_secrets import EXPECTED, GITHUB, PASSWORD, VALUES, with_environment

GENERATIONS = ["2020.3", "2022.1", "2024.2", "2026.1"]
BULK = ("kernels", "counters", "copies", "ranges", "operations", "samples")


def facts(report: Report) -> dict[str, object]:
    """All measurements of a report."""
    single = ("devices", "environment", "gaps", "steps", "tool_version", "duration_ns")
    return {name: list(getattr(report, name)) for name in BULK} | {
        name: getattr(report, name) for name in single
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_copy_has_the_same_measurements_and_no_value_of_the_environment(
    generation: str, tmp_path: Path
) -> None:
    original = with_environment(tmp_path / "r.sqlite", generation)
    assert all(value.encode() in original.read_bytes() for value in (GITHUB, PASSWORD))
    done = scrub.scrub(original, tmp_path / "copy.sqlite")
    assert list(done.names) == EXPECTED
    assert [value for value in VALUES if value.encode() in done.path.read_bytes()] == []
    before, after = facts(parse(original)), facts(parse(done.path))
    assert before["kernels"] and before["ranges"]
    assert before == after


def test_the_report_itself_stays_as_it_is_and_nothing_else_is_left(tmp_path: Path) -> None:
    original = with_environment(tmp_path / "r.sqlite")
    bytes_before = original.read_bytes()
    scrub.scrub(original, tmp_path / "copy.sqlite")
    assert original.read_bytes() == bytes_before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.sqlite", "r.sqlite"]


def test_a_copy_that_would_still_hold_a_secret_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = with_environment(tmp_path / "r.sqlite")
    monkeypatch.setattr("perfctl.parsers.scrub.rewrite", lambda part, names: {})
    with pytest.raises(
        ReportError, match=r"would still hold DB_PASSWORD, .*FAKE_TOKEN.*so none was made"
    ):
        scrub.scrub(original, tmp_path / "copy.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["r.sqlite"]


def test_a_damaged_export_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    original = with_environment(tmp_path / "r.sqlite")
    original.write_bytes(original.read_bytes()[:9000])
    with pytest.raises(ReportError, match="damaged or cut off"):
        scrub.scrub(original, tmp_path / "copy.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["r.sqlite"]


def test_a_log_loses_its_secrets_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "ncu.csv"
    rows = '"ID","Kernel Name"\r\n"0","gemm(int)"\r\n'
    log.write_bytes(f"DB_PASSWORD={PASSWORD}\r\nurl https://me:hunter2@host/x\r\n{rows}".encode())
    done = scrub.scrub(log, tmp_path / "copy.csv")
    assert done.names == ("DB_PASSWORD", "a password in a URL")
    assert (
        done.path.read_bytes().decode()
        == f"DB_PASSWORD=(removed)\r\nurl https://me:(removed)@host/x\r\n{rows}"
    )


def test_a_trace_is_json_as_before_and_still_gzipped(tmp_path: Path) -> None:
    trace = {
        "env": {"HF_TOKEN": 'quoted " and \\ slash', "N": 1},
        "cmd": f'x --token "{GITHUB}" y',
        "events": [1, 2.5],
    }
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace, indent=1).encode()))
    done = scrub.scrub(path, tmp_path / "copy.json.gz")
    copy = json.loads(gzip.decompress(done.path.read_bytes()))
    assert copy["events"] == trace["events"]
    assert copy["env"]["HF_TOKEN"].startswith("(removed)")
    assert GITHUB not in json.dumps(copy)


def test_every_real_export_keeps_its_rows_and_passes_the_second_look(
    reports: Path, tmp_path: Path
) -> None:
    scrubbed = 0
    for original in sorted((reports / "nsys" / "sqlite").glob("*.sqlite")):
        try:
            before = facts(parse(original))
        except ReportError:
            continue
        done = scrub.scrub(original, tmp_path / original.name)
        assert facts(parse(done.path)) == before, original.name
        assert secret_scan.names_in(done.path) == []
        scrubbed += done.rows.get("StringIds", 0) > 0  # one was made without unused strings
    assert scrubbed > 10
