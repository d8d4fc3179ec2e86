"""perfctl as a program, before its own modules are there."""

from __future__ import annotations

import signal
import subprocess
import sys

CTRL_C_WHILE_IT_LOADS = """
import os, signal, sys
class Importing:
    def find_spec(self, name, *rest):
        if name == "perfctl.orchestrator.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Importing())
from perfctl.__main__ import main
main()
"""


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    done = subprocess.run((sys.executable, "-c", CTRL_C_WHILE_IT_LOADS), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
