"""perfctl as a program: before its own modules are there, and when what was typed makes
no sense."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfctl.orchestrator.cli import main as command_line
from tests.cli.conftest import Said

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


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    done = subprocess.run(
        (sys.executable, "-c", CTRL_C_WHILE_IT_LOADS), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("reprot", "no such command 'reprot'. Did you mean 'report', "),
        ("nonsense", "no such command 'nonsense'. Run 'perfctl --help' for the valid options"),
        ("slurm rendr", "Did you mean 'render'? Run 'perfctl slurm --help' for the valid options"),
        (
            "--verson",
            "no such option: --verson (Possible options: --version). Run 'perfctl --help' for the valid options",
        ),
        ("report --ot x", "no such option: --ot (Possible options: --"),
        ("show", "missing argument 'run'. Run 'perfctl show --help' for the valid options"),
        ("show one", "RUN: 'one' is not a whole number"),
        ("export --run x", "--run: 'x' is not a whole number"),
        ("torch --repeat 0", "--repeat must be at least 1, got 0"),
        ("torch --repeat 1001", "--repeat must be at most 1000, got 1001"),
        ("torch --timeout soon", "--timeout: 'soon' is not a number"),
        (
            "doctor now",
            "got unexpected extra argument(s) (now). Run 'perfctl doctor --help' for the valid options",
        ),
        (
            "torch --bacthes 2",
            ("'--bacthes 2' of perfctl and its workload mnist_cnn. Did you mean --batches? "),
        ),
        ("torch --step=3", "Did you mean --steps? "),
        (
            "torch --quite-unlike-any",
            (
                "its workload mnist_cnn. --help lists perfctl's options, 'python -m "
                "perfctl.workloads mnist"
            ),
        ),
        (
            "nsys --batches 2 train.py",
            "Put your own script after --: -- python train.py --batch-size {batch}",
        ),
        (
            "ingest --guess-layers gone.csv",
            "--guess-layers needs the name of the network. Set it with --workload: ",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line_with_what_to_do_and_starts_nothing(
    perfctl: Callable[..., Said], typed: str, said: str
) -> None:
    answer = perfctl(*typed.split())
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("perfctl: ") and said in answer.err
    assert list(Path().iterdir()) == []


def test_without_a_command_it_lists_them_and_says_where_to_start(
    perfctl: Callable[..., Said],
) -> None:
    answer = perfctl()
    assert "Start with 'perfctl doctor'" in answer.out + answer.err


LOADED = """
import sys
from perfctl.orchestrator.cli.main import run
ROOMS = tuple(f"perfctl.orchestrator.{room}." for room in ("estimate", "counts", "ledger", "compare", "predict"))
code = run(sys.argv[1:])
print(*sorted(name for name in sys.modules if name.startswith(ROOMS)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", ["runs", "query 'SELECT 1'", "runs --help", "doctor"])
def test_what_analyses_nothing_loads_no_analysis(words: str, replayed: Path) -> None:
    store = [] if words in ("doctor", "runs --help") else ["--store", str(replayed)]
    typed = (sys.executable, "-c", LOADED, *shlex.split(words), *store)
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    assert loaded in ([], ["perfctl.orchestrator.counts.figure"]), (
        "numbers are written from figures"
    )


def test_ctrl_c_while_a_module_makes_its_classes_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        command_line, "application", lambda only: type("Made", (), {"field": Interrupted()})
    )
    assert command_line.run(["runs"]) == 130
    assert capsys.readouterr().err == "perfctl: stopped\n"
