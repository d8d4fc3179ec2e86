import json

import pytest

from perfctl.orchestrator.cli import console

PRINTS_ITS_OWN = True


@pytest.mark.parametrize(
    ("write", "text", "printed"),
    [
        (console.print_result_line, "kernel\x1b[31m\x9b\x07", "kernel\\x1b[31m\\x9b\\x07"),
        (console.print_result_line, "Größe 大きさ → 1\tµs", "Größe 大きさ → 1\tµs"),
        (console.print_error, "a\nb: cannot be read", "perfctl: a b: cannot be read"),
        (
            console.print_error,
            "https://bob:hunter22@host/x",
            "perfctl: https://bob:(removed)@host/x",
        ),
    ],
    ids=["control characters", "letters of any language", "line breaks", "secrets"],
)
def test_what_a_terminal_would_obey_is_printed_as_text(write, text, printed, capsys):
    write(text)
    assert "".join(capsys.readouterr()) == f"{printed}\n"


def test_marks_that_turn_a_line_around_and_halves_of_pairs_are_shown_as_such(capsys):
    console.print_result_line("a\u202eb\u2066c\udcffd")
    console.print_json({"name": "a\u202eb\udcff\x9b"})
    out = capsys.readouterr().out
    out.encode("utf-8")
    assert out.startswith("a\\u202eb\\u2066c\\udcffd\n")
    assert json.loads(out.partition("\n")[2]) == {"name": "a\u202eb\udcff\x9b"}
    assert not any(mark in out for mark in ("\u202e", "\u2066", "\x9b"))
