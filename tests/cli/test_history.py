"""perfctl history, from recorded sweeps of the CPU whose steps are stretched by known factors."""

import json
import re
import shutil

import pytest

pytest.importorskip("ruptures", reason="perfctl history needs perfctl[history]")
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998)


@pytest.fixture
def slower_from_the_eighth_on(repeated):
    """Folders of 14 sweeps, a day apart; from the eighth on, steps take 1.5 times as long, and
    torch is another one."""
    folders = []
    for at in range(14):
        slow, torch = (1.5, "2.15") if at >= 7 else (1.0, "2.14")
        folders.append(repeated(f"day{at}", [NOISE[at % 7] * slow], torch=torch))
        for name in ("run.json", "workload.json"):
            path = folders[-1] / "b16" / name
            text = re.sub(
                r'("started_at": ")2026-11-\d\d', rf"\g<1>2026-10-{at + 1:02}", path.read_text()
            )
            path.write_text(text)
    return folders


def test_the_point_from_which_steps_took_longer_is_named_with_what_else_changed(
    perfctl, slower_from_the_eighth_on, tmp_path
):
    assert perfctl("ingest", *slower_from_the_eighth_on).code == 0
    said = perfctl(f"history --out {tmp_path / 'history.html'}").ok()
    (line,) = re.findall(r"step [+-].*changed: .*", " ".join(said.out.split()))
    assert re.search(r"step \+(49|50|51)(\.\d+)?% between run 7 .*and run 8 ", line)
    assert "torch 2.14 to 2.15" in line
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    assert re.search(r"<h1>\d+ changes? in 14 points</h1>", page)
    assert "torch 2.14 to 2.15" in page
    series = json.loads(perfctl("history --json").out)["lines"][0]["series"]
    assert page.count("</tr>") == len(series) + 1, "a row each, below the heads"


def test_several_stores_are_one_history(perfctl, replayed, tmp_path):
    other = tmp_path / "other" / "second.db"
    other.parent.mkdir()
    shutil.copy(replayed, other)
    found = perfctl(f"history --store {replayed} --store {other} --json").json
    assert all(len(line["points"]) == 2 for line in found["lines"])
    points = [point for line in found["lines"] for point in line["points"]]
    assert {found["stores"][run["store"]] for point in points for run in point} == {
        str(replayed),
        str(other),
    }
