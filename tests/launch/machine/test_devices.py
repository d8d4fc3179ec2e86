"""Which places there are, who has them, and how a sweep uses several at a time. nvidia-smi is
played by a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from perfctl.orchestrator.errors import Interrupted, UsageError
from perfctl.orchestrator.launch.machine import devices, tools
from perfctl.orchestrator.launch.machine.devices import (
    DevicePlacement,
    format_core_list,
    parse_core_list,
    split_physical_cores,
)
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.sweep import parallel, sweep
from perfctl.orchestrator.launch.sweep.request import SweepListener
from tests.launch.programs import wait_until, write_program
from tests.launch.small_profiler import WRITES, asked

ALLOWED = sorted(os.sched_getaffinity(0))
SAYS_WHERE = (
    "import json, os, pathlib, sys; "
    "seen = [sorted(os.sched_getaffinity(0)), os.environ.get('CUDA_VISIBLE_DEVICES'), "
    "os.getpid()]; pathlib.Path(sys.argv[1]).write_text(json.dumps(seen))"
)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Four pretend GPUs, two near cores 0-3 and 8-11 each other's hardware threads, two near the
    rest; a pretend /sys."""
    lines = "".join(f"{n}, GPU-{n * 11}abc, 00000000:{n}5:00.0\\n" for n in range(4))
    program = write_program(tmp_path / "bin" / "nvidia-smi", f"printf '{lines}'")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    tools.run_cached_for_output.cache_clear()
    root = tmp_path / "root"
    for number in range(4):
        card = root / f"sys/bus/pci/devices/0000:{number}5:00.0"
        card.mkdir(parents=True)
        (card / "local_cpulist").write_text("0-3,8-11\n" if number < 2 else "4-7,12-15\n")
    for core in range(16):
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{core % 8},{core % 8 + 8}\n")
    return root


def test_each_gpu_is_seen_alone_and_gets_its_share_of_the_physical_cores_near_it(gpus):
    made = devices.parse_placements("0,1,2", gpus)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in made] == ["0", "1", "2"]
    assert {place.environment["CUDA_DEVICE_ORDER"] for place in made} == {"PCI_BUS_ID"}
    # GPUs 0 and 1 share 4 physical cores of two threads: two physical cores each; GPU 2 has its
    # four to itself.
    cores = [format_core_list(place.cores or ()) for place in made]
    assert cores == ["0-1,8-9", "2-3,10-11", "4-7,12-15"]
    assert made[0].collect_run_record_facts() == {
        "place": "GPU 0",
        "cores": "0-1,8-9",
        "runs_beside": "2",
    }
    with pytest.raises(UsageError, match="GPU 4 does not exist; there are 4"):
        devices.parse_placements("0,4", gpus)


def test_numbers_count_what_the_scheduler_left_visible(gpus, monkeypatch):
    monkeypatch.setenv(devices.VISIBLE, "2,3")
    made = devices.parse_placements("0,1", gpus)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in made] == ["2", "3"]
    assert [place.locks for place in made] == [("gpu-GPU-22abc",), ("gpu-GPU-33abc",)]
    with pytest.raises(UsageError, match=r"GPU 2 does not exist; there are 2 .*'2,3'"):
        devices.parse_placements("2", gpus)


def test_cores_are_left_alone_where_the_system_does_not_say_which_are_near(gpus, tmp_path):
    assert [place.cores for place in devices.parse_placements("0,1", tmp_path)] == [None, None]


def test_the_gpu_that_a_program_takes_by_itself_is_the_first_visible_one(gpus, monkeypatch):
    for visible, lock in ((None, "gpu-GPU-0abc"), ("3", "gpu-GPU-33abc")):
        if visible:
            monkeypatch.setenv(devices.VISIBLE, visible)
        first = devices.find_default_gpu()
        assert first is not None and first.locks == (lock,)
    monkeypatch.setenv(devices.VISIBLE, "")
    assert devices.find_default_gpu() is None


@pytest.mark.parametrize("text", ["", "0,0", "gpu0", "0,cpu:1", "cpu:", "cpu:a", "cpu:3-1", "-1"])
def test_what_names_no_devices_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="`devices`"):
        devices.parse_placements(text)


