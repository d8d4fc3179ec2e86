"""Names that try to be SQL, markup, links and terminal commands, from a report through every
command that shows them."""

import re

import pytest

from tests.cli.conftest import sql
from tests.make.nsys_sqlite import NsysBuilder

NAMES = (
    "'); DROP TABLE run; --",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\x1b]0;title\x07\x1b[2J\x9b31m",
    "abc\u202egnp.exe\u2066",
    "[red]x[/red] [/]",
    "$\\frac{1}{0$ {{ 7*7 }} {% x %}",
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def store(perfctl, tmp_path):
    """Two runs whose workload, layers, ranges and kernels have these names."""
    for batch in (16, 32):
        builder = NsysBuilder()
        builder.range("perfctl:step:0", 0, 9000)
        for place, name in enumerate(NAMES):
            builder.range(f"{name}:forward", 100 * place + 1, 100 * place + 90)
            builder.launch(100 * place + 10, name=name)
        builder.range(f"batch {batch}", 8000, 8001)
        builder.write(tmp_path / f"b{batch}.sqlite")
    said = perfctl(
        "ingest",
        "b16.sqlite",
        "b32.sqlite",
        "--workload",
        "".join(NAMES),
        "--device-name",
        NAMES[3],
    ).ok()
    assert not OBEYED.search(said.out + said.err)
    return tmp_path / "perfctl.db"


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("show", "1"),
        ("ledger",),
        ("query", "SELECT * FROM kernel"),
        ("compare", "run:1", "run:2"),
        ("query", "SELECT name FROM range", "--json"),
        ("runs", "--json"),
        ("show", "1", "--json"),
        ("ledger", "--json"),
        ("show", "99"),
        ("query", "SELECT '\x1b[31m' FROM nothing"),
        ("report",),
        ("export",),
        ("trace", "1"),
        ("plot", "--list"),
    ],
)
def test_no_command_sends_a_terminal_what_it_would_obey(perfctl, store, words):
    said = perfctl(*words)
    assert said.code in (0, 1, 2, 3)
    assert said.out + said.err
    assert not OBEYED.search(said.out + said.err)
    assert "Traceback" not in said.err


def test_names_are_bound_and_come_back_whole(perfctl, store):
    assert {name for (name,) in sql("SELECT DISTINCT name FROM kernel")} == set(NAMES)
    assert sql("SELECT count(*) FROM run") == [(2,)]


def test_pages_and_drawings_hold_them_as_text(perfctl, store, tmp_path):
    assert perfctl("report").code == 0
    for chart in perfctl("plot --list --json").json:
        assert perfctl(f"plot {chart['name']} --out {chart['name']}.svg").code == 0
    pages = [*tmp_path.glob("*.html"), *tmp_path.glob("*.svg")]
    assert {page.suffix for page in pages} == {".html", ".svg"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text
        assert not re.search(r'(?:href|src)\s*=\s*["\']?\s*javascript:', text)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", text)
        assert "{{ 7*7 }}" in text or page.suffix == ".svg"
