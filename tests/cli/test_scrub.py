"""perfctl scrub: where the copy goes, and what is said of it."""

import pytest

from tests.make.rocpd import made

VALUE = "correct-horse-battery"
TRACE = (
    '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": '
    '1, "tid": 1, "ts": 1, "dur": 2, "args": {}}], "host": {"DB_PASSWORD": "%s"}}'
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(TRACE % VALUE)
    return path


def test_the_copy_is_written_beside_the_report_and_kinds_are_said(perfctl, trace):
    said = perfctl("scrub trace.json").ok()
    assert "Replaced by (removed): secret 1" in said.out
    assert "Replace those tokens" in said.out
    assert said.out.startswith("Wrote trace.scrubbed.json\n")
    assert "\nNext: perfctl ingest trace.scrubbed.json\n" in said.out
    assert VALUE not in said.out + said.err
    assert VALUE not in (trace.parent / "trace.scrubbed.json").read_text()
    assert VALUE in trace.read_text()


def test_a_log_that_is_no_report_is_copied_and_not_offered_to_ingest(perfctl, tmp_path):
    (tmp_path / "run.log").write_text("loss 0.1\n")
    said = perfctl("scrub run.log")
    assert (said.code, said.out.splitlines()[0]) == (0, "Wrote run.scrubbed.log")


def test_scrub_says_what_it_removed_of_a_rocpd_database_and_what_it_cannot_know(perfctl, tmp_path):
    made(tmp_path / "r.db")
    said = perfctl("scrub r.db").ok()
    assert "1 row emptied (process environments, commands)" in said.out
    assert "1 row emptied (host names)" in said.out
    assert "The copy keeps passwords and tokens without a known name or prefix" in said.out
    assert "secret0123" not in said.out
    assert b"node17" not in (tmp_path / "r.scrubbed.db").read_bytes()
