"""--sample on the command line, and samples on their way from a run's folder into the store."""

import time
from dataclasses import replace

from perfctl.orchestrator.ingest.run_folders import add_samples_environment_and_gaps
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.profilers.torch import NoProfiler
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_sweep
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from perfctl.records.report import Report


def test_sampling_is_on_unless_it_is_turned_off_and_makes_no_other_sweep():
    on, off = (
        plan_sweep(NoProfiler(), replace(SweepOptions(device="cpu"), sample=text))
        for text in ("50ms", "off")
    )
    sampling = on.make_sampling_settings(Command((), "run"))
    assert sampling is not None and sampling.every_s == 0.05
    assert off.make_sampling_settings(Command((), "run")) is None
    assert on.name == off.name


def test_broken_samples_leave_the_run_whole_with_a_gap(tmp_path):
    report = Report("torch", tmp_path, "synthetic")
    (tmp_path / "samples.csv").write_text("# perfctl samples 1\nnothing\n")
    found = add_samples_environment_and_gaps(report, tmp_path, {"profiler": "torch"}, {})
    assert [(gap.quantity, gap.state) for gap in found.gaps] == [("sample", "unreadable")]


def test_a_real_run_has_samples_in_the_store_on_the_clock_of_its_steps(perfctl, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(512, 512)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(60):\n"
        "    optimizer.zero_grad()\n"
        "    for _ in range(3): model(torch.ones(int(sys.argv[1]), 512)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    options = "--device cpu --batches 256 --sample 10ms --steps 40"
    before_ns = time.monotonic_ns()
    perfctl(f"torch {options} -- python {script} {{batch}}").ok()
    with database.open_store_for_reading(tmp_path / "perfctl.db") as connection:
        (run,) = load_readable_runs(
            connection, read.list_run_ids(connection, latest_per_configuration=True)
        )
    samples = list(run.report.samples)
    start_ns = min(step.start_ns for step in run.report.steps if step.start_ns is not None)
    assert before_ns < samples[0].at_ns < start_ns < time.monotonic_ns()
    assert samples[0].at_ns < samples[-1].at_ns < time.monotonic_ns()
    assert max(sample.host_memory_bytes or 0 for sample in samples) > 50 * 2**20, "torch is loaded"
