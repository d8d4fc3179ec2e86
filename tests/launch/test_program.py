"""What follows ``--``: which interpreter, which script, and in place of the batch size."""

import json
import shutil
import signal
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl import __version__
from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch import interpreter
from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.program import (
    UserProgram,
    parse_user_program,
    resolve_interpreter_path,
)
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.workloads.spec import UNFINISHED


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with train.py and the package pkg."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").touch()
    return tmp_path


def read(*words, env=None, batches=(16, 32)):
    return parse_user_program(words, env, {"batch": len(batches)})


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def request(program, out):
    return SweepRequest(
        profiler=TorchProfiler(),
        workload=program.name,
        device="cpu",
        host="host",
        program=program,
        batches=(16,),
        out=out,
        command_line="perfctl",
        sample="off",
    )


def test_the_batch_size_goes_into_every_argument_and_other_braces_are_left_alone():
    program = read(
        "train.py", "--batch-size", "{batch}", "bs={batch}", "{x}", "{}", "a{batch}b{batch}"
    )
    assert program.fill_command({"batch": "16"}) == (
        "train.py",
        "--batch-size",
        "16",
        "bs=16",
        "{x}",
        "{}",
        "a16b16",
    )


def test_the_runner_gets_perfctls_options_before_the_script_and_the_script_its_own_after_it(here):
    program = read(sys.executable, "-u", "-X", "dev", "train.py", "--trace", "{batch}")
    asked = replace(
        request(program, here.parent), workload_arguments=("--steps", "2"), sweep_name=here.name
    )
    (profile,) = TorchProfiler().build_commands(asked)
    assert profile.argv == (
        sys.executable,
        "-u",
        "-X",
        "dev",
        "-m",
        "perfctl.workloads",
        "--batch",
        "16",
        "--record",
        f"{here}/b16.part/workload.json",
        "--annotate",
        "record_function",
        "--window",
        "torch",
        "--steps",
        "2",
        "--trace",
        f"{here}/b16.part/report.pt.trace.json.gz",
        "--",
        "train.py",
        "--trace",
        "16",
    )


@pytest.mark.parametrize(
    "words", [("train.py",), ("train.py", "--batch-size", "16"), ("-m", "pkg", "{ batch }")]
)
def test_several_batch_sizes_need_a_place_to_go(words):
    with pytest.raises(UsageError, match="`batch_env`, or use one batch size") as caught:
        read(*words)
    assert "\n" not in str(caught.value)
    assert read(*words, batches=(16,)).fill_command({"batch": "16"}) == words
    assert read(*words, env="BATCH").batch_env == "BATCH"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no command was given after --"),
        (("python",), "no script was given after python"),
        ((sys.executable, "-c", "print({batch})"), "put the code into a file"),
        ((sys.executable, "nope.py", "{batch}"), "script nope.py does not exist"),
        (("nope.py", "{batch}"), "script nope.py does not exist"),
        (("train_{batch}.py",), "must not contain"),
        (("-m",), "no module was given after -m"),
        (
            ("/no/such/python3", "train.py", "{batch}"),
            "interpreter /no/such/python3 does not exist",
        ),
        (("bash", "run.sh", "{batch}"), "'bash' is not a Python program"),
        (
            ("torchrun", "--nproc_per_node", "2", "nope.py", "{batch}"),
            "script nope.py does not exist",
        ),
        (("torchrun", "--nproc_per_node", "{batch}"), "does not name a script"),
    ],
)
def test_what_cannot_run_is_one_clear_line(words, said):
    with pytest.raises(UsageError, match=said.replace("'", ".")) as caught:
        read(*words)
    assert "\n" not in str(caught.value)


ANY_PROGRAM = [
    pytest.param(("./solver", "{N}"), ("{here}/solver", "256"), "solver", "256", id="a binary"),
    pytest.param(
        ("bash", "run.sh", "{N}"),
        ("{bash}", "run.sh", "256"),
        "run.sh",
        "run.sh 256",
        id="a script behind its shell",
    ),
    pytest.param(
        ("bash", "-c", "./solver {N} > {M}"),
        ("{bash}", "-c", "./solver 256 > {M}"),
        "bash",
        "-c ./solver 256 > {M}",
        id="words of a shell, with braces that no parameter has",
    ),
]


