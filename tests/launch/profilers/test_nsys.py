"""Whole argument lists, and verdicts from what nsys 2022.4 leaves behind."""

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import nsys
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.program import UserProgram
from tests.launch.programs import assert_verdict, workload_words, write_program


def make_database(path, *tables):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for table in ("StringIds", "ProcessStreams", *tables):
            connection.execute(f"CREATE TABLE {table} (id INTEGER)")
        connection.commit()


def test_on_a_gpu_it_records_the_profiler_window(make_request):
    request = make_request("cuda")
    part = request.paths.partial_folder
    profile, export = Nsys(graph_nodes=True).build_commands(request)
    assert profile.argv == (
        "nsys",
        "profile",
        "--trace=cuda,nvtx,cudnn,cublas",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--wait=primary",
        "--force-overwrite=true",
        "--session-new=perfctl-%q{PERFCTL_RUN_ID}",
        f"--output={part}/report",
        *workload_words(part, "nvtx", "cuda"),
    )
    assert (profile.stage, dict(profile.environment), profile.needs) == ("profile", {}, None)
    assert export.argv == (
        "nsys",
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        "--quiet=true",
        f"--output={part}/report.sqlite",
        f"{part}/report.nsys-rep",
    )
    assert (export.stage, export.needs) == ("export", part / "report.nsys-rep")


def test_on_a_cpu_it_records_the_range_around_the_measured_steps(make_request):
    request = make_request("cpu")
    part = request.paths.partial_folder
    profile, _ = Nsys().build_commands(request)
    assert profile.argv == (
        "nsys",
        "profile",
        "--trace=nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=nvtx",
        "--nvtx-capture=perfctl:window",
        "--capture-range-end=stop",
        "--wait=primary",
        "--force-overwrite=true",
        "--session-new=perfctl-%q{PERFCTL_RUN_ID}",
        f"--output={part}/report",
        *workload_words(part, "nvtx", "none"),
    )
    assert dict(profile.environment) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def test_each_rank_of_a_launcher_starts_its_own_nsys(make_request):
    program = UserProgram(
        sys.executable, (), ("torchrun", "--nproc-per-node", "2", "t.py", "{batch}"), "t.py", None
    )
    request = replace(make_request("cpu"), program=program)
    part = request.paths.partial_folder
    profile, export = Nsys().build_commands(request)
    inner = [
        "nsys",
        "profile",
        "--trace=nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=nvtx",
        "--nvtx-capture=perfctl:window",
        "--capture-range-end=stop",
        "--wait=primary",
        "--force-overwrite=true",
        "--session-new=perfctl-%q{PERFCTL_RUN_ID}{rank}",
        f"--output={part}/report{{rank}}",
        "--export=sqlite",
    ]
    assert profile.argv == (
        sys.executable,
        "-m",
        "perfctl.workloads",
        "--batch",
        "16",
        "--record",
        f"{part}/workload.json",
        "--annotate",
        "nvtx",
        "--window",
        "none",
        "--steps",
        "2",
        "--under",
        json.dumps(inner),
        "--",
        "torchrun",
        "--nproc-per-node",
        "2",
        "t.py",
        "16",
    )
    assert dict(profile.environment) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert export.needs == part / "report.nsys-rep"


def test_the_whole_program_needs_no_window(make_request):
    asked = Nsys(whole=True, graph_nodes=False, trace="cuda", extra=("--stats=true",))
    profile, _ = asked.build_commands(make_request("cuda"))
    assert [
        argument for argument in profile.argv if "capture" in argument or "graph" in argument
    ] == []
    assert "--trace=cuda" in profile.argv
    assert profile.argv.index("--stats=true") < profile.argv.index("/opt/python")


def test_an_nsys_without_the_option_is_not_asked_for_graph_nodes(make_request, monkeypatch):
    monkeypatch.setattr(tools, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "run_cached_for_output", lambda *argv: "\t--capture-range=\n")
    assert "--cuda-graph-trace=node" not in Nsys().build_commands(make_request("cuda"))[0].argv
    monkeypatch.setattr(tools, "run_cached_for_output", lambda *argv: "\t--cuda-graph-trace=\n")
    assert "--cuda-graph-trace=node" in Nsys().build_commands(make_request("cuda"))[0].argv


def test_a_percent_sign_in_a_path_is_not_a_pattern(tmp_path, make_request):
    profile, _ = Nsys().build_commands(replace(make_request("cpu"), sweep_name="100%q{HOME}"))
    assert f"--output={tmp_path}/100%%q{{HOME}}/b16.part/report" in profile.argv


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
IMPORT = """Importer error status: Importation failed.
Import Failed with unexpected exception: main.cpp(34)
Error {
  Items {
    Type: OriginalLine
    Value: "438"
  }
  Items {
    Type: ErrorText
    Value: "Failed to get number of the device CPUs."
  }
}
"""
"""The words are those of nsys 2023.4 where no /sys is mounted, paths and classes left out."""
DROPPED = (
    "[1/1] [====100%] report.nsys-rep\nFailed to create file\nGenerated:\n"
    "    /tmp/nsys-report-1a2b.nsys-rep\n"
)