def test_core_sets_are_disjoint_and_of_this_machine():
    place = devices.parse_placements(f"cpu:{ALLOWED[0]}")[0]
    assert (place.cores, place.environment) == (frozenset({ALLOWED[0]}), {})
    with pytest.raises(UsageError, match="may not use core"):
        devices.parse_placements("cpu:100000")
    if len(ALLOWED) > 1:
        with pytest.raises(UsageError, match="appears in two sets"):
            devices.parse_placements(f"cpu:{ALLOWED[0]}-{ALLOWED[1]},cpu:{ALLOWED[1]}")


def test_core_lists_are_read_and_written_the_same():
    assert parse_core_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert format_core_list({8, 0, 1, 2, 3}) == "0-3,8"
    assert split_physical_cores(frozenset({0}), 2) == [{0}, {0}]


def test_a_device_is_never_taken_twice_and_is_free_again_when_its_holder_dies(tmp_path):
    place = DevicePlacement("GPU 0", locks=("gpu-0",))
    program = (
        "import sys, time; from pathlib import Path; from "
        "perfctl.orchestrator.launch.machine.devices import DevicePlacement, lock_placements\n"
        f"placement = DevicePlacement('GPU 0', locks=('gpu-0',))\n"
        f"with lock_placements([placement], Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program), stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        said = f"GPU 0 is in use by another perfctl .process {other.pid}."
        with pytest.raises(UsageError, match=said), devices.lock_placements([place], tmp_path):
            pass
        other.kill()
    with devices.lock_placements([place], tmp_path):
        pass


PLACES = tuple(
    DevicePlacement(
        f"place {number}", {"CUDA_VISIBLE_DEVICES": str(number)}, frozenset({core}), beside=1
    )
    for number, core in enumerate((*ALLOWED, *ALLOWED)[:2])
)


def test_a_sweep_over_two_places_puts_each_batch_size_on_one_and_keeps_its_order(tmp_path):
    request = asked(tmp_path, SAYS_WHERE, places=PLACES)
    told: list[tuple[int, str]] = []
    threads: set[threading.Thread] = set()

    def finished(result):
        told.append((result.batch_size, result.status))
        threads.add(threading.current_thread())

    results = sweep.run_incomplete_settings(request, SweepListener(finished=finished))
    assert [(result.batch_size, result.status) for result in results] == sorted(told)
    assert sorted(told) == [(batch, "ok") for batch in (16, 32, 64)]
    assert threads == {threading.main_thread()}
    for batch in (16, 32, 64):
        folder = request.folder / f"b{batch}"
        cores, visible, _ = json.loads((folder / "report.txt").read_text())
        facts = json.loads((folder / "run.json").read_text())["environment"]
        assert facts["place"] == f"place {visible}"
        assert cores == sorted(PLACES[int(visible)].cores or ())
    assert os.sched_getaffinity(0) == set(ALLOWED)


def test_both_places_work_at_the_same_time(tmp_path):
    meet = (
        "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]); here.write_text('x'); "
        "other = here.parent.parent / ('b32.part' if sys.argv[2] == '16' else 'b16.part') / "
        "here.name\n"
        "while sys.argv[2] != '64' and not (\n"
        "    other.exists() or (other.parent.parent / other.parent.stem / here.name).exists()\n"
        "):\n    time.sleep(0.02)\n"
        "sys.exit(3 if sys.argv[2] == '32' else 0)"
    )
    results = sweep.run_incomplete_settings(asked(tmp_path, meet, places=PLACES), SweepListener())
    assert [result.status for result in results] == ["ok", "failed", "ok"], (
        "a failure does not stop the neighbour"
    )


def test_an_interrupt_ends_the_runs_of_all_places_and_leaves_the_rest_unstarted(tmp_path):
    request = asked(tmp_path, WRITES + "; import time; time.sleep(600)", places=PLACES)

    def stop_when_both_run():
        wait_until(lambda: len([*request.folder.glob("b*.part/report.txt")]) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_both_run, daemon=True).start()
    with pytest.raises(Interrupted) as stop:
        sweep.run_incomplete_settings(request, SweepListener())
    assert stop.value.signal_number == signal.SIGTERM
    assert {path.name for path in request.folder.glob("b*")} == {"b16.part", "b32.part"}


def test_an_error_of_the_listener_stops_the_runs_and_is_raised(tmp_path):
    def work(item, place, post):
        def fail():
            raise ValueError("the store is full")

        post(fail)
        return item

    with pytest.raises(ValueError, match="the store is full"):
        parallel.run_items_on_placements(
            (1, 2, 3), (DevicePlacement("a"), DevicePlacement("b")), work
        )
    assert run._asked == []
