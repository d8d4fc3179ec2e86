"""Which board a name means, and that every product has its data sheet."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.hardware.gpus import BOARDS, choose, meant, nearest


def test_every_product_has_memory_power_and_a_link_and_no_other_has() -> None:
    for board in BOARDS:
        assert 8 <= board.memory_gb <= 180
        assert board.gpu.power_w is None or 70 <= board.gpu.power_w <= 1000
        assert (board.gpu.link == "NVLink") == ("SXM" in board.name or board.name == "B200")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_name_of_a_board_means_this_board_alone(board: object) -> None:
    assert meant(board.name) == (board,)  # type: ignore[attr-defined]
    assert meant(board.name.lower().replace(" gb", "gb")) == (board,)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("A100", {"A100 PCIe 40 GB", "A100 SXM4 40 GB", "A100 SXM4 80 GB", "A100 PCIe 80 GB"}),
        ("a100-80gb", {"A100 SXM4 80 GB", "A100 PCIe 80 GB"}),
        ("V100", {"V100 SXM2 16 GB", "V100 SXM2 32 GB", "V100 PCIe 16 GB", "V100 PCIe 32 GB"}),
        ("Tesla V100-SXM2-32GB", {"V100 SXM2 32 GB"}),
        ("NVIDIA A100-SXM4-40GB", {"A100 SXM4 40 GB"}),
        ("H100 HGX (80GB)", {"H100 SXM5"}),
        ("H100 80 GB", {"H100 PCIe", "H100 SXM5"}),
        ("NVIDIA GH200 480GB", {"GH200 480 GB"}),
        ("rtx3090", {"RTX 3090"}),
        ("3090", {"RTX 3090"}),
        ("RTX 2070", {"RTX 2070"}),
        ("2070 super", {"RTX 2070 Super"}),
        ("A6000", {"RTX A6000"}),
    ],
)
def test_short_names_and_the_drivers_names_find_their_boards(said: str, names: set[str]) -> None:
    assert {board.name for board in meant(said)} == names


@pytest.mark.parametrize(
    "said",
    ["A10G", "RTX 3080 Ti", "Quadro RTX 6000", "A100 60GB", "A100 MIG 1g.5gb", "RTX 4090 Laptop GPU", "", "16GB"],
)
def test_names_of_other_products_mean_none(said: str) -> None:
    assert meant(said) == ()


def test_boards_whose_rates_differ_from_their_architecture_can_be_told_apart_in_a_set() -> None:
    assert set(meant("RTX 2070")) & set(meant("rtx2070")) == set(meant("NVIDIA GeForce RTX 2070"))


def test_of_several_the_server_form_with_the_least_memory_is_chosen() -> None:
    assert choose(meant("A100")).name == "A100 SXM4 40 GB"
    assert choose(meant("V100")).name == "V100 SXM2 16 GB"
    assert choose(meant("H100")).name == "H100 SXM5"
    assert choose(meant("V100 PCIe")).name == "V100 PCIe 16 GB"


def test_the_nearest_names_are_offered_for_a_misspelt_one() -> None:
    assert "A10" in nearest("A10G")
    assert "RTX 3080 10 GB" in nearest("RTX 3080 Ti")
    assert nearest("T5") == ("T4",)
    assert nearest("banana") == ()
