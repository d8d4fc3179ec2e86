"""Which board a name means."""

import pytest

from perfctl.orchestrator.counts.hardware.machines import (
    BOARDS,
    choose_sxm_or_smallest_board,
    find_boards,
    suggest_board_names,
)
from tests.make.tables import table


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_name_of_a_board_means_this_board_alone(board):
    assert find_boards(board.name) == (board,)
    assert find_boards(board.name.lower().replace(" gb", "gb")) == (board,)


@table(
    "said names",
    [
        ("A100", {"A100 PCIe 40 GB", "A100 SXM4 40 GB", "A100 SXM4 80 GB", "A100 PCIe 80 GB"}),
        ("a100-80gb", {"A100 SXM4 80 GB", "A100 PCIe 80 GB"}),
        ("V100", {"V100 SXM2 16 GB", "V100 SXM2 32 GB", "V100 PCIe 16 GB", "V100 PCIe 32 GB"}),
        ("Tesla V100-SXM2-32GB", {"V100 SXM2 32 GB"}),
        ("Tesla V100-DGXS-32GB", {"V100 SXM2 32 GB"}),
        ("NVIDIA A100-SXM4-40GB", {"A100 SXM4 40 GB"}),
        ("H100 HGX (80GB)", {"H100 SXM5"}),
        ("H100 80 GB", {"H100 PCIe", "H100 SXM5"}),
        ("NVIDIA H800", {"H800 SXM5"}),
        ("NVIDIA H800 PCIe", {"H800 PCIe"}),
        ("NVIDIA GH200 480GB", {"GH200 480 GB"}),
        ("rtx3090", {"RTX 3090"}),
        ("3090", {"RTX 3090"}),
        ("RTX 2070", {"RTX 2070"}),
        ("2070 super", {"RTX 2070 Super"}),
        ("A6000", {"RTX A6000"}),
        ("NVIDIA A10G", {"A10G"}),
        ("A10", {"A10"}),
        ("L40", {"L40"}),
        ("L40S", {"L40S"}),
        ("RTX 3070 Ti", {"RTX 3070 Ti"}),
        ("3070", {"RTX 3070"}),
        ("RTX 3080 Ti", {"RTX 3080 Ti"}),
        ("Quadro RTX 6000", {"Quadro RTX 6000"}),
        ("NVIDIA RTX 6000 Ada Generation", {"RTX 6000 Ada"}),
        ("RTX5000 16GB", {"Quadro RTX 5000"}),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            {"RTX PRO 6000 Blackwell Workstation"},
        ),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            {"RTX PRO 6000 Blackwell Max-Q Workstation"},
        ),
        ("NVIDIA T1200 Laptop GPU", {"T1200 Laptop"}),
        ("NVIDIA GH200 144G HBM3e", {"GH200 144 GB"}),
        ("GH200", {"GH200 480 GB", "GH200 144 GB"}),
        ("NVIDIA B300 SXM6 AC", {"B300"}),
        ("MI210", {"MI210"}),
        ("AMD Instinct MI250X", {"MI250X (one of two dies)"}),
        ("AMD Instinct MI300X", {"MI300X"}),
        ("MI50", {"MI50 16 GB", "MI50 32 GB"}),
    ],
)
def test_short_names_and_the_drivers_names_find_their_boards(said, names):
    assert {board.name for board in find_boards(said)} == names


@table(
    "said",
    [
        "A11",
        "RTX 3085",
        "RTX PRO 6000 Blackwell Server Edition",
        "A100 60GB",
        "A100 MIG 1g.5gb",
        "RTX 4090 Laptop GPU",
        "Quadro RTX 6000 with Max-Q Design",
        "",
        "16GB",
    ],
)
def test_names_of_other_products_mean_none(said):
    assert find_boards(said) == ()


def test_of_several_the_server_form_with_the_least_memory_is_chosen():
    assert choose_sxm_or_smallest_board(find_boards("A100")).name == "A100 SXM4 40 GB"
    assert choose_sxm_or_smallest_board(find_boards("V100")).name == "V100 SXM2 16 GB"
    assert choose_sxm_or_smallest_board(find_boards("H100")).name == "H100 SXM5"
    assert choose_sxm_or_smallest_board(find_boards("V100 PCIe")).name == "V100 PCIe 16 GB"


def test_the_nearest_names_are_offered_for_a_misspelt_one():
    assert "A10" in suggest_board_names("A10H")
    assert "RTX 3080 Ti" in suggest_board_names("RTX 3085 Ti")
    assert suggest_board_names("T5") == ("T4",)
    assert len(suggest_board_names("A100")) == 4
    assert suggest_board_names("geforce 2070 rtx suuper")[0] == "RTX 2070 Super"
    assert suggest_board_names("banana") == ()
