"""Text of nvdisasm as instructions."""

from __future__ import annotations

import pytest

from perfctl.parsers.sass import nvdisasm
from perfctl.parsers.sass.elf import BrokenCode

TEXT = """
.text.one:
	//## File "/home/me/one.py", line 7
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   BRX R4 -0x30                (*"BRANCH_TARGETS .L_x_0,.L_x_1"*);
.L_x_1:
	//## File "/home/me/one.py", line 9
        /*0030*/                   CALL.REL.NOINC `($one$helper) ;
        /*0040*/                   EXIT ;
$one$helper:
        /*0050*/                   HMMA.16816.F32 R8, R52.reuse, R48, R8 ;
        /*0060*/                   RET.REL.NODEC R4 `(one) ;
.text.two:
        /*0000*/                   FADD R0, R0, R1 ;
"""


def test_branches_calls_and_tables_lead_to_addresses() -> None:
    found = {one.address: one for one in nvdisasm.parse(TEXT, "one")}
    assert found[0x10].predicate == "!P0"
    assert found[0x10].targets == (0x30,)
    assert found[0x20].targets == (0x20, 0x30)
    assert found[0x30].targets == (0x50,)
    assert found[0x00].targets == ()


def test_operands_in_brackets_stay_whole_and_lines_follow_the_source() -> None:
    found = nvdisasm.parse(TEXT, "one")
    assert found[0].operands == ("R1", "c[0x0][0x28]")
    assert found[5].opcode == "HMMA.16816.F32"
    assert found[5].operands == ("R8", "R52.reuse", "R48", "R8")
    assert [one.line for one in found] == ["one.py:7"] * 3 + ["one.py:9"] * 4


def test_only_the_kernel_that_was_asked_for_is_read() -> None:
    assert [one.opcode for one in nvdisasm.parse(TEXT, "two")] == ["FADD"]


@pytest.mark.parametrize("text", ["", "nvdisasm fatal", ".text.one:\n", TEXT.replace("/*", "//")])
def test_text_without_the_kernel_is_refused(text: str) -> None:
    with pytest.raises(BrokenCode, match="no instruction of one"):
        nvdisasm.parse(text, "one")
