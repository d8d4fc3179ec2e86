"""perfctl itself told to stop, or killed: nothing that it started stays."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.launch.programs import STUBBORN_DAEMON, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_perfctl_ends_everything_and_is_told(tmp_path, processes, number):
    driver = processes.start_perfctl(
        tmp_path,
        sys.executable,
        "-S",
        "-c",
        STUBBORN_DAEMON,
        "600",
        # the tests themselves may run under nohup
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    processes.wait_for(2)
    driver.send_signal(number)
    said, _ = driver.communicate(timeout=600.0)
    assert said.startswith(f"interrupted by {int(number)}: stopped by {number.name} during profile")
    assert processes.alive() == []
    assert driver.returncode == 0


def test_a_second_signal_cuts_the_grace_short(tmp_path, processes):
    driver = processes.start_perfctl(
        tmp_path, sys.executable, "-S", "-c", STUBBORN_DAEMON, "600", grace="600"
    )
    processes.wait_for(2)
    driver.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert processes.alive()
    while driver.poll() is None:  # a busy machine may hand over two at once, which count as one
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
    said, _ = driver.communicate(timeout=600.0)
    assert said.startswith("interrupted by 2")


def test_nohup_stays_nohup(tmp_path, processes):
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    driver = processes.start_perfctl(tmp_path, "sleep", "1.5", **ignore)
    processes.wait_for(1)
    driver.send_signal(signal.SIGHUP)
    assert driver.communicate(timeout=600.0)[0] == "ended by itself\n"


def test_killing_perfctl_with_its_whole_group_spares_the_guardian_which_ends_everything_and_its_link(
    tmp_path, processes
):
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    words = (sys.executable, "-S", "-c", STUBBORN_DAEMON, "600")
    driver = processes.start_perfctl(deep, *words, start_new_session=True)
    processes.wait_for(2)
    link = Path(processes.values_of("TMPDIR")[0])
    assert link.is_symlink()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    processes.assert_gone_within(60.0)
    wait_until(lambda: not link.parent.exists(), f"{link} to be removed", 60.0)
