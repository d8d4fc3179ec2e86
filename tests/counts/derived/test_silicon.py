"""Derived counts hold on hardware counters with known shapes, where ../shared has them."""

import json
import re
from collections import defaultdict
from dataclasses import asdict
from functools import cache

import pytest

from perfctl.orchestrator.counts.derived.rules import read_rule_verifications
from tests.make.scripts import load


@cache
def silicon(file="silicon"):
    """The script, which reads its reports once for all tests."""
    script = load(f"proof/silicon/{file}.py")
    read = script.launches if hasattr(script, "launches") else script.rows
    setattr(script, read.__name__, cache(lambda *folder: tuple(read(*folder))))
    return script


def test_nearly_all_launches_of_the_a100_are_within_two_percent_and_none_is_far_off(shared):
    found = silicon().rows(shared / "datasets" / "a100_operators")
    assert len(found) > 1_000
    assert sum(silicon().near(row.error) for row in found) >= 0.995 * len(found)
    assert sum(silicon().near(row.whole_error) for row in found) >= 0.99 * len(found)
    assert max(abs(row.error) for row in found if row.error is not None) < silicon().NEAR


def test_stated_errors_are_those_of_the_counters(shared):
    families = defaultdict(list)
    for row in silicon().rows(shared / "datasets" / "a100_operators"):
        families[row.family].append(row)
    measured = silicon().facts(families) | silicon("silicon_reports").facts(shared / "reports")
    stated = {
        family: {
            "launches": one.launches,
            "within": one.within,
            "worst": one.worst,
            "chip": one.chip,
        }
        for family, one in read_rule_verifications().items()
        if family in measured
    }
    assert stated == json.loads(json.dumps(measured))


def test_launches_on_an_h100_come_out_exactly_by_their_layers_operations():
    """Where a rule is not exact, its error is stated; what has no rule is no product of a layer."""
    rows = silicon("silicon_h100").launches()
    ruled = [row for row in rows if row.derived is not None]
    assert len(ruled) == 320
    inexact = {row.family for row in ruled if not row.is_exact}
    assert inexact == {"log softmax backward", "gemmSN", "sum of neighbours"}
    assert all(abs(row.error) < 0.05 for row in ruled)
    without = {row.name for row in rows if row.derived is None}
    beside = (
        "fft2d_",
        "winograd_nonfused",
        "layer_norm",
        "GammaBeta",
        "reduce",
        "Reduce",
        "dot_do",
    )
    rest = {name for name in without if not any(word in name for word in beside)}
    assert all(re.search("unrolled_|implicit_convolve_sgemm<__|wgrad_indexed", one) for one in rest)


def test_stated_errors_on_the_h100_are_those_of_its_counters():
    measured = silicon("silicon_h100").facts(silicon("silicon_h100").launches())
    stated = {
        family: one for family, one in read_rule_verifications().items() if "H100" in one.chip
    }
    assert {"xmma sgemm", "products of FFT, xmma", "wgrad_alg0_engine"} <= set(stated)
    for family, one in stated.items():
        assert asdict(one) == measured[family]


def test_reports_of_other_chips_agree_and_what_has_no_rule_says_why(shared):
    """V100: a product on tensor cores; A100: an attention layer in fp32; RTX 5090: causal tiles."""
    pytest.importorskip("ncu_report")
    found, without = silicon("silicon_reports").rows(shared / "reports")
    ruled = [row for row in found if row.derived is not None]
    assert sum(row.launches for row in ruled) >= 20 and all(row.deviation == 0 for row in ruled)
    exact = {row.executed for row in ruled}
    causal = 32 * 33 // 2  # tiles of 64 x 64 that the mask leaves of 32 x 32
    assert {2 * 20480**3, 16 * causal * 64 * 64 * 128 * 2, 16 * 128 * 128 * 32} <= exact
    assert all(len(row.note) > 10 for row in found if row.derived is None)
    assert "b200_flashinfer_gqa_bf16_b1_ctx32k_p64.ncu.csv" in without
