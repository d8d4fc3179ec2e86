"""The installer of Nsight beside another program that uses apt: a stand-in for apt-get says what
the real one says then."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup" / "install_nsight_debian.sh"
LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 42 (apt-get)"


def functions(folder, apt_get):
    """The script's function, to be called by itself: the rest needs root and changes the
    system's sources."""
    text = SCRIPT.read_text(encoding="utf-8")
    start = text.index("apt() {")
    (folder / "functions.sh").write_text(text[start : text.index("\n}\n", start) + 3])
    (folder / "apt-get").write_text(f"#!/bin/sh\n{apt_get}\n")
    (folder / "apt-get").chmod(0o755)
    return ["sh", "-euc", '. "$0/functions.sh"; apt update', str(folder)]


def call(folder, apt_get, wait):
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "APT_WAIT": str(wait)}
    return subprocess.run(
        functions(folder, apt_get),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_installer_waits_while_another_program_holds_the_lock_of_apt(tmp_path):
    once = (
        f'[ -e "{tmp_path}/tried" ] && echo "$@" && exit; touch "{tmp_path}/tried"; echo '
        f'"{LOCKED}" >&2; exit 100'
    )
    done = call(tmp_path, once, wait=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-q", "-o", "DPkg::Lock::Timeout=30", "update"]
    assert "another program uses apt" in done.stderr


@pytest.mark.parametrize(
    ("said", "wait"), [(LOCKED, 0), ("E: Unable to locate package nsight-systems", 30)]
)
def test_a_lock_that_is_held_too_long_and_any_other_failure_end_it_with_apts_own_words(
    tmp_path, said, wait
):
    done = call(tmp_path, f'echo x >>"{tmp_path}/calls"; echo "{said}" >&2; exit 100', wait)
    assert done.returncode != 0
    assert said in done.stderr
    assert (tmp_path / "calls").read_text() == "x\n"
