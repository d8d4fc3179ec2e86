"""perfctl calculator: what the command writes, and what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.orchestrator.cli.calculator_models import names_of
from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.errors import UsageError


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page without traced models and without a store."""
    folder = tmp_path_factory.mktemp("calculator")
    assert (
        run(["calculator", "--out", str(folder / "c.html"), "--models", "none", "--store", str(folder / "no.db")]) == 0
    )
    return folder / "c.html"


def test_the_page_is_whole_and_small(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert len(text.encode()) < 2e6
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text


def test_another_page_is_not_written_over_without_force(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = page.read_bytes()
    assert run(["calculator", "--out", str(page), "--models", "none"]) == 2
    assert "--force" in capsys.readouterr().err and page.read_bytes() == before


def test_a_model_that_torchvision_has_not_is_said_with_close_names() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(UsageError, match=r"no classification model 'resnet51'.*resnet50"):
        names_of("resnet18,resnet51")
    assert names_of("resnet18,torchvision:resnet18,vgg16") == ("resnet18", "vgg16")
