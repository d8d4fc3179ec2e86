"""``python -m perfctl.workloads NAME --batch N ...`` runs one workload at one batch size.

With ``--`` and no name, it runs the user's script:
``python -m perfctl.workloads --batch 64 -- train.py``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfctl.workloads.run.options import (
    find_workload,
    format_workload_help,
    parse_workload_arguments,
    replace_fields_by_flags,
)
from perfctl.workloads.script.options import is_script_command_line
from perfctl.workloads.spec import SpecError, WorkloadOptions

if TYPE_CHECKING:
    from perfctl.workloads.run.record import WorkloadRecord

USAGE = """usage: python -m perfctl.workloads NAME --batch N [options]
       python -m perfctl.workloads [options] -- train.py ..."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 1 (failed), 2 (invalid arguments), 130 (interrupted).

    A user's script ends the process as it would by itself: its exceptions pass through.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        from perfctl.workloads.models import WORKLOADS

        print(USAGE)
        print(*(f"  {name}  {workload.ABOUT}" for name, workload in WORKLOADS.items()), sep="\n")
        return 0 if arguments else 2
    if is_script_command_line(arguments):
        from perfctl.workloads.script.run import run_script

        return run_script(arguments)
    try:
        if {"-h", "--help"} & set(arguments[1:]):
            print(format_workload_help(arguments[0]), end="")
            return 0
        workload = find_workload(arguments[0])
        options, model_options = parse_workload_arguments(arguments[0], arguments[1:])
    except SpecError as error:
        print(f"perfctl workload: {replace_fields_by_flags(str(error))}", file=sys.stderr)
        return 2
    try:
        from perfctl.workloads.run.loop import run_workload
        from perfctl.workloads.run.record import explain_failure
    except ImportError as error:
        if error.name and not error.name.startswith("torch"):
            raise
        print(
            f"perfctl workload: torch cannot be imported ({error}): pip install 'perfctl[torch]'",
            file=sys.stderr,
        )
        return 1
    title = (
        f"{workload.NAME}, {options.mode}, batch {options.batch_size}, {options.precision}, "
        f"{options.device}"
    )
    try:
        record = run_workload(workload, options, model_options)
    except (RuntimeError, OSError, MemoryError, KeyboardInterrupt) as error:
        print(f"perfctl workload: {title}: {explain_failure(error, options)}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    _print_run_summary(title, record, options)
    return 0


def _print_run_summary(title: str, record: WorkloadRecord, options: WorkloadOptions) -> None:
    times = [
        row.duration_ns
        for row in record.steps
        if row.phase == "step" and row.duration_ns is not None
    ]
    median = f"median {statistics.median(times) / 1e6:.3f} ms ({record.clock})"
    print(f"{title}: {len(times)} measured steps, {median}")
    for row in record.steps:
        if row.phase == "epoch" and row.loss is not None and row.accuracy is not None:
            dice = next(
                (
                    summary.value
                    for summary in record.summaries
                    if summary.name == f"dice:epoch:{row.number}"
                ),
                None,
            )
            also = f", Dice {dice:.3f}" if dice is not None else ""
            print(
                f"epoch {row.number}: mean loss {row.loss:.4f}, test accuracy "
                f"{row.accuracy:.3f}{also}"
            )
    for path in (options.trace, options.record):
        if path is not None:
            print(f"Wrote {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
