"""Write a record however a run ends, and explain its failure in one line."""

from __future__ import annotations

from types import TracebackType

from perfctl.workloads.arguments import as_flags
from perfctl.workloads.record import Record
from perfctl.workloads.spec import Options, WorkloadError, first_line


class Kept:
    """Writes the record at the start, so that a killed process leaves one too, and at the end of the block.

    Exceptions pass through. Raises WorkloadError when the record cannot be written.
    """

    def __init__(self, record: Record, options: Options) -> None:
        self._record = record
        self._options = options

    def __enter__(self) -> Kept:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._record.status, self._record.reason = "ok", None
        else:
            some = any(row.phase == "step" for row in self._record.steps)
            self._record.status = "partial" if some else "failed"
            self._record.reason = explain(error, self._options)
        self._write()

    def _write(self) -> None:
        path = self._options.record
        if path is None:
            return
        try:
            self._record.write(path)
        except OSError as error:
            raise WorkloadError(f"cannot write the record {path}: {error.strerror or error}") from error


def explain(error: BaseException, options: Options) -> str:
    """The failure in one line, with advice when memory ran out; fields as options of this process."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, WorkloadError):
        return as_flags(str(error))
    text = first_line(error)
    if is_out_of_memory(error):
        return f"out of memory at batch size {options.batch_size}: {text} Try a smaller --batch."
    return f"{type(error).__name__}: {text}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the device or host ran out."""
    signs = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign.lower() in str(error).lower() for sign in signs)
    )
