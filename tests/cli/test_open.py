"""perfctl open keeps what it makes in the user's cache folder, and opens a browser only where there
is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    for name in ("SSH_CONNECTION", "SSH_TTY", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "perfctl" / "opened"


def test_the_same_files_use_one_store_until_they_change_or_are_forgotten(perfctl, recorded, cache):
    shutil.copytree(recorded / "torch" / "b16", "b16")
    trace = Path("b16") / "report.pt.trace.json.gz"
    first, second = (perfctl(f"open {trace} --json").json for _ in range(2))
    assert first == second
    assert Path(first["page"]).parent == Path(first["store"]).parent
    (warning,) = first["warnings"]
    assert "the trace holds no GPU activity" in warning

    shutil.copy(recorded / "torch" / "b32" / trace.name, trace)
    assert perfctl(f"open {trace} --json").json["store"] != first["store"]
    assert len(list(cache.iterdir())) == 2
    assert perfctl(f"open {trace} --forget --json").json["forgotten"]
    assert [str(folder) for folder in cache.iterdir()] == [str(Path(first["store"]).parent)]
    perfctl("open --forget")
    assert not cache.exists()
    assert perfctl("open --forget").out == "Nothing to forget\n"


def test_what_is_no_report_is_refused_and_leaves_nothing(perfctl, cache):
    Path("notes.txt").write_text("nothing was measured\n")
    answer = perfctl("open notes.txt")
    assert (answer.code, answer.out) == (1, "")
    assert "notes.txt: it is not a profiler report" in answer.err
    assert not list(cache.iterdir())
    assert perfctl("open nowhere.json").code == perfctl("open").code == 2


def test_what_was_read_in_part_is_read_again_and_a_folder_is_what_it_holds(perfctl, recorded):
    name = "report.pt.trace.json.gz"
    Path("runs/b16").mkdir(parents=True)
    shutil.copy(recorded / "torch" / "b16" / name, f"runs/b16/{name}")
    broken = Path("runs/b16/broken.pt.trace.json")
    broken.write_text('{"schemaVersion": 1, "traceEvents": [{')
    answers = [perfctl("open runs") for _ in range(2)]
    assert [answer.code for answer in answers] == [4, 4]
    assert all("broken.pt.trace.json" in answer.err for answer in answers)
    broken.unlink()
    assert [perfctl("open runs").code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("variables", "option", "opens"),
    [
        pytest.param({"DISPLAY": ":0"}, "", True, id="on a desktop"),
        pytest.param({}, "", False, id="without a display"),
        pytest.param({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, "", False, id="over SSH"),
        pytest.param({"DISPLAY": ":0"}, "--no-browser", False, id="not asked for"),
    ],
)
def test_a_browser_opens_where_the_user_sees_it(
    perfctl, recorded, monkeypatch, variables, option, opens
):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    page = perfctl(f"open {recorded / 'torch' / 'b16'} {option} --json").json["page"]
    assert opened == ([Path(page).as_uri()] if opens else [])
