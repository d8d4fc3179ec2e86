"""Folders that others may write to (/tmp, a group's project): what they put there is neither
followed nor trusted."""

import os
import platform
import stat
import subprocess
import sys

import pytest

from perfctl.orchestrator import files
from perfctl.orchestrator.commands.ingest import scrub
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import devices
from perfctl.orchestrator.launch.machine.devices import DevicePlacement
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.sweep import folders


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim.txt"
    file.write_text("mine")
    return file


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file"])
def test_what_stands_in_the_place_of_the_folder_of_locks_is_refused(tmp_path, victim, kind):
    place = tmp_path / f"perfctl-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nothing"))
    with pytest.raises(UsageError, match="belongs to another user"):
        devices._ensure_user_lock_folder(tmp_path)


def test_the_folder_of_locks_is_private_and_one_that_others_made_or_may_write_to_is_refused(
    tmp_path, monkeypatch
):
    me = os.getuid()
    folder = devices._ensure_user_lock_folder(tmp_path)
    assert (folder.name, mode(folder)) == (f"perfctl-{me}", 0o700)
    assert devices._ensure_user_lock_folder(tmp_path) == folder
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="writable by other users"):
        devices._ensure_user_lock_folder(tmp_path)
    (tmp_path / f"perfctl-{me + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        devices._ensure_user_lock_folder(tmp_path)


def test_locks_are_never_taken_and_records_never_written_through_a_link(tmp_path, victim):
    (tmp_path / "gpu-0.lock").symlink_to(victim)
    with (
        pytest.raises(OSError, match="symbolic links"),
        devices.lock_placements([DevicePlacement("GPU 0", locks=("gpu-0",))], tmp_path),
    ):
        pass
    for name in (".lock", ".b16.lock"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(victim)
        with (
            pytest.raises(OSError, match="symbolic links"),
            folders.lock_sweep_or_setting(tmp_path, folders.SweepSetting(16)),
        ):
            pass
        (tmp_path / name).unlink()
    (tmp_path / f"run.json.{platform.node()}.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        folders.write_json_atomically(tmp_path / "run.json", {})
    assert victim.read_text() == "mine"


def test_the_name_under_which_a_file_is_written_cannot_be_foreseen(tmp_path):
    names = set()
    for _ in range(4):
        with files.replace_when_done(tmp_path / "page.html", force=True) as partial:
            names.add(partial.parent.name)
            assert (partial.parent.parent, mode(partial.parent)) == (tmp_path, 0o700)
            assert stat.S_ISREG(partial.lstat().st_mode)
            partial.write_text("whole")
    assert len(names) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_what_a_killed_process_left_goes_with_the_next_write_and_what_a_living_one_writes_stays(
    tmp_path,
):
    die = "import os, sys; from pathlib import Path; from perfctl.orchestrator import files\n"
    die += (
        "with files.replace_when_done(Path(sys.argv[1]), force=True) as partial: "
        "partial.write_text('half'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", die, str(tmp_path / "page.html")], check=False)
    assert [path.name.startswith(".page.html-") for path in tmp_path.iterdir()] == [True]
    of_mine = tmp_path / ".page.html-notes.txt"
    of_mine.touch()
    with files.replace_when_done(tmp_path / "page.html", force=True) as first:
        files.write_text(tmp_path / "page.html", "second")
        first.write_text("first")
        assert len(list(tmp_path.iterdir())) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [of_mine.name, "page.html"]
    assert (tmp_path / "page.html").read_text() == "first"


def test_a_page_in_the_place_of_a_link_replaces_the_link_and_not_what_it_leads_to(tmp_path, victim):
    (tmp_path / "page.html").symlink_to(victim)
    with files.replace_when_done(tmp_path / "page.html", force=True) as partial:
        partial.write_text("whole")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "page.html").is_symlink()


def test_a_scrubbed_copy_is_never_written_through_a_link(tmp_path, victim):
    report = tmp_path / "report.csv"
    report.write_text("a,b\n")
    (tmp_path / "copy.csv").symlink_to(victim)
    scrub(report, tmp_path / "copy.csv", force=True)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "copy.csv").is_symlink()


@pytest.mark.parametrize("deep", [False, True])
def test_the_temporary_folder_of_a_run_is_private(tmp_path, deep):
    scratch = tmp_path / ("d" * 60 if deep else "s")
    with run._make_private_tmpdir(scratch, None) as folder:
        assert mode(folder.resolve()) == 0o700
        if folder.is_symlink():
            assert mode(folder.parent) == 0o700
    with run._make_private_tmpdir(scratch, tmp_path) as folder:
        assert mode(folder) == 0o700


def test_all_users_lock_a_gpu_in_one_folder_and_cores_in_their_own(tmp_path, monkeypatch):
    """Whatever TMPDIR is: ncu's own lock lies there, and a private one would hide it from
    the others."""
    shared, own = tmp_path / "gpus", tmp_path / "mine"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(devices, "SHARED", shared)
    monkeypatch.setattr(devices, "_ensure_user_lock_folder", lambda: own)
    before = os.umask(0o077)
    try:
        with devices.lock_placements(
            [
                DevicePlacement("GPU 0", locks=("gpu-GPU-0abc",)),
                DevicePlacement("cores 1", locks=("core-1",)),
            ]
        ):
            assert [path.name for path in shared.iterdir()] == ["gpu-GPU-0abc.lock"]
            assert [path.name for path in own.iterdir()] == ["core-1.lock"]
            assert (mode(shared), mode(shared / "gpu-GPU-0abc.lock")) == (0o1777, 0o666)
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")
def test_two_users_of_one_gpu_meet_at_its_lock(tmp_path, monkeypatch):
    """The second user may not write the first one's file (as fs.protected_regular has it), and
    locks it all the same."""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o777 == 0o700:  # of pytest, and of each of its workers
            parent.chmod(0o755)
    monkeypatch.setattr(devices, "SHARED", tmp_path / "gpus")
    place = DevicePlacement("GPU 0", locks=("gpu-0",))
    with devices.lock_placements([place]):
        (tmp_path / "gpus" / "gpu-0.lock").chmod(0o644)
        assert as_nobody(place) == f"GPU 0 is in use by another perfctl (process {os.getpid()})"
    assert as_nobody(place) == "held"


def test_a_forked_process_does_not_keep_what_its_dead_parent_wrote(tmp_path):
    die = (
        "import os, sys, time; from pathlib import Path; from perfctl.orchestrator import files\n"
        "with files.make_locked_scratch_folder(Path(sys.argv[1]), 'work'):\n"
        "    read, write = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.write(write, b'begun')\n"
        "        time.sleep(5)\n"
        "        os._exit(0)\n"
        "    os.read(read, 5)\n"
        "    os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", die, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    files.remove_unlocked_scratch_folders(tmp_path, "work")
    assert list(tmp_path.iterdir()) == []


def as_nobody(place):
    """What another user gets who wants the place, in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "?"
        try:
            os.setuid(65534)
            try:
                with devices.lock_placements([place]):
                    said = "held"
            except UsageError as error:
                said = error.message.partition(";")[0]
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


@pytest.mark.parametrize("kind", ["link", "file", "private"])
def test_a_folder_that_not_all_users_share_is_not_used_for_gpus(tmp_path, kind):
    folder = tmp_path / "gpus"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o1777)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir(mode=0o755)
    assert devices.ensure_shared_lock_folder(folder) is None