@pytest.mark.parametrize(("words", "argv", "name", "variant"), ANY_PROGRAM)
def test_any_program_runs_as_it_is_with_the_values_in_its_words(words, argv, name, variant, here):
    executable(here / "solver", "#!/bin/sh\n")
    (here / "run.sh").touch()
    program = parse_user_program(words, None, {"N": 2}, runs_unannotated=None)
    asked = replace(request(program, here), batches=(), sweep=("N=256",))
    places = {"{here}": str(here), "{bash}": shutil.which("bash") or ""}
    expected = tuple(places.get(word, word.replace("{here}", str(here))) for word in argv)
    assert asked.build_workload_command(
        layer_marking="nvtx", step_window_method="cuda", profiler_prefix=("nsys",)
    ) == (
        "nsys",
        *expected,
    )
    assert (program.name, asked.variant, asked.stops_after_measured_steps) == (name, variant, False)


def test_variables_of_parameters_reach_the_program_and_distinguish_its_runs(here):
    program = parse_user_program(
        ("true",), "BATCH", {"batch": 1, "N": 2}, sweep_env=("N=SIZE",), runs_unannotated=None
    )
    asked = replace(
        request(program, here), profiler=Nsys(), batches=(16,), sweep=("N=256",), python="no"
    )
    environment = asked.build_run_commands()[0].environment
    assert {name: environment[name] for name in ("SIZE", "BATCH")} == {"SIZE": "256", "BATCH": "16"}
    assert asked.variant == "SIZE=256"


@pytest.mark.parametrize(
    ("words", "sweep_env", "said"),
    [
        pytest.param(("./none",), (), "program ./none does not exist", id="that is not there"),
        pytest.param(("./plain",), (), "./plain is not executable. chmod", id="without permission"),
        pytest.param(("true", "5"), (), "'true 5' does not use N", id="that lacks the value"),
        pytest.param(("true",), ("M=X",), "has no parameter M", id="with a variable of no value"),
        pytest.param(("true",), ("N",), "'N' is not NAME=VARIABLE", id="with half a variable"),
    ],
)
def test_a_program_is_refused(words, sweep_env, said, here):
    (here / "plain").touch()
    parameters = {} if words[0] != "true" or sweep_env == ("M=X",) else {"N": 2}
    with pytest.raises(UsageError, match=said):
        parse_user_program(words, None, parameters, sweep_env=sweep_env, runs_unannotated=None)


@pytest.mark.parametrize("name", ["", "1X", "A B", "A=B", "A-B"])
def test_a_name_that_no_shell_could_set_is_refused(name):
    with pytest.raises(UsageError, match="not the name of an environment variable"):
        read("train.py", env=name)


@pytest.mark.parametrize(
    ("words", "name", "kept"),
    [
        (("train.py", "{batch}"), "train.py", ("train.py", "{batch}")),
        (("-mpkg", "{batch}"), "pkg", ("-m", "pkg", "{batch}")),
        (("pkg", "{batch}"), "pkg", ("pkg", "{batch}")),
        (
            ("-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py", "{batch}"),
            "train.py",
            ("torchrun", "--nproc_per_node", "2", "train.py", "{batch}"),
        ),
        (
            ("accelerate", "launch", "-m", "pkg.cli", "{batch}"),
            "pkg.cli",
            ("accelerate", "launch", "-m", "pkg.cli", "{batch}"),
        ),
    ],
)
def test_a_run_is_called_after_its_script_or_module(words, name, kept):
    program = read(*words)
    assert (program.name, program.words) == (name, kept)


