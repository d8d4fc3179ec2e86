"""The gate that every file passes which perfctl writes."""

import os
import sqlite3
import threading

import pytest

from perfctl import compare, report
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import (
    raise_if_output_not_replaceable,
    replace_when_done,
    write_text,
)
from perfctl.orchestrator.store import database

PAGE = (
    '<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'sha256-abc='; style-src 'unsafe-inline'\"><title>runs - perfctl</title>"
)


@pytest.mark.parametrize(
    ("content", "is_replaced"),
    [
        pytest.param("", True, id="an empty file"),
        pytest.param(PAGE, True, id="an HTML report of perfctl"),
        pytest.param("### perfctl compare: a against b\n", True, id="a summary of compare"),
        pytest.param("## perfctl gate\n\n", True, id="a comment of gate"),
        pytest.param("<?xml?>\n<testsuites name='perfctl gate'>", True, id="JUnit"),
        pytest.param('{\n "format": "perfctl gate", "version": 1', True, id="a baseline"),
        pytest.param("<title>notes - perfctl</title>", False, id="a page about perfctl"),
        pytest.param("# perfctl compare\n", False, id="notes about perfctl"),
        pytest.param('{"traceEvents": []}', False, id="a profiler report"),
    ],
)
def test_only_what_perfctl_wrote_is_replaced_without_force(tmp_path, content, is_replaced):
    file = tmp_path / "file"
    file.write_text(content)
    if is_replaced:
        write_text(file, "new")
    else:
        with pytest.raises(UsageError, match="already exists"):
            write_text(file, "new")
        assert file.read_text() == content
        write_text(file, "new", force=True)
    assert file.read_text() == "new"


@pytest.mark.parametrize("is_folder", [False, True], ids=["a file", "a file in a folder"])
def test_a_results_database_is_never_replaced(tmp_path, is_folder):
    store = tmp_path / "perfctl.db"
    with database.open_store_for_writing(store):
        pass
    before = store.read_bytes()
    out = tmp_path if is_folder else store
    with (
        pytest.raises(UsageError, match="never overwrites"),
        replace_when_done(out, force=True, is_folder=is_folder) as partial,
    ):
        (partial / "perfctl.db" if is_folder else partial).write_text("new")
    assert store.read_bytes() == before


def test_another_database_is_replaced_with_force_only(tmp_path):
    file = tmp_path / "report.sqlite"
    sqlite3.connect(file).execute("CREATE TABLE kernel (id)").connection.close()
    with pytest.raises(UsageError, match="already exists"):
        raise_if_output_not_replaceable(file, force=False)
    raise_if_output_not_replaceable(file, force=True)


def test_a_pipe_stays_and_receives_the_content(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert received == ["through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("place", ["the file itself", "its folder", "a link to it"])
def test_no_command_writes_over_what_it_reads(tmp_path, place):
    folder = tmp_path / "reports"
    folder.mkdir()
    source, link = folder / "trace.json", tmp_path / "link.html"
    source.write_text('{"traceEvents": [], "schemaVersion": 1}')
    link.symlink_to(source)
    a = folder if place == "its folder" else source
    out = link if place == "a link to it" else source
    with pytest.raises(UsageError, match="a file that this command reads"):
        compare(a, a, out=out, force=True)
    with pytest.raises(UsageError, match="a file that this command reads"):
        report(source, out=source, force=True)
