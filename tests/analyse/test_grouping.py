from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from perfctl.orchestrator.analyse.grouping import studies


def test_runs_of_different_networks_are_never_one_study(synthetic: ModuleType) -> None:
    plain, wide = synthetic.cpu_run(1, 16), replace(synthetic.cpu_run(2, 64), variant="conv2=32,128,5,1")
    found = studies([plain, wide])
    assert [(study.variant, study.batches) for study in found] == [(None, (16,)), ("conv2=32,128,5,1", (64,))]


def test_the_same_network_at_several_batch_sizes_is_one_study(synthetic: ModuleType) -> None:
    (study,) = studies([synthetic.cpu_run(2, 64), synthetic.cpu_run(1, 16)])
    assert study.batches == (16, 64)


def test_a_run_that_failed_before_it_knew_its_device_joins_its_own_network(synthetic: ModuleType) -> None:
    failed = replace(synthetic.failed_run(3, 256), device=None)
    failed = replace(failed, report=replace(failed.report, devices=()))
    (study,) = studies([synthetic.cpu_run(1, 16), failed])
    assert study.batches == (16, 256)
