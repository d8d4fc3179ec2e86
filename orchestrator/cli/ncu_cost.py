"""perfctl ncu --estimate-cost: one plain step first, to say what ncu would replay."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.sweep_command import Asked
from perfctl.orchestrator.cli.sweep_request import check_ready, sweep_request
from perfctl.orchestrator.errors import RunFailed, ToolMissing
from perfctl.orchestrator.launch import ncu_metrics, tools
from perfctl.orchestrator.launch import sweep as sweeps
from perfctl.orchestrator.launch.ncu import Ncu
from perfctl.orchestrator.launch.profiler import Profiler
from perfctl.orchestrator.launch.run_folder import read_run_record
from perfctl.orchestrator.launch.sweep_records import Listener, SweepRequest
from perfctl.orchestrator.launch.torch_profiler import TorchProfiler
from perfctl.parsers.records import Kernel


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Stands in ncu's place: nothing is counted, and nothing goes into the store."""

    ncu: Ncu
    plain: Profiler = field(default_factory=TorchProfiler)
    """What records the step."""

    def run(self, asked: Asked, rest: tuple[str, ...], command: tuple[str, ...] | None) -> None:
        """Measure one step at the first batch size and print the estimate.

        Raises ToolMissing without a GPU, where there are no launches to count; RunFailed when the step does not run.
        """
        request = sweep_request(self.ncu, asked, rest, command)
        if request.device != "cuda" or not tools.has_gpu_driver():
            raise ToolMissing(
                "--estimate-cost counts the launches of one step on an NVIDIA GPU, and this run has none",
                "Run it on the machine where ncu will count, with --device cuda",
            )
        batch = request.batches[0]
        with tempfile.TemporaryDirectory(prefix="perfctl-cost-") as folder:
            one = replace(asked, batches=str(batch), steps=1, out=Path(folder))
            kernels = _one_step(sweep_request(self.plain, one, rest, command))
        self._tell(kernels, batch, asked.steps or _default_steps(request), as_json=asked.as_json)

    def _tell(self, kernels: list[Kernel], batch: int, steps: int, *, as_json: bool = False) -> None:
        from perfctl.orchestrator.analyse.replay_cost import cost_lines, replay_cost

        layers = self.ncu.layers
        counters = len(ncu_metrics.metrics(self.ncu.metrics))
        cost = replay_cost(kernels, layers=layers, steps=steps, counters=counters)
        if not cost.launches:
            names = ", ".join(sorted({kernel.layer for kernel in kernels if kernel.layer})) or "none"
            what = (
                f"no launch of the step is in --layer {', '.join(layers)}" if layers else "the step launched no kernel"
            )
            raise RunFailed(what, f"Layers that launched kernels: {names}")
        if as_json:
            console.as_json({"batch_size": batch, "layers": list(layers), **asdict(cost)})
            return
        for line in cost_lines(cost, batch, layers):
            console.result(line)
        console.result("Nothing was counted yet: leave out --estimate-cost to run it; --layer and --steps make it less")


def _one_step(request: SweepRequest) -> list[Kernel]:
    """The launches of the measured step."""
    from perfctl import parsers

    check_ready(request)
    heard = Listener(started=lambda batch, stage: console.note(f"batch {batch}: one plain step"))
    result = sweeps.run(request, heard)[0]
    if result.status == "failed":
        raise RunFailed(f"the plain step did not run: {result.reason}", "Run perfctl torch with --steps 1 to see why")
    record = read_run_record(result.folder) or {}
    return list(parsers.parse(result.folder / str(record["artifact"])).kernels)


def _default_steps(request: SweepRequest) -> int:
    from perfctl.workloads.script_arguments import parse
    from perfctl.workloads.spec import Options

    return Options(batch_size=1).steps if request.program is None else parse(("--", "-m", "any")).steps
