"""perfctl calculator: what the command writes, and what it says where it cannot."""

from __future__ import annotations

import gzip
import json
from functools import partial

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands import calculator
from perfctl.orchestrator.commands.calculator import load_or_trace_models
from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.evidence import build_evidence_for_all_devices
from perfctl.orchestrator.predict.models import calculator as traced_models
from perfctl.orchestrator.predict.models.calculator import (
    CalculatorModel,
    ModelCache,
    ModelTable,
    load_shipped_model_table,
    parse_torchvision_model_names,
)
from perfctl.orchestrator.report import calculator as page_numbers
from perfctl.orchestrator.report.calculator import FamilyAnswers


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page without traced models and without a store."""
    folder = tmp_path_factory.mktemp("calculator")
    line = f"calculator --out {folder / 'c.html'} --models none --store {folder / 'no.db'}"
    assert run_command_line(line.split()) == 0
    return folder / "c.html"


def test_the_page_is_whole_and_small(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert len(text.encode()) < 3.5e5
    assert (
        "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    )


def test_a_model_that_torchvision_has_not_is_said_with_close_names():
    pytest.importorskip("torchvision")
    with pytest.raises(UsageError, match=r"no classification model 'resnet51'.*resnet50"):
        parse_torchvision_model_names("resnet18,resnet51", ModelCache())
    names = parse_torchvision_model_names("resnet18,torchvision:resnet18,vgg16", ModelCache())
    assert names == (("resnet18", "vgg16"), ())


def test_without_torchvision_the_families_are_written_and_the_rest_is_said(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(traced_models, "find_spec", lambda name: None)
    assert (
        run_command_line(
            ["calculator", "--out", str(tmp_path / "c.html"), "--store", str(tmp_path / "no.db")]
        )
        == 0
    )
    said = capsys.readouterr()
    assert (
        "warning: torchvision is not installed, so the calculator has only the families" in said.err
    )
    assert (
        "0 torchvision models" in " ".join(said.out.split())
        and "torchvision is not installed" in (tmp_path / "c.html").read_text()
    )
    with pytest.raises(ToolMissing, match="torchvision is not installed"):
        parse_torchvision_model_names("resnet18", ModelCache())


def test_each_of_the_default_models_may_take_so_much_that_all_stay_below_two_megabytes(page):
    """84 models: 21 times what the four of this page take, and everything else once."""
    text = page.read_text(encoding="utf-8")
    data = json.loads(
        text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    )
    models = data["grid"]["models"]
    four = len(json.dumps(models, separators=(",", ":")))
    assert len(models) == 4
    assert len(text.encode()) - four + 21 * four < 2e6


def test_a_traced_model_is_kept_for_the_next_time_and_traced_anew_when_the_file_is_damaged(
    tmp_path, monkeypatch
):
    pytest.importorskip("torchvision")
    cache, traced = tmp_path / "deep", []
    first, left_out = load_or_trace_models(
        ("squeezenet1_1",), lambda *said: traced.append(said), ModelCache(cache)
    )
    assert (
        traced == [("tracing squeezenet1_1", 0, 1), ("traced squeezenet1_1", 1, 1)]
        and left_out == ()
    )
    again, _ = load_or_trace_models(
        ("squeezenet1_1",), lambda *said: traced.append(said), ModelCache(cache)
    )
    assert len(traced) == 2 and again == first, "nothing was traced"
    (entry,) = cache.iterdir()
    for damaged in (b"", gzip.compress(b"{}"), entry.read_bytes()[:-9]):
        entry.write_bytes(damaged)
        monkeypatch.setattr(calculator, "trace_calculator_model", lambda model: "not now")
        assert load_or_trace_models(("squeezenet1_1",), lambda *said: None, ModelCache(cache)) == (
            (),
            ("squeezenet1_1 is not included: not now.",),
        ), damaged


@pytest.mark.parametrize("name", ["squeezenet1_1", "vit_b_32"])
def test_the_table_that_comes_with_perfctl_is_what_tracing_gives(name):
    pytest.importorskip("torchvision")
    table = load_shipped_model_table()
    if not table.models:
        pytest.skip("the table was traced with other versions of torch and torchvision")
    fresh = traced_models.trace_calculator_model(f"torchvision:{name}")
    assert isinstance(fresh, CalculatorModel), fresh
    assert ModelCache(None, table).find_cached_model(name) == fresh


def test_a_table_of_other_versions_is_not_taken(monkeypatch):
    monkeypatch.setattr(
        traced_models, "get_library_versions", lambda: {"torch": "0.1", "torchvision": "0.1"}
    )
    assert load_shipped_model_table() == ModelTable()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("model=resnet:depth=27", "use depth=26 or depth=28"),
        ("model=alexnet", "unknown family"),
        ("model=mlp:depth=1e3", "depth must be 1 to 200"),
        ("model=mlp:shape=3", "no parameter 'shape'"),
        ("model=", "unknown family"),
        ("model", "is not model="),
        ("model=mlp&model=vgg", "is not model="),
        ("store=/etc/passwd", "is not model="),
        ("model=mlp&x=1", "is not model="),
        ("model=" + "k" * 301, "is not model="),
        ("model=mlp%0a", "is not model="),
        ("model=mlp%ff", "is not model="),
        ("model=ｍlp", "is not model="),
    ],
)
def test_a_request_that_is_not_one_network_is_refused_with_the_reason(tmp_path, query, said):
    status, answer = FamilyAnswers(
        partial(build_evidence_for_all_devices, tmp_path / "none.db")
    ).answer_query(query)
    assert status == 400 and said in answer["error"] and set(answer) == {"error"}


def test_the_same_network_is_worked_out_once_whatever_it_is_called(tmp_path, monkeypatch):
    answers = FamilyAnswers(partial(build_evidence_for_all_devices, tmp_path / "none.db"))
    made: list[str] = []
    plain = page_numbers.build_family_calculator_model
    monkeypatch.setattr(
        page_numbers, "build_family_calculator_model", lambda spec: made.append(spec) or plain(spec)
    )
    status, first = answers.answer_query("model=mlp:width=96,depth=3")
    assert status == 200 and (first["name"], first["optimizer"]) == ("mlp:width=96", None)
    _, second = answers.answer_query("model=mlp:optimizer%3Dadam,width%3D96")
    assert (second["name"], second["optimizer"]) == ("mlp:width=96", "adam")
    assert made == ["mlp:width=96"] and second["grid"] is first["grid"]
    assert [model["name"] for model in first["grid"]["models"]] == ["mlp:width=96"]


def test_the_families_are_told_with_their_ranges(tmp_path):
    status, said = FamilyAnswers(
        partial(build_evidence_for_all_devices, tmp_path / "none.db")
    ).answer_query("")
    assert status == 200 and set(said["families"]) == {"vgg", "resnet", "inception", "mlp"}
    assert said["families"]["resnet"]["kernel"]["odd"] is True
    stops = said["families"]["resnet"]["depth"]["stops"]
    assert {10, 18, 34, 50, 101, 152} <= set(stops) and 51 not in stops
    assert said["families"]["inception"]["width"] | {"about": ""} == {
        "default": 32,
        "least": 4,
        "most": 4096,
        "odd": False,
        "multiple": 4,
        "about": "",
        "slider": [8, 512],
    }
