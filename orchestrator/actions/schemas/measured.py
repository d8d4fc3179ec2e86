"""What commands that measure or read reports print with ``--json``, as JSON Schema; added to
``outputs``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from perfctl.orchestrator.actions.schemas.shapes import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    array,
    closed,
    fields_of,
    mapping,
    maybe,
    members,
    of,
    record,
    said,
)

_FOLDER = said(TEXT, "what was written")

_COMMAND = {
    "batch_size": WHOLE,
    "stage": said(TEXT, "what the command is for"),
    "argv": array(TEXT, "words of the command"),
}


def _run_result() -> dict[str, Schema]:
    from perfctl.orchestrator.launch.sweep.request import RunResult

    one = fields_of(RunResult)
    return {
        "batch_size": one["batch_size"],
        "status": _status(),
        "reason": maybe(TEXT, "it is ok"),
        "skipped": one["skipped"],
        "duration_ns": maybe(said(WHOLE, "ns, of the whole run"), "nothing ran, or it did not end"),
        "folder": one["folder"],
    }


def _status() -> Schema:
    return of(Literal["ok", "partial", "failed"])


def _swept() -> dict[str, Schema]:
    return {
        "sweep": said(TEXT, "its name in the store"),
        "folder": _FOLDER,
        "store": maybe(said(TEXT, "the store with its runs"), "--no-store: nothing was stored"),
        "runs": array(closed(_run_result()), "One object a batch size and repeat."),
    }


def _sweep() -> Schema:
    return closed(_swept(), "nsys, ncu, torch, dlprof and replay.")


def _sweep_commands() -> Schema:
    return array(
        closed(_COMMAND), "A sweep with --dry-run: one object a command that it would start."
    )


def _ncu_cost() -> Schema:
    from perfctl.orchestrator.analyse.kernels.replay_cost import ReplayCost

    layers = array(TEXT, "layers that --layer names; empty for all")
    return closed(
        {"batch_size": WHOLE, "layers": layers, **fields_of(ReplayCost)}, "ncu --estimate-cost."
    )


def _infer() -> Schema:
    return array(closed({"model": TEXT, **_swept()}), "One object a model.")


def _infer_commands() -> Schema:
    return array(
        closed({"model": TEXT, **_COMMAND}),
        "infer --dry-run: one object a command that it would start.",
    )


def _speedup() -> Schema:
    from perfctl.orchestrator.analyse.speedup import Speedup

    return array(
        record(Speedup),
        "One object a batch size with two devices or more. Times in ns, memory in bytes.",
    )


def _point() -> dict[str, Schema]:
    from perfctl.orchestrator.launch.sweep.bench import Point

    return fields_of(Point)


def _skipped() -> Schema:
    from perfctl.orchestrator.actions.bench import Skipped

    return array(record(Skipped), "networks, or batch sizes of one, that are not measured")


def _bench() -> Schema:
    skipped = said(TRUTH, "it was whole already, and nothing ran")
    run = {
        **_point(),
        "status": _status(),
        "reason": maybe(TEXT, "it is ok"),
        "skipped": skipped,
        "folder": _FOLDER,
    }
    left = array(closed(_point()), "points that the time given was too short for")
    return closed(
        {"runs": array(closed(run), "One object a point."), "left": left, "skipped": _skipped()},
        "bench run.",
    )


def _bench_design() -> Schema:
    return closed(
        {"points": array(closed(_point())), "skipped": _skipped()}, "bench run --dry-run."
    )


def _bench_show() -> Schema:
    from perfctl.orchestrator.analyse.predict.bench import Correlation

    point = {
        **dict.fromkeys(("model", "family"), TEXT),
        "batch": WHOLE,
        **dict.fromkeys(("mode", "precision", "device"), TEXT),
        "threads": maybe(WHOLE, "not a CPU"),
        "steps": said(WHOLE, "measured steps"),
        "step_ns": array(NUMBER, "median, first and third quartile of the steps, ns"),
        "phase_ns": mapping(NUMBER, "phase -> median, ns"),
        "memory_bytes": mapping(WHOLE, "kind of memory -> peak, bytes"),
        "features": mapping(NUMBER, "estimated figure -> its value for one step"),
    }
    return closed({"points": array(closed(point)), "correlations": array(record(Correlation))})


def _prepare() -> Schema:
    counts = {
        "images": said(WHOLE, "in class folders now"),
        "of": said(WHOLE, "in the whole data set"),
        "already": said(WHOLE, "were there before"),
        "classes": said(WHOLE, "class folders"),
    }
    strays = array(TEXT, "images in a class folder where they do not belong")
    return closed(
        {
            "folder": _FOLDER,
            **counts,
            "ignored": array(TEXT, "files that are no images of it"),
            "strays": strays,
        }
    )


def _slurm_status() -> Schema:
    other = "the task is not a run of a sweep"
    task = {
        "task": said(WHOLE, "its number in the array"),
        "label": TEXT,
        "profiler": maybe(TEXT, other),
        "batch": maybe(WHOLE, other),
        "sweep": maybe(TEXT, other),
        "state": of(
            Literal["whole", "partial", "running", "waiting", "failed", "missing", "unknown"]
        ),
        "said": maybe(
            said(TEXT, "stage and time of a running task, reason of a waiting or failed one"),
            "nothing",
        ),
        "log": array(TEXT, "last lines of the log of a failed task"),
    }
    return closed(
        {
            "asked_squeue": said(TRUTH, "false: there is no Slurm here, and only files were read"),
            "tasks": array(closed(task)),
            "summary": TEXT,
            "repeat": array(WHOLE, "tasks that --tasks can repeat"),
        }
    )


def _ingest() -> Schema:
    from perfctl.orchestrator.store.write import Written

    counts = ("kernels", "counters", "ranges", "copies", "operations", "samples", "op_calls")
    placed = said(NUMBER, "share of the kernel time that has a module, 0 to 1")
    row = {
        "path": said(TEXT, "the report"),
        "run_id": WHOLE,
        "new": said(TRUTH, "false: it was in the store, nothing was written"),
        **{name: said(WHOLE, "rows written; 0 as well where the run was there") for name in counts},
        "reason": members(Written, "reason")["reason"],
        "kernel_time_with_module": maybe(
            placed, "neither graphs nor a server's steps were recorded"
        ),
    }
    failed = array(TEXT, "what could not be read, and why")
    return closed(
        {
            "store": said(TEXT, "the store"),
            "runs": array(closed(row), "One object a run that was read."),
            "failed": failed,
            "empty": array(TEXT, "files without anything to store"),
        }
    )


def _mfu() -> Schema:
    terms = mapping(NUMBER, "term -> FLOPs of one token")
    unasked = "the formula asks for what is not known of the model"
    row = {
        "formula": TEXT,
        "source": TEXT,
        "flops_per_token": maybe(NUMBER, unasked),
        "terms": maybe(terms, unasked),
        "mfu": maybe(said(NUMBER, "share of 1"), "see refused"),
        "hfu": maybe(said(NUMBER, "share of 1"), "no --recompute, or see refused"),
        "refused": maybe(
            said(TEXT, "why there is no MFU or no HFU"), "there are both, or HFU was not asked for"
        ),
        "difference": maybe(said(NUMBER, "FLOPs of one token beyond the exact count"), unasked),
        "difference_by_term": maybe(terms, unasked),
    }
    match = closed({"explanation": TEXT, "source": TEXT, "mfu": said(NUMBER, "share of 1")})
    reported = {
        "mfu": said(NUMBER, "share of 1"),
        "tolerance": said(NUMBER, "share of 1"),
        "matches": array(match),
        "nearest": match,
    }
    whole = closed(row)
    return closed(
        {
            "model": TEXT,
            "seq": said(WHOLE, "tokens of a sequence"),
            "parameters": WHOLE,
            "active_parameters": said(WHOLE, "met by one token"),
            "tokens_per_second": said(NUMBER, "of all GPUs"),
            "gpus": WHOLE,
            "peak_flops_per_s": said(NUMBER, "of one GPU"),
            "peak": said(TEXT, "where it is from"),
            "recompute": said(
                {"type": ["string", "number"]},
                "none, selective, full, or a share of the forward pass",
            ),
            "exact": whole,
            "exact_causal": whole,
            "formulas": mapping(whole, "convention -> its figures"),
            "reported": maybe(closed(reported), "no --reported"),
            "notes": array(TEXT),
        },
        "Shares are of 1; FLOPs are those of training one token.",
    )


MADE: dict[str, Callable[[], Schema]] = {
    "sweep": _sweep,
    "sweep-commands": _sweep_commands,
    "ncu-cost": _ncu_cost,
    "infer": _infer,
    "infer-commands": _infer_commands,
    "speedup": _speedup,
    "bench": _bench,
    "bench-design": _bench_design,
    "bench-show": _bench_show,
    "prepare": _prepare,
    "slurm-status": _slurm_status,
    "ingest": _ingest,
    "mfu": _mfu,
}
