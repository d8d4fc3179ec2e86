"""Bytes and input types of counted work, where no counter says it outright."""

from perfctl.orchestrator.counts.counters.work import compute_dram_bytes, infer_tensor_type
from tests.make.tables import table

READ, WRITTEN, WHOLE = "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes.sum"
RATE, TIME = "dram__bytes.sum.per_second", "gpu__time_duration.sum"


@table(
    "values found",
    [
        ({WHOLE: 0.0}, 0.0),
        ({WHOLE: 9.0, READ: 3.0}, 9.0),
        ({READ: 3.0}, None),
        ({READ: 3.0, WRITTEN: 0.0}, 3.0),
        ({READ: 0.0, WRITTEN: 0.0, RATE: 5.0, TIME: 1.0}, 0.0),
        ({WRITTEN: 4.0, RATE: 2e9, TIME: 3.0}, 6.0),
        ({RATE: 2e9}, None),
        ({TIME: 3.0}, None),
        ({}, None),
    ],
)
def test_bytes_are_the_whole_or_both_halves_or_rate_times_time(values, found):
    assert compute_dram_bytes(values).value == found
    assert (compute_dram_bytes(values).state == "estimated") == (
        RATE in values and READ not in values and found is not None
    )


@table(
    "name capability precision kind",
    [
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn", "8.0", "fp32", "fp16"),  # its name says so
        ("some_kernel", "7.0", "fp32", "fp16"),  # Volta's have no other
        ("some_kernel", "8.0", "fp32", "tf32"),
        ("some_kernel", "8.0", "bf16", "bf16"),
        ("some_kernel", None, "fp16", "fp16"),
        ("some_kernel", "8.0", "int3", "of unknown type"),
        ("some_kernel", "8.0", None, "of unknown type"),
    ],
)
def test_tensor_work_of_an_unknown_name_is_of_the_runs_precision(name, capability, precision, kind):
    assert infer_tensor_type(name, capability, precision) == kind
