"""Hand-written pages have short sentences, short cells and none of the banned phrases."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("words", ROOT / "scripts" / "accept" / "words.py")
assert _SPEC is not None
assert _SPEC.loader is not None
words = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(words)

LONG = " ".join(["word"] * 30)


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        pytest.param(f"A{LONG}.", [], id="30 words are allowed"),
        pytest.param(f"A {LONG}.", [(1, "sentence of 31 words")], id="31 words are too many"),
        pytest.param(f"A {LONG[:100]}. B {LONG[:110]}.", [], id="two sentences count apart"),
        pytest.param(f"Short\nlines\n\n- A {LONG}", [(4, "sentence of 31 words")], id="a bullet"),
        pytest.param(f"`{LONG} {LONG}` and [{LONG[:40]}]({LONG[:9]}).", [], id="code is one word"),
        pytest.param(f"```\n{LONG} {LONG} 5 %\n```\nText.", [], id="blocks of code do not count"),
        pytest.param(f"<!-- {LONG}\n {LONG} -->\n5 %", [(3, "banned phrase: 5 %")], id="comments"),
        pytest.param(f"| a | {LONG[:79]} |", [(1, "cell of 16 words")], id="a cell of 16 words"),
        pytest.param("The count is told.", [(1, "banned phrase: is told")], id="passive"),
        pytest.param("29.3% in 5 µs, 5 ms", [], id="units as they should be"),
        pytest.param("It took 5 us.", [(1, "banned phrase: 5 us")], id="us for microseconds"),
    ],
)
def test_a_page_is_read_as_its_reader_does(text, complaints):
    assert [
        (line, found.partition(":")[0] if found.startswith(("sentence", "cell")) else found)
        for line, found in words.check(text)
    ] == complaints


def test_no_page_has_anything_to_mend(capsys):
    assert words.main([]) == 0, capsys.readouterr().out