def test_python_in_perfctls_own_folder_is_perfctls_own(here, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert read("python3", "train.py", "{batch}").python == sys.executable
    other = here / "other"
    other.mkdir()
    executable(other / "python3", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(other))
    assert read("python3", "train.py", "{batch}").python == str(other / "python3")
    assert resolve_interpreter_path("python") == sys.executable, "where there is python3 only"
    with pytest.raises(UsageError, match="does not exist"):
        resolve_interpreter_path("python3.99")
    (other / "python").symlink_to(Path(sys.executable).resolve())
    assert resolve_interpreter_path("python") == str(other / "python"), (
        "a link out of a virtual environment is not followed"
    )


def test_an_installed_script_runs_under_the_interpreter_in_its_first_line(here):
    executable(here / "trainer", f"#!{sys.executable} -E\nprint(1)\n")
    program = read("./trainer", "{batch}")
    assert (program.python, program.name, program.words) == (
        sys.executable,
        "trainer",
        ("./trainer", "{batch}"),
    )


def said(python, torch):
    """Shell lines of an interpreter that has these."""
    return f'echo \'{{"python": {python}, "torch": {torch}, "module": true, "perfctl": null}}\'\n'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            "echo 'Segmentation fault' >&2\nexit 1\n",
            ("does not run as Python does (Segmentation fault)",),
        ),
        (
            said("[3, 7, 16]", '"2.4.1"'),
            ("is Python 3.7.16: layers are marked in Python 3.8 and later",),
        ),
        (said("[3, 8, 18]", "null"), ("has no torch",)),
        (
            said("[3, 8, 18]", '"1.7.1+cu110"'),
            ("has torch 1.7.1+cu110: layers are marked in torch 1.8 and later",),
        ),
    ],
)
def test_an_interpreter_that_cannot_run_it_is_said_to_lack_what_and_how_to_get_it(
    here, lines, says
):
    fake = executable(here / "python9", f"#!/bin/sh\n{lines}")
    interpreter._query_interpreter.cache_clear()  # the test before may have had the same folder
    with pytest.raises(ToolMissing) as caught:
        interpreter.raise_if_interpreter_unusable(
            read(str(fake), "train.py", "{batch}"), __version__
        )
    assert all(word in str(caught.value) for word in (str(fake), *says))


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_a_bare_python_without_torch_gives_way_to_perfctls_own_and_a_path_does_not(
    here, monkeypatch
):
    executable(here / "python3", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(interpreter.tools, "is_package_importable", lambda name: True)
    bare = read("python3", "train.py", "{batch}")
    assert bare.python == str(here / "python3")
    assert interpreter.replace_python_without_torch(bare, "python3").python == sys.executable
    assert interpreter.replace_python_without_torch(bare, str(here / "python3")).python == str(
        here / "python3"
    )
    executable(
        here / "python4",
        f"#!/bin/sh\n{said('[3, 8, 18]', repr('1.13.1').replace(chr(39), chr(34)))}",
    )
    old = read("python4", "train.py", "{batch}")
    interpreter.raise_if_interpreter_unusable(old, __version__)
    assert interpreter.replace_python_without_torch(old, "python4").python == str(
        here / "python4"
    ), "one with torch is kept"


def test_an_interpreter_in_an_image_needs_perfctl(here):
    fake = executable(
        here / "python9",
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'perfctl'\" >&2\nexit 1\n",
    )
    with pytest.raises(
        ToolMissing, match="cannot import perfctl, which must run inside the profiled process"
    ):
        interpreter.raise_if_interpreter_unusable(
            read(str(fake), "train.py", "{batch}"), __version__, ("env",)
        )


def test_a_module_that_is_not_there_is_said_before_anything_runs():
    pytest.importorskip("torch")
    interpreter.raise_if_interpreter_unusable(read("-m", "pkg", "{batch}"), __version__)
    with pytest.raises(UsageError, match="finds no module"):
        interpreter.raise_if_interpreter_unusable(
            read("-m", "no_such_module_here.cli", "{batch}"), __version__
        )


def test_the_same_request_has_the_same_name_and_an_edited_script_another(here):
    def name(*words):
        return request(read(*words), here).name

    first = name("train.py", "{batch}")
    assert first == name("train.py", "{batch}")
    assert first != name("train.py", "{batch}", "--lr", "1")
    (here / "train.py").write_text("print(2)\n")
    assert first != name("train.py", "{batch}")


@pytest.mark.parametrize(
    ("script", "begins"),
    [
        ("my train.py", "torch-my_train.py-"),
        ("\u043e\u0431\u0443\u0447.py", "torch-program.py-"),
        ("na\u00efve;$(x).py", "torch-na_ve_x.py-"),
        ("..py", "torch-program.py-"),
        ("x" * 200 + ".py", "torch-" + "x" * 60 + ".py-"),
    ],
)
def test_the_folder_carries_the_scripts_name_safely(here, script, begins):
    (here / script).touch()
    asked = request(read(script, "{batch}"), here)
    assert asked.name.startswith(begins)
    assert asked.workload == script
    assert asked.name.isascii()
    assert asked.folder.parent == here


def test_a_program_that_ends_well_without_perfctls_record_is_partial(make_request, make_outcome):
    asked = replace(make_request(), workload="train.py", program=read("train.py", "{batch}"))
    paths = asked.paths
    said = outcome.explain_program_failure(asked, make_outcome(0))
    assert said is not None
    assert "left no perfctl record" in said
    paths.workload_record.write_text(f'{{"status": "failed", "reason": "{UNFINISHED}"}}')
    assert outcome.explain_program_failure(asked, make_outcome(0)) == said
    paths.workload_record.write_text('{"status": "ok"}')
    assert outcome.explain_program_failure(asked, make_outcome(0)) is None
    paths.workload_record.write_text(
        '{"status": "failed", "reason": "train.py ended with exit code 3"}'
    )
    said = outcome.explain_program_failure(asked, make_outcome(3))
    assert said is not None
    assert said.startswith("train.py ended with exit code 3. See")
    assert "crashed" in str(outcome.explain_program_failure(asked, make_outcome(139)))


def test_a_signal_is_not_explained_by_what_the_program_printed_before(make_request, make_outcome):
    asked = replace(make_request(), workload="train.py", program=read("train.py", "{batch}"))
    ended = make_outcome(128 + signal.SIGTERM)
    ended.stderr.write_text("caught: CUDA out of memory\nstep 7\n")
    said = str(outcome.explain_program_failure(asked, ended))
    assert "out of memory" not in said
    assert ". The last line was: step 7. See " in said


def test_what_tells_two_requests_apart_on_a_page_is_the_arguments():
    assert read("train.py", "--lr", "1", "--bs={batch}").variant == "--lr 1 --bs={batch}"
    assert read("train.py", batches=(1,)).variant is None


@pytest.mark.parametrize(
    "said",
    [
        "No such file or directory: /no/such/python",
        "Executable not found in current directory or standard search paths",
    ],
)
def test_a_program_that_is_not_there_is_named_also_where_nsys_does_not(
    make_request, make_outcome, said
):
    told = outcome.explain_program_failure(
        make_request(python="/no/such/python"), make_outcome(1, stderr=f"{said}\n")
    )
    assert told is not None and told.count("/no/such/python") == 1
    assert told.startswith(f"the program ended with exit code 1: {said}")


@pytest.mark.parametrize(
    ("profiler", "words", "to_end", "stops"),
    [
        (Nsys(), ("train.py", "{batch}"), None, True),
        (Ncu(), ("train.py", "{batch}"), None, True),
        (Nsys(), ("train.py", "{batch}"), True, False),
        (Nsys(whole=True), ("train.py", "{batch}"), None, False),
        (TorchProfiler(), ("train.py", "{batch}"), None, False),
        (TorchProfiler(), ("train.py", "{batch}"), False, True),
        (Nsys(), ("torchrun", "train.py", "{batch}"), None, False),
        (Nsys(), ("torchrun", "train.py", "{batch}"), False, False),
    ],
)
def test_a_program_stops_after_its_steps_under_nsys_and_ncu_unless_it_has_ranks(
    here, profiler, words, to_end, stops
):
    program = UserProgram(sys.executable, (), words, "train.py", None)
    asked = replace(request(program, here), profiler=profiler, to_end=to_end, device="cuda")
    argv = profiler.build_commands(asked)[0].argv
    assert ("--stop" in argv[: argv.index("--")]) == stops
    assert asked.name == replace(asked, to_end=not to_end).name


def steps_record(steps, status="ok"):
    rows = [{"phase": "step"}] * steps + [{"phase": "forward"}]
    return json.dumps({"status": status, "options": {"steps": 3}, "steps": rows})


@pytest.mark.parametrize(
    ("records", "is_complete"),
    [
        ([steps_record(3)], True),
        ([steps_record(3, "partial")], True),  # it ended itself when it was asked to
        ([steps_record(2)], False),
        ([steps_record(3), steps_record(3)], True),
        ([steps_record(3), steps_record(0, "failed")], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("ended", [{"timed_out": True, "exit_code": None}, {"exit_code": 143}])
def test_a_program_that_is_ended_after_all_its_steps_did_not_fail(
    make_request, make_outcome, records, is_complete, ended
):
    asked = replace(make_request(), workload="train.py", program=read("train.py", "{batch}"))
    for rank, record in enumerate(records):
        name = "workload.json" if rank == 0 else f"workload.rank{rank}.json"
        (asked.paths.partial_folder / name).write_text(record)
    assert (outcome.explain_program_failure(asked, make_outcome(**ended)) is None) == is_complete
    if is_complete:
        workload = replace(asked, program=None)  # epochs may follow its steps
        is_ok = '"partial"' not in records[0] and len(records) == 1
        assert (outcome.explain_program_failure(workload, make_outcome(**ended)) is None) == is_ok


@pytest.mark.parametrize("crash", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_program_that_crashed_after_all_its_steps_failed(make_request, make_outcome, crash):
    asked = replace(make_request(), workload="train.py", program=read("train.py", "{batch}"))
    asked.paths.workload_record.write_text(steps_record(3))
    assert outcome.explain_program_failure(asked, make_outcome(128 + crash)) is not None