@pytest.mark.parametrize(
    ("device", "tables", "first", "export", "status", "says"),
    [
        ("cuda", ("NVTX_EVENTS", KERNELS), {}, {}, "ok", ()),
        ("cuda", ("NVTX_EVENTS",), {}, {}, "partial", ("nsys recorded no GPU kernels",)),
        ("cpu", ("OSRT_API",), {}, {}, "partial", ("nsys recorded no NVTX ranges",)),
        (
            "cuda",
            ("NVTX_EVENTS", KERNELS),
            {"exit_code": 3, "stderr": "Traceback\nValueError: no such layer\n\n"},
            {},
            "partial",
            ("the program ended with exit code 3: ValueError: no such layer. See err",),
        ),
        (
            "cuda",
            ("NVTX_EVENTS", KERNELS),
            {"exit_code": 1, "stderr": "torch.OutOfMemoryError: CUDA out of memory.\n"},
            {},
            "partial",
            (
                (
                    "out of memory at batch size 16 (torch.OutOfMemoryError: CUDA out of memory.). "
                    "Use a smaller batch"
                ),
            ),
        ),
        (
            "cuda",
            (),
            {},
            {
                "exit_code": 1,
                "stderr": "Exportation error: Version number is invalid: 2024@6@2@225-246.\n",
            },
            "failed",
            ("the export failed", "holds no data", "A newer nsys"),
        ),
    ],
)
def test_a_database_is_judged_by_its_tables_and_how_the_program_ended(
    make_request, make_outcome, device, tables, first, export, status, says
):
    request = make_request(device)
    make_database(request.paths.get_report_path(".sqlite"), *tables)
    request.paths.get_report_path(".nsys-rep").write_bytes(b"x")
    assert_verdict(
        Nsys().determine_run_status(request, (make_outcome(**first), make_outcome(**export))),
        status,
        *says,
    )


LOADER = (
    "QdstrmImporter: error while loading shared libraries: libpfm.so.4: cannot open shared object "
    "file: No such file or directory"
)
NOT_STARTED = (
    "Importer error status: An unknown error occurred.\n"
    "Unable to retrieve the importer version: skipping importation of the QDSTRM file.\n"
)
"""As nsys 2023.4.4 printed it."""


def importer(folder, script, monkeypatch):
    """An nsys with an importer that is this shell script, linked as Debian links it; "": none."""
    program = folder / "x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys"
    program.parent.mkdir(parents=True)
    program.touch()
    if script:
        host = folder / "nsight-systems/host-linux-x64"
        write_program(host / "QdstrmImporter", script)
        (program.parent.parent / "host-linux-x64").symlink_to("../../nsight-systems/host-linux-x64")
    (folder / "bin").mkdir()
    (folder / "bin" / "nsys").symlink_to(program)
    monkeypatch.setattr(tools, "find_program", lambda name: str(folder / "bin" / "nsys"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo NVIDIA Nsight Systems 2023.4.4.54-234433681190v0",
            nsys.ImporterCheck("2023.4.4.54"),
        ),
        ("echo", nsys.ImporterCheck("of unknown version")),
        (f"echo $0: {LOADER.partition(': ')[2]} >&2; exit 127", LOADER.partition(": ")[2]),
        ("exit 3", "it ended with exit code 3"),
    ],
)
def test_the_importer_is_found_through_links_and_started(tmp_path, monkeypatch, script, said):
    importer(tmp_path, script, monkeypatch)
    expected = nsys.ImporterCheck(None, said) if isinstance(said, str) else said
    assert nsys.run_importer_for_version() == expected


def test_an_importer_that_hangs_does_not_hold_up_the_doctor(tmp_path, monkeypatch):
    importer(tmp_path, "exec sleep 30", monkeypatch)
    monkeypatch.setattr(nsys, "IMPORTER_TIMEOUT_MAX_S", 0.2)
    found = nsys.run_importer_for_version()
    assert found is not None and "timed out after 0.2 seconds" in (found.error or "")


def test_the_reason_for_a_failed_import_is_what_the_importer_says_when_it_is_started_again(
    tmp_path, monkeypatch, make_request, make_outcome
):
    """nsys itself only says "An unknown error occurred" (2023.4.4)."""
    words = LOADER.partition(": ")[2]
    importer(tmp_path / "nsys", f"echo $0: {words} >&2; exit 127", monkeypatch)
    request = make_request("cuda")
    (request.paths.partial_folder / "report.qdstrm").write_bytes(b"x")
    outcome = make_outcome(stderr=NOT_STARTED)
    assert_verdict(
        Nsys().determine_run_status(request, (outcome,)),
        "failed",
        "nsys recorded",
        f"did not start: {words}. On",
    )


@pytest.mark.parametrize("content", [None, b"", b"ERROR: no such report", b"SQLite format 3\0"])
def test_a_database_that_is_cut_off_or_something_else_is_no_report(
    make_request, make_outcome, content
):
    request = make_request("cuda")
    database = request.paths.get_report_path(".sqlite")
    make_database(database, "NVTX_EVENTS", KERNELS)
    database.write_bytes(database.read_bytes()[:-512] if content is None else content)
    wrong = "is truncated" if content is None else "is not an SQLite database"
    assert_verdict(
        Nsys().determine_run_status(request, (make_outcome(), make_outcome())),
        "failed",
        "the export failed",
        wrong,
    )


