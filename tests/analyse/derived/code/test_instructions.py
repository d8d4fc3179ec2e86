"""FLOPs of one instruction by its name: 2 m n k for tensor cores (1 multiply-add = 2 FLOPs)."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.derived.code.instructions import kind_of
from perfctl.orchestrator.analyse.derived.code.records import units
from perfctl.records.sass import Instruction


def instruction(words: str) -> Instruction:
    opcode, _, rest = words.partition(" ")
    return Instruction(0, "", opcode, tuple(word.strip() for word in rest.split(",") if word))


@pytest.mark.parametrize(
    ("words", "per", "flops"),
    [
        ("FADD R0, R1, R2", "thread", 1), ("FMUL.FTZ R0, R1, R2", "thread", 1), ("FFMA R0, R1, R2, R3", "thread", 2),
        ("DFMA R0, R2, R4, R6", "thread", 2), ("HFMA2.MMA R0, R1, R2, R3", "thread", 2 * 2), ("HADD2 R0, R1, R2", "thread", 2),
        ("HMUL2.BF16_V2 R0, R1, R2", "thread", 2), ("FFMA2 R0, R2, R4, R6", "thread", 2 * 2), ("FADD2 R0, R2, R4", "thread", 2),
        ("HMMA.16816.F32 R0, R4, R8, R0", "warp", 2 * 16 * 8 * 16), ("HMMA.1688.F32.TF32 R0, R4, R8, R0", "warp", 2 * 16 * 8 * 8),
        ("HMMA.1684.F32.TF32 R0, R4, R8, R0", "warp", 2 * 16 * 8 * 4), ("IMMA.16832.S8.S8 R0, R4, R8, R0", "warp", 2 * 16 * 8 * 32),
        ("IMMA.8816.S8.S8 R0, R4, R8, R0", "warp", 2 * 8 * 8 * 16),
        ("QMMA.16832.F32.E4M3.E4M3 R0, R4, R8, R0", "warp", 2 * 16 * 8 * 32),
        ("DMMA.884 R0, R4, R8, R0", "warp", 2 * 8 * 8 * 4), ("HMMA.884.F32.F32.STEP0 R0, R4, R8, R0", "warp", 512),
        ("HMMA.884.F16.F16.STEP0 R0, R4, R8, R0", "warp", 1024),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR12], R24", "warpgroup", 2 * 64 * 128 * 16),
        ("HGMMA.64x64x8.F32.TF32 R24, gdesc[UR12], R24", "warpgroup", 2 * 64 * 64 * 8),
        ("QGMMA.64x256x32.F32.E4M3.E4M3 R24, gdesc[UR12], R24", "warpgroup", 2 * 64 * 256 * 32),
    ],
)  # fmt: skip
def test_flops_follow_from_the_name(words: str, per: str, flops: int) -> None:
    found = kind_of(instruction(words))
    assert found is not None
    assert (found.per, found.flops) == (per, flops)


@pytest.mark.parametrize(
    "words",
    ["HFMA2.MMA R5, -RZ, RZ, 0, 0", "HFMA2 R5, -RZ, RZ, 0, 2.38e-07", "HADD2.F32 R1, -RZ, R2.H0_H0", "MUFU.RCP R0, R1"],
)
def test_moves_conversions_and_special_functions_are_no_flops(words: str) -> None:
    found = kind_of(instruction(words))
    assert found is not None
    assert found.flops == 0


@pytest.mark.parametrize(
    "words", ["MOV R0, R1", "IMAD R0, R1, R2, R3", "LDG.E R0, [R2.64]", "FSETP.GT.AND P0, PT, R0, R1, PT"]
)
def test_moves_integers_loads_and_comparisons_are_not_counted(words: str) -> None:
    assert kind_of(instruction(words)) is None


def test_the_descriptor_of_a_tcgen05_product_says_its_size() -> None:
    m, n = 128, 256
    descriptor = m // 16 << 24 | n // 8 << 17
    words = "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR9], tmem[UR24], idesc[UR25], UPT"
    known, tf32 = kind_of(instruction(words), descriptor), kind_of(instruction(words), descriptor | 2 << 7)
    pair = kind_of(instruction(words.replace("UTCHMMA", "UTCHMMA.2CTA")), descriptor)
    assert known is not None and tf32 is not None and pair is not None
    assert (known.flops, tf32.flops, pair.flops) == (2 * m * n * 16, 2 * m * n * 8, m * n * 16)


def test_without_its_descriptor_its_flops_are_not_known() -> None:
    found = kind_of(instruction("UTCQMMA gdesc[UR4], gdesc[UR6], tmem[UR9], tmem[UR24], idesc[UR25], UPT"))
    assert found is not None
    assert found.flops is None


def test_an_incomplete_warp_is_a_warp() -> None:
    assert [units(per, 100) for per in ("thread", "warp", "warpgroup", "block")] == [100, 4, 1, 1]
