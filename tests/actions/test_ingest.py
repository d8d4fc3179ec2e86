"""perfctl.ingest as Python users call it: a record comes back, nothing is printed, errors name fields."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.errors import PartlyDone, UsageError

RECORDED = Path(__file__).resolve().parent.parent / "data" / "recorded-cpu" / "torch"
TRACE = RECORDED / "b16" / "report.pt.trace.json.gz"


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.total = 0
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def warning(self, text: str) -> None:
        self.lines.append(text)

    def found(self, total: int) -> None:
        self.total = total

    def begin(self, path: Path, what: str = "reading") -> None:
        self.lines.append(f"{what} {path.name}")

    def end(self) -> None:
        self.lines.append("end")

    def failed(self, text: str) -> None:
        self.lines.append(f"failed: {text}")


def test_a_report_goes_into_a_store_that_is_made_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "perfctl.db"
    done = perfctl.ingest(TRACE, store, hints=perfctl.UserHints(batch_size=16, workload="mnist_cnn"))
    ((path, written),) = done.taken
    assert (done.store, path, written.new, done.failed) == (store, TRACE, True, ())
    (run,) = perfctl.runs(store)
    assert (run.id, run.workload, run.batch_size) == (written.run_id, "mnist_cnn", 16)
    assert capsys.readouterr() == ("", "")
    done.check()

    again = perfctl.ingest([TRACE], store)
    assert [(one.run_id, one.new) for _, one in again.taken] == [(written.run_id, False)]


def test_what_cannot_be_read_is_in_the_record_and_the_listener_hears_it(tmp_path: Path) -> None:
    heard = Heard()
    done = perfctl.ingest([TRACE, tmp_path / "gone.csv"], tmp_path / "perfctl.db", listener=heard)
    said = f"{tmp_path / 'gone.csv'}: there is no such file. Check the path"
    assert (len(done.taken), done.failed, heard.total) == (1, (said,), 2)
    read = [f"reading {TRACE.name}", f"looking for secrets {TRACE.name}", "end"]
    assert heard.lines == [*read, "reading gone.csv", f"failed: {said}", "end"]
    with pytest.raises(PartlyDone, match="1 of 2 could not be read"):
        done.check()


@pytest.mark.parametrize(
    ("hints", "field"),
    [
        (perfctl.UserHints(mode="bogus"), "`mode`: 'bogus' is not known"),
        (perfctl.UserHints(precision="int3"), "`precision`: 'int3' is not known"),
        (perfctl.UserHints(batch_size=0), "`batch_size` must be at least 1, got 0"),
        (perfctl.UserHints(guess_layers=True), "`guess_layers`: of which network"),
    ],
)
def test_hints_that_make_no_sense_are_refused_by_field_before_a_store_is_made(
    hints: perfctl.UserHints, field: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=field):
        perfctl.ingest(TRACE, tmp_path / "perfctl.db", hints=hints)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_that_is_given_is_stored(tmp_path: Path) -> None:
    store = tmp_path / "perfctl.db"
    perfctl.ingest(TRACE, store, command_line="perfctl ingest trace")
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT kind, command FROM sweep").fetchall() == [("ingest", "perfctl ingest trace")]