@pytest.mark.parametrize(
    ("device", "left", "said", "says"),
    [
        (
            "cuda",
            "report.qdstrm",
            {},
            (
                "nsys recorded, but left only a .qdstrm because its importer did not start. On",
                "install_nsight_debian.sh",
            ),
        ),
        (
            "cuda",
            "report.qdstrm",
            {"stderr": NOT_STARTED},
            (
                "nsys recorded, but left only a .qdstrm because its importer did not start: Importer "
                "error status: An unknown error occurred. On Debian",
            ),
        ),
        (
            "cuda",
            "report.qdstrm",
            {"stderr": f"{LOADER}\n{NOT_STARTED}"},
            ("nsys recorded", f"did not start: {LOADER}. On Debian"),
        ),
        (
            "cuda",
            "report.qdstrm",
            {"stderr": IMPORT},
            (
                "nsys recorded, but its importer failed",
                ": Failed to get number of the device CPUs. ",
            ),
        ),
        (
            "cuda",
            None,
            {"stdout": DROPPED},
            ("nsys could not write", "left its report in /tmp/nsys-report-1a2b.nsys-rep"),
        ),
        ("cpu", None, {}, ("nsys recorded no measured step",)),
        *(
            (
                "cuda",
                None,
                {"exit_code": code, "stderr": "Agent launcher failed.\n"},
                ("nsys could not start its agent. Run again; nsys sessions list shows",),
            )
            for code in (0, 1)
        ),
        (
            "cuda",
            None,
            {"exit_code": 3, "stderr": "It broke.\n"},
            ("the program ended with exit code 3: It broke. See ",),
        ),
        ("cuda", None, {"exit_code": 139}, ("the program crashed (segmentation fault)",)),
    ],
)
def test_no_report_is_failed_with_the_cause_that_was_left_or_said(
    make_request, make_outcome, device, left, said, says
):
    request = make_request(device)
    if left:
        (request.paths.partial_folder / left).write_bytes(b"x")
    assert_verdict(Nsys().determine_run_status(request, (make_outcome(**said),)), "failed", *says)


def test_a_folder_that_nsys_cannot_write_to_is_refused_before_anything_runs(tmp_path, make_request):
    with pytest.raises(UsageError, match="quotation mark") as caught:
        Nsys().build_commands(replace(make_request(), sweep_name='a "b"'))
    assert "`out`" in str(caught.value)


def machine(folder, name, state="S", does="profile"):
    """(shared memory with nsys's file in it, /proc with one process)."""
    shared, processes = folder / "shm", folder / "proc"
    (processes / "7").mkdir(parents=True)
    (processes / "7" / "comm").write_text(f"{name}\n")
    (processes / "7" / "stat").write_text(f"7 ({name}) {state} 1 7 7 0\n")
    (processes / "7" / "cmdline").write_text(f"/usr/bin/{name}\0{does}\0x\0")
    (processes / "meminfo").touch()
    shared.mkdir()
    for file in ("NSys-2022.4.2.1", "sem.other"):
        (shared / file).touch()
    return shared, processes


@pytest.mark.parametrize(("name", "state"), [("bash", "S"), ("nsys", "Z"), ("nsys", "S")])
def test_what_a_killed_nsys_left_in_shared_memory_is_removed_where_none_records(
    tmp_path, name, state
):
    shared, processes = machine(
        tmp_path, name, state, "stats" if (name, state) == ("nsys", "S") else "profile"
    )
    assert nsys.remove_stale_nsys_lock(shared, processes).startswith(
        f"removed {shared}/NSys-2022.4.2.1, "
    )
    assert [path.name for path in shared.iterdir()] == ["sem.other"]
    assert nsys.remove_stale_nsys_lock(shared, processes) is None


@pytest.mark.parametrize("name", ["nsys", "nsys-launcher"])
def test_what_is_in_shared_memory_stays_while_another_nsys_runs(tmp_path, name):
    shared, processes = machine(tmp_path, name)
    assert nsys.remove_stale_nsys_lock(shared, processes) is None
    assert (shared / "NSys-2022.4.2.1").exists()


def test_a_link_in_shared_memory_is_left_alone(tmp_path):
    shared, processes = machine(tmp_path, "bash")
    (shared / "NSys-2022.4.2.1").unlink()
    (shared / "NSys-2022.4.2.1").symlink_to(tmp_path)
    assert nsys.remove_stale_nsys_lock(shared, processes) is None
    assert tmp_path.is_dir()


@pytest.mark.parametrize(("version", "has_note"), [("2022.4.2", True), ("2024.1", False)])
def test_a_time_limit_under_an_old_nsys_may_be_a_pool_that_hangs(monkeypatch, version, has_note):
    monkeypatch.setattr(tools, "query_program_version", lambda name: version)
    assert bool(Nsys().time_limit_note) == has_note
