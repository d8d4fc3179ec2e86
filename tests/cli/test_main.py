"""perfctl as a program: before its own modules are there, and when what was typed makes
no sense."""

from __future__ import annotations

import io
import shlex
import signal
import subprocess
import sys

import pytest
import typer

from perfctl.orchestrator.cli import main as command_line

CTRL_C_WHILE_IT_LOADS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in a shell's background
class Importing:
    def find_spec(self, name, *rest):
        if name == "perfctl.orchestrator.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Importing())
from perfctl.__main__ import main
main()
"""


def test_ctrl_c_while_modules_load_shows_no_traceback():
    done = subprocess.run(
        (sys.executable, "-c", CTRL_C_WHILE_IT_LOADS), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


LOADED = """
import sys
from perfctl.orchestrator.cli.main import run_command_line as run
ROOMS = tuple(f"perfctl.orchestrator.{room}." for room in ("estimate", "counts", "ledger", "compare", "predict"))
code = run(sys.argv[1:])
print(*sorted(name for name in sys.modules if name.startswith(ROOMS)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", ["runs", "query 'SELECT 1'", "runs --help", "doctor"])
def test_what_analyses_nothing_loads_no_analysis(words, replayed):
    store = [] if words in ("doctor", "runs --help") else ["--store", str(replayed)]
    typed = (sys.executable, "-c", LOADED, *shlex.split(words), *store)
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    assert loaded in ([], ["perfctl.orchestrator.counts.figure"]), (
        "numbers are written from figures"
    )


def test_ctrl_c_while_a_module_makes_its_classes_is_no_traceback(monkeypatch, capsys):
    class Interrupted:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(
        command_line, "build_application", lambda only: type("Made", (), {"field": Interrupted()})
    )
    assert command_line.run_command_line(["runs"]) == 130
    assert capsys.readouterr().err == "perfctl: stopped\n"


def test_ctrl_c_inside_a_command_is_said(monkeypatch, capsys):
    app = typer.Typer()

    @app.command()
    def runs() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "build_application", lambda only: app)
    assert command_line.run_command_line([]) == 130
    assert capsys.readouterr().err.strip() == "perfctl: stopped"


def test_letters_that_the_encoding_lacks_are_escaped(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(SystemExit):
        command_line.main(["--version"])
    output.write("µ\U0001f600")
    output.flush()
    content = output.buffer
    content.seek(0)
    assert content.read().endswith(rb"\u00b5\ud83d\ude00")
