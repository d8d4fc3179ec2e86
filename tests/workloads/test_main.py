"""The process itself: exit codes, and which stream says what."""

from __future__ import annotations

import json
import sys
from dataclasses import fields

import pytest

from perfctl.workloads.__main__ import main
from perfctl.workloads.models import mnist_cnn
from perfctl.workloads.spec import WorkloadOptions
from tests.workloads.started import PERFCTL, start


def test_a_run_says_what_ran_and_where_the_record_is(tmp_path):
    record = tmp_path / "out.json"
    done = start(
        None, *PERFCTL, *f"mnist_cnn --batch 8 --steps 2 --warmup 1 --record {record}".split()
    )
    assert (done.returncode, done.stderr) == (0, "")
    ran, wrote = done.stdout.splitlines()
    assert ran.startswith("mnist_cnn, train, batch 8, fp32, cpu: 2 measured steps, median ")
    assert wrote == f"Wrote {record}"
    assert json.loads(record.read_text())["status"] == "ok"


def test_a_failing_run_is_one_line_on_stderr_and_exit_1(tmp_path, capsys):
    assert main(["mnist_cnn", "--batch", "8", "--data", "mnist", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines()), "MNIST is not in" in said.err) == ("", 1, True)


def test_no_torch_is_one_line_that_says_how_to_get_it():
    before = (
        "import sys; sys.modules['torch'] = None; from perfctl.workloads.__main__ import main; "
    )
    done = start(
        None, sys.executable, "-c", f"{before}sys.exit(main(['mnist_cnn', '--batch', '8']))"
    )
    assert (done.returncode, len(done.stderr.splitlines()), "perfctl[torch]" in done.stderr) == (
        1,
        1,
        True,
    )


@pytest.mark.parametrize(
    "arguments", [["nope"], ["mnist_cnn"], ["mnist_cnn", "--batch", "8", "--conv2", "1"]]
)
def test_usage_errors_are_one_line_and_exit_2(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1


def test_help_lists_workloads_and_options(capsys):
    assert main(["--help"]) == 0
    assert "mnist_cnn" in capsys.readouterr().out
    assert main(["mnist_cnn", "--help"]) == 0
    text = capsys.readouterr().out
    names = [field.name for owner in (WorkloadOptions, mnist_cnn.Own) for field in fields(owner)]
    flags = {f"--{name.replace('_', '-')}" for name in names} - {"--batch-size"}
    assert all(flag in text for flag in (*flags, "--batch"))
    assert main([]) == 2
