"""Tables of API calls and of ranges: shares of a domain, and GPU time beside the time on
the host."""

from perfctl.orchestrator.report.page import study
from perfctl.records.report import ApiCall, Copy, Gap, Operation, Range
from tests.make.synthetic import V100, foreign_run, make_run
from tests.report.outline import printed, terminal_run


def rows(table):
    labels = [column.label for column in table.columns]  # type: ignore[attr-defined]
    return [dict(zip(labels, (cell.text for cell in row), strict=True)) for row in table.rows]  # type: ignore[attr-defined]


def test_a_call_has_its_share_of_its_own_domain_and_its_mean():
    calls = [
        ApiCall("cuda", "cudaLaunchKernel", 4, 3000, 500, 1000),
        ApiCall("cuda", "cudaMalloc", 1, 1000, 1000, 1000),
        ApiCall("osrt", "poll", 2, 5000, 2000, 3000),
        ApiCall("nvtx", "step", 1, 9, 9, 9),
    ]
    found = rows(study.build_api_calls_table([make_run(api_calls=calls)]))
    assert [(row["name"], row["share"]) for row in found] == [
        ("cudaLaunchKernel", "75.0%"),
        ("cudaMalloc", "25.0%"),
        ("poll", "100.0%"),
    ]
    assert float(found[0]["mean"]) == 3000 / 4


def test_calls_of_hip_come_first_under_a_heading_that_fits_them_and_the_terminal_shows_their_names_whole():
    """463 ms, as a wait of SGLang's has, beside calls of 180 ns; two names that begin alike."""
    calls = [
        ApiCall("hip", "hipMemcpyWithStream", 1, 463_000_000, 463_000_000, 463_000_000),
        ApiCall("hip", "hipMemcpyAsync", 2, 360, 180, 180),
        ApiCall("hip", "hipStreamIsCapturing", 1, 180, 180, 180),
        ApiCall("a library", "poll", 1, 400_000_000, 400_000_000, 400_000_000),
    ]
    table = study.build_api_calls_table([make_run(api_calls=calls)])
    assert table is not None and "CUDA or HIP" in table.caption
    assert [row["name"] for row in rows(table)] == [*(call.name for call in calls)]
    shown = printed(terminal_run(make_run(api_calls=calls)))
    for call in calls:
        assert call.name in shown
    assert "463 ms" in shown and "463,000,000 ns" not in shown


def test_a_lost_gpu_recording_is_said_instead_of_the_share_of_its_longest_call():
    calls = [ApiCall("cuda", "cudaDeviceSynchronize", 1, 3000, 3000, 3000)]
    share = "cudaDeviceSynchronize takes 100.0% of the host time of CUDA calls"
    assert share in printed(terminal_run(foreign_run(1, kernels=[], api_calls=calls)))
    gaps = [Gap("kernel", "not_collected", "no CUPTI")]
    lost = printed(terminal_run(foreign_run(1, kernels=[], api_calls=calls, gaps=gaps)))
    assert "has no kernels: no CUPTI." in lost and share not in lost


def test_ranges_are_sorted_by_gpu_time_and_name_which_time_is_the_hosts():
    ranges = [
        Range(0, "fc:forward", None, 0, 100, 7, 0, None, gpu_ns=40, gpu_span_ns=60),
        Range(1, "fc:forward", None, 200, 300, 7, 0, None, gpu_ns=0),
        Range(2, "other", None, 600, 5000, 7, 0, None),
        Range(3, "short on the host", None, 6000, 2, 7, 0, None, gpu_ns=900, gpu_span_ns=900),
    ]
    table = study.build_ranges_table([make_run(ranges=ranges)])
    assert not {"time", "mean", "longest"} & {column.label for column in table.columns}, (
        "a time says whose it is"
    )
    found = rows(table)
    assert [row["range"] for row in found] == ["short on the host", "fc:forward", "other"]
    labels = ("host time", "host longest", "GPU time", "GPU span")
    assert [float(found[1][label]) for label in labels] == [100 + 300, 300, 40 + 0, 60]
    assert (found[2]["GPU time"], found[2]["GPU span"]) == ("–", "–")


def test_copies_stand_apart_by_the_memory_and_the_pair_of_gpus_that_the_report_states():
    ends = {"start_ns": 0, "duration_ns": 500, "device_index": 0}
    copies = [
        Copy("HtoD", 10, **ends, source_memory="pageable", destination_memory="device"),
        Copy("HtoD", 20, **ends, source_memory="pinned", destination_memory="device"),
        Copy("PtoP", 30, **ends, peer_device=1),
        Copy("DtoH", 40, **ends),
        Copy("DtoH", 50, **ends),
    ]
    copied, moved = study.build_copy_tables([make_run(copies=copies)])
    assert moved is None
    table = rows(copied)
    assert sorted((row["copy"], row["times"]) for row in table) == [
        ("DtoH", "2"),
        ("HtoD, pageable to device", "1"),
        ("HtoD, pinned to device", "1"),
        ("PtoP, GPU 0 and GPU 1", "1"),
    ]


def test_copies_have_their_rate_and_a_note_if_large_ones_are_far_below_the_link():
    ends = {"source_memory": "pageable", "destination_memory": "device"}
    copies = [
        Copy("HtoD", 4_000_000, 0, 2_000_000, **ends),
        Copy("HtoD", 1_000, 0, 500_000, **ends),
        Copy("DtoH", 1_000, 0, 500_000),
        Copy("DtoH", None, 0, 500_000),
        Copy("memset", None, 0, 500),
    ]
    copied, _ = study.build_copy_tables([make_run(copies=copies, device=V100)])
    rates = {row[0].text: row[-1].value for row in copied.rows}
    assert rates == {
        "HtoD, pageable to device": 4_001_000 / 2_500_000 * 1e9,
        "DtoH": 1_000 / 500_000 * 1e9,
        "memset": None,
    }
    link = 16 * 8e9 / 8 * 128 / 130  # lanes of 8 GT/s, 128 of 130 bits
    (note,) = copied.notes
    assert f"{4_000_000 / 2_000_000:.2f} GB/s, {2e9 / link:.1%}" in note


def test_migrations_of_unified_memory_are_no_copies():
    copies = [Copy("HtoD", 10, 0, 500), Copy("unified HtoD", 20, 0, 700)]
    copied, moved = study.build_copy_tables([make_run(copies=copies)])
    assert [row["copy"] for row in rows(copied)] == ["HtoD"]
    assert [row["copy"] for row in rows(moved)] == ["unified HtoD"]


def test_operators_kernels_and_calls_of_the_system_have_a_table_each():
    figures = (1, 5, None, None, None, None)
    operations = [
        Operation("aten::mm", "cpu_op", *figures),
        Operation("poll", "osrt_sum", *figures),
        Operation("gemm", "cuda_gpu_kern_sum", 1, None, None, 5, None, None),
        Operation("conv2d", "Conv2D", *figures),
    ]
    tables = study.build_operator_tables([make_run(operations=operations)])
    assert {table.caption: [row[0].text for row in table.rows] for table in tables if table} == {
        "Framework operators, summed over each run": ["aten::mm", "conv2d"],
        "Operating system calls, summed over each run": ["poll"],
        "Kernels, summed over each run": ["gemm"],
    }
