"""The measured roofs: what is printed is a rate of what was really done."""

import json

import pytest

from perfctl.workloads.run import peaks


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(peaks, "CPU_SIDES", (64,))
    monkeypatch.setattr(peaks, "CPU_ELEMENTS", 4096)
    monkeypatch.setattr(peaks, "ROUNDS", 2)


def test_json_names_the_device_and_has_positive_rates(capsys):
    assert peaks.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["flops"]) == {"fp32", "fp64"} and min(found["flops"].values()) > 0
    assert (
        found["bandwidth_bps"] > 0
        and found["kind"] == "cpu"
        and found["device"]
        and found["threads"] >= 1
    )


def test_the_rate_is_two_flops_a_multiply_add_and_twelve_bytes_an_element(monkeypatch):
    monkeypatch.setattr(peaks, "_measure_best_median_seconds", lambda device, call: 0.5)
    found = peaks.measure_device_peaks("cpu")
    assert found["flops"]["fp32"] == 2 * 64**3 / 0.5
    assert found["bandwidth_bps"] == 12 * 4096 / 0.5


def test_the_best_of_the_medians_counts(monkeypatch):
    monkeypatch.setattr(peaks, "REPEATS", 3)
    lengths = iter([9, 5, 5, 4, 3, 8])
    clock = [0.0]

    def perf_counter():
        return clock[0]

    def call():
        if started[0]:
            clock[0] += next(lengths)
        started[0] = True

    started = [False]
    monkeypatch.setattr(peaks.time, "perf_counter", perf_counter)
    assert peaks._measure_best_median_seconds("cpu", call) == 4, (
        "medians are 5 and 4; the call before them is not timed"
    )


def test_without_a_gpu_cuda_is_refused_in_one_line(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert peaks.main(["--device", "cuda"]) == 1
    assert "--device cuda" in capsys.readouterr().err
