"""Traces that are kept: an estimate from the cache equals the one that was just traced, and nothing
stale is ever taken."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import fields, replace
from typing import NamedTuple

import pytest

from perfctl.orchestrator.estimate import trace_cache
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.estimate.trace_cache import (
    compute_digest,
    open_trace_cache_if_reproducible,
)
from perfctl.workloads.models import find
from perfctl.workloads.tracing import recorder

SOURCE = """
import torch
from torch import nn
class Net(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return {}
def net():
    return {}
"""
MODELS = {
    "uncounted": ("y @ torch.linalg.matrix_exp(self.weight)", "Net(4, 4)"),
    "stops": ("y + torch.ones(2, 3, 5)", "Net(4, 4)"),
    "needs_data": ("y * y.sum().item()", "Net(4, 4)"),
    "complex": ("torch.fft.fft(y)", "Net(4, 4)"),
    "compiled": ("y", "torch.compile(Net(4, 4), backend='eager')"),
    "script": ("y", "torch.jit.script(nn.Linear(4, 4))"),
}
"""What the model returns, and what its factory makes."""
LONG_AGO = 1_600_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The cache, switched on and empty."""
    monkeypatch.delenv(trace_cache.OFF)
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.chdir(
        tmp_path_factory.mktemp("work")
    )  # what lies beside a factory counts; others write to the checkout
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "perfctl" / "traces"


def source(path, text, age=0):
    """A file of the user's, last written before this process began, as the reference of its
    factory ``net``."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (LONG_AGO + age,) * 2)
    return f"{path}:net"


@pytest.fixture
def untraceable(monkeypatch):
    """Calling it from here on, nothing can be built or traced any more."""

    def refuse(*_, **__):
        raise AssertionError("a model was built or traced")

    def forbid():
        monkeypatch.setattr(recorder, "trace_step", refuse)
        monkeypatch.setattr(find, "build_referenced_model", refuse)

    return forbid  # type: ignore[return-value]


def same(one, other):
    return one == other and repr(one) == repr(other)  # == takes 1 for True and 1.0


@pytest.mark.parametrize(
    "request_",
    [
        Request("mnist_cnn", optimizer="adam", memory=True, gpu=(9, 0)),
        Request("mnist_cnn:conv2=32,128,5,1", mode="infer"),
        Request("mlp:depth=2,width=5,optimizer=momentum", memory=True),
        Request("torchvision:squeezenet1_1", memory=True),
        Request("torch.nn:Softmin", ("3x4",)),
    ],
    ids=lambda request: request.model,
)
def test_an_estimate_from_the_cache_equals_the_traced_one(request_, untraceable):
    traced = estimate_model_for_batches(request_, (2, 3))
    untraceable()
    assert same(estimate_model_for_batches(request_, (2, 3)), traced)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_an_estimate_that_is_at_least_or_stops_early_survives_too(name, tmp_path, untraceable):
    request = Request(
        source(tmp_path / f"kept_{name}.py", SOURCE.format(*MODELS[name])), ("2x4",), memory=True
    )
    traced = estimate_model_for_batches(request)
    untraceable()
    again = estimate_model_for_batches(request)
    assert same(again, traced)
    assert again.problems == traced.problems
    assert bool(again.problems) == (name in ("stops", "needs_data"))
    if name in ("uncounted", "stops", "needs_data"):
        assert again.batches[1].forward.is_lower_bound


def test_the_largest_batch_is_found_from_the_cache(untraceable):
    request = Request("mlp:depth=2,width=5", memory=True)
    traced = estimate_model_for_batches(request, device_memory_bytes=100 << 20)
    untraceable()
    assert (
        estimate_model_for_batches(request, device_memory_bytes=100 << 20).fit
        == traced.fit
        is not None
    )


def test_every_field_of_a_request_has_traces_of_its_own():
    request = Request("mnist_cnn")
    others = {
        "model": "mlp",
        "inputs": ("1x28x28",),
        "mode": "infer",
        "optimizer": "adam",
        "memory": True,
        "gpu": (9, 0),
        "own": ("--conv2=32,128,5,1",),
        "seq": 7,
        "prompt": 8,
        "generate": 4,
        "kv_cache": "fp16",
        "precision": "bf16",
        "attention": "math",
        "update": "fused",
    }
    assert others.keys() >= {one.name for one in fields(Request)} - {"device"}, (
        "a new field: give it another value"
    )
    found = [
        open_trace_cache_if_reproducible(replace(request, **{name: value}))
        for name, value in others.items()
    ]  # type: ignore[arg-type]
    assert None not in found
    assert len({one._base for one in found if one}) == len(others)


def test_values_are_never_taken_from_a_cache():
    assert open_trace_cache_if_reproducible(Request("mnist_cnn", device="cpu")) is None
    assert open_trace_cache_if_reproducible(Request("torchvision_infer:model=resnet18")) is None


def test_the_environment_of_the_libraries_counts_and_other_variables_do_not(monkeypatch):
    def base():
        found = open_trace_cache_if_reproducible(Request("mnist_cnn"))
        return found and found._base

    before = base()
    monkeypatch.setenv("EDITOR", "ed")
    assert base() == before
    monkeypatch.setenv("TIMM_FUSED_ATTN", "0")
    assert base() not in (before, None)


def test_an_installed_package_counts_and_a_library_without_a_version_is_never_kept(
    tmp_path, monkeypatch
):
    before = open_trace_cache_if_reproducible(Request("mnist_cnn"))
    (tmp_path / "more" / "fla-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "more")
    after = open_trace_cache_if_reproducible(Request("mnist_cnn"))
    assert before and after and before._base != after._base
    (tmp_path / "checkout" / "einops").mkdir(parents=True)
    (tmp_path / "checkout" / "einops" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "checkout")
    assert open_trace_cache_if_reproducible(Request("mnist_cnn")) is None


def test_nothing_is_kept_where_the_variable_says_so(cache, monkeypatch):
    monkeypatch.setenv(trace_cache.OFF, "1")
    estimate_model_for_batches(Request("mlp:depth=2,width=5"))
    assert not cache.exists()


def entry():
    """Return the traces of a model that has no files, which may be written."""
    found = open_trace_cache_if_reproducible(Request("mnist_cnn"))
    assert found is not None
    found.record_source_file_digests(())
    return found


def entries(cache):
    return sorted(cache.glob("*"))


DAMAGE = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a flipped bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "no gzip": lambda data: gzip.decompress(data),
    "no JSON": lambda data: gzip.compress(b"not JSON"),
    "other JSON": lambda data: gzip.compress(b"[1, 2]"),
    "other types": lambda data: gzip.compress(
        json.dumps({**json.loads(gzip.decompress(data)), "value": [[5]]}).encode()
    ),
    "another key": lambda data: gzip.compress(
        gzip.decompress(data).replace(b'"key":"', b'"key":"f')
    ),
    "deep": lambda data: gzip.compress(b"[" * 100_000),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_or_foreign_file_is_as_good_as_none(what, cache):
    request = Request("mlp:depth=2,width=5", memory=True)
    traced = estimate_model_for_batches(request)
    for path in entries(cache):
        path.write_bytes(DAMAGE[what](path.read_bytes()))
    assert same(estimate_model_for_batches(request), traced)
    assert all(
        json.loads(gzip.decompress(path.read_bytes()))["key"] in path.name
        for path in entries(cache)
    )


def test_an_entry_that_another_user_made_is_not_read(cache, monkeypatch):
    one = entry()
    one.put("mine", 1)
    assert one.get(str, 1) == "mine"
    assert {path.stat().st_mode & 0o777 for path in (cache,)} == {0o700}
    monkeypatch.setattr(trace_cache.os, "geteuid", lambda: os.getuid() + 1)
    assert one.get(str, 1) is None


def test_a_folder_in_the_place_of_an_entry_and_a_cache_that_cannot_be_written_do_no_harm(cache):
    request = Request("mlp:depth=2,width=5")
    traced = estimate_model_for_batches(request)
    for path in entries(cache):
        path.unlink()
        path.mkdir()
    assert same(estimate_model_for_batches(request), traced)
    for path in entries(cache):
        path.rmdir()
    cache.rmdir()
    cache.write_text("no folder")
    assert same(estimate_model_for_batches(request), traced)


def test_the_cache_stays_below_its_bound_and_keeps_what_was_used_last(cache, monkeypatch):
    one = entry()
    noise = os.urandom(4000).hex()
    for place in range(6):
        one.put(noise, place)
    for age, place in enumerate((0, 2, 3, 4, 5, 1)):  # as if they had been used in this order
        os.utime(
            cache / f"{compute_digest(one._base, f'{one._files} {(place,)}')}.json.gz",
            (LONG_AGO + age,) * 2,
        )
    assert one.get(str, 0) == noise  # used just now
    (cache / ".left.tmp").touch()
    os.utime(cache / ".left.tmp", (LONG_AGO,) * 2)
    size = max(path.stat().st_size for path in entries(cache))
    monkeypatch.setattr(trace_cache, "MOST_BYTES", 4 * size)
    one.put(noise, 6)
    assert sum(path.stat().st_size for path in entries(cache)) <= 4 * size
    assert [place for place in range(7) if one.get(str, place) is not None] == [0, 1, 6]
    assert not (cache / ".left.tmp").exists()


class _Odd(NamedTuple):
    value: object


@pytest.mark.parametrize(
    "value", ["\udcff", object(), 1 + 2j], ids=["half a pair", "object", "complex"]
)
def test_a_value_that_json_cannot_hold_is_not_kept_and_does_no_harm(value):
    one = entry()
    one.put(_Odd(value), 1)
    assert one.get(_Odd, 1) is None
