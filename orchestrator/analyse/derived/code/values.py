"""Values of registers that the code fixes: constants, arguments that are known, and what is computed from them.

Whole numbers of 32 bits and predicates only. What cannot be worked out is not known; nothing is assumed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import lru_cache

from perfctl.records.sass import Instruction

State = dict[str, int]
"""Register -> its value, 0 or 1 for a predicate; a register that is missing is not known."""
Constants = Mapping[int, int]
"""Byte in constant bank 0 -> 32-bit value."""
_MASK = 0xFFFFFFFF
_REGISTER = re.compile(r"(?P<file>U?[RP])(?P<number>\d+)")
_BANK = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+|RZ)\]")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_WIDE = re.compile(r"\.128|\.64|WIDE|\.F64|\.S64|\.U64|\.64H")
_ONE = frozenset((
    "MOV", "UMOV", "IMAD", "UIMAD", "IADD3", "UIADD3", "VIADD", "IADD", "ISETP", "UISETP", "SHF", "USHF", "LEA", "ULEA",
    "LOP3", "ULOP3", "SEL", "USEL", "S2R", "S2UR", "SGXT", "USGXT", "IMNMX", "UIMNMX", "VIMNMX", "IABS", "FADD", "FMUL",
    "FFMA", "FSEL", "FMNMX", "FSETP", "PRMT", "UPRMT", "PLOP3", "UPLOP3", "POPC", "UPOPC", "FLO", "UFLO", "VOTE", "VOTEU",
    "R2UR", "BMSK", "HADD2", "HMUL2", "HFMA2", "P2R", "I2F", "F2I", "I2I", "F2F", "F2FP", "ELECT", "SHFL", "LDS", "LDG",
    "LDC", "ULDC", "LDCU", "LDL", "LD", "MUFU", "CS2R", "CS2UR",
))  # fmt: skip
"""Opcodes that write one register, or two where they say so (.64, WIDE), or four (.128); others may write many."""
_MANY = 256
_NOTHING = frozenset((
    "BRA", "JMP", "BRX", "EXIT", "RET", "BSSY", "BSYNC", "BREAK", "BAR", "WARPSYNC", "ST", "STG", "STS", "STL", "RED", "NOP", "DEPBAR",
))  # fmt: skip
"""Opcodes that write no register, although they may begin with one."""
_ALL_PREDICATES = tuple(f"P{number}" for number in range(7))


def run(one: Instruction, state: State, constants: Constants) -> None:
    """Carry out one instruction on ``state``."""
    may = holds((one.predicate,), state) if one.predicate else True
    if may is False:
        return
    if one.base == "CALL":
        state.clear()  # the function may write any register
        return
    found = _result(one, state, constants) if may else None
    for register in written(one):
        state.pop(register, None)
    if found:
        state.update(found)


def holds(conditions: tuple[str, ...], state: State) -> bool | None:
    """Whether all predicates hold; None where that is not known."""
    values = [_predicate(word, state) for word in conditions]
    if any(value == 0 for value in values):
        return False
    return None if None in values else True


def meet(a: State, b: State) -> State:
    """What is known on both ways."""
    return {name: value for name, value in a.items() if b.get(name) == value}


@lru_cache(maxsize=1 << 16)
def written(one: Instruction) -> tuple[str, ...]:
    """Registers that an instruction writes, or may write."""
    if one.base in _NOTHING:
        return ()
    if one.base == "R2P":
        return _ALL_PREDICATES
    found: list[str] = []
    for place, word in enumerate(one.operands[:3]):
        match = _REGISTER.fullmatch(word.removesuffix(".reuse"))
        if match is None:
            continue
        if "P" in match["file"]:
            found.append(match[0])
        elif place == 0 or (place == 1 and "P" in one.operands[0]):
            wide = 4 if ".128" in one.opcode else 2 if _WIDE.search(one.opcode) else 1
            if one.base in ("CS2R", "CS2UR") and ".32" not in one.opcode:
                wide = 2
            count = wide if one.base in _ONE else 4 if one.base in ("HMMA", "IMMA", "LDSM", "TEX", "LDGSTS") else _MANY
            first = int(match["number"])
            found += [f"{match['file']}{first + more}" for more in range(count)]
    return tuple(found)


def value(word: str, state: State, constants: Constants) -> int | None:
    """Value of one operand, without sign: 0 to 2^32 - 1."""
    word = word.removesuffix(".reuse")
    if word in ("RZ", "URZ", "SRZ", "-RZ", "-URZ"):
        return 0
    if _NUMBER.fullmatch(word):
        return int(word, 16 if "0x" in word else 10) & _MASK
    if word[:1] in "-~":
        inside = value(word[1:], state, constants) if word[1:] else None
        return None if inside is None else (-inside if word[0] == "-" else ~inside) & _MASK
    if found := _BANK.fullmatch(word):
        return constants.get(_offset(found))
    return state.get(word)


def _offset(found: re.Match[str]) -> int:
    return 0 if found[1] == "RZ" else int(found[1], 16)


def _predicate(word: str, state: State) -> int | None:
    if word.startswith("!"):
        inside = _predicate(word[1:], state)
        return None if inside is None else 1 - inside
    return 1 if word in ("PT", "UPT", "") else state.get(word)


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _result(one: Instruction, state: State, constants: Constants) -> State | None:
    """What the instruction writes, where that can be worked out."""
    base = one.base.removeprefix("U") if one.base.startswith("U") else one.base
    parts = one.opcode.split(".")[1:]
    words = list(one.operands)
    if not words:
        return None
    if base in ("ISETP", "PLOP3"):
        return _compare(base, parts, words, state, constants)
    if base in ("LDC", "LDCU") or one.base == "ULDC":
        return _load(one, words, constants)
    if base in ("CS2R", "CS2UR"):
        return dict.fromkeys(written(one), 0) if words[-1] == "SRZ" else None
    target = words.pop(0)
    if base == "HFMA2":
        packed = _packed(words)
        return None if packed is None else {target: packed}
    while words and re.fullmatch(r"U?P[T\d]", words[0]) and base in ("IADD3", "LEA", "R2UR", "LOP3"):
        words.pop(0)  # carries that are written
    numbers = [value(word, state, constants) for word in words]
    result = _arithmetic(base, parts, words, numbers, state)
    return None if result is None or not _REGISTER.fullmatch(target) else {target: result & _MASK}


def _arithmetic(base: str, parts: list[str], words: list[str], numbers: list[int | None], state: State) -> int | None:
    if base == "SEL" and len(words) == 3:
        which = _predicate(words[2], state)
        return None if which is None else numbers[0 if which else 1]
    if base in ("IMNMX", "VIMNMX") and len(words) == 3:
        least, (a, b) = _predicate(words[2], state), numbers[:2]
        if a is None or b is None or least is None:
            return None
        low, high = sorted((a, b), key=None if "U32" in parts else _signed)
        return low if least else high
    known = [number for number in numbers if number is not None]
    if base == "LOP3" and len(numbers) >= 4:
        return None if None in numbers[:4] else _lut(known[0], known[1], known[2], known[3])
    if base in ("LEA", "IADD3", "SHF", "IMAD") and ("X" in parts or "WIDE" in parts):
        return None
    if None in numbers[: {"LEA": 4, "IADD3": 3}.get(base, 3)]:
        return None
    return _whole(base, parts, known)


def _whole(base: str, parts: list[str], n: list[int]) -> int | None:
    """Of instructions whose sources are all known."""
    if base in ("MOV", "MOV32I", "R2UR") and n:
        return n[0]
    if base == "IMAD" and len(n) == 3:
        if "HI" in parts:
            a, b = (n[0], n[1]) if "U32" in parts else (_signed(n[0]), _signed(n[1]))
            return (a * b >> 32) + n[2]
        return n[0] * n[1] + n[2]
    if base in ("IADD3", "VIADD", "IADD") and 2 <= len(n) <= 3:
        return sum(n)
    if base == "IABS" and n:
        return abs(_signed(n[0]))
    if base == "SGXT" and len(n) == 2 and 0 < n[1] < 32:
        low = n[0] & (1 << n[1]) - 1
        return low if "U32" in parts else low - (low >> n[1] - 1 << n[1])
    if base == "SHF" and len(n) == 3:
        return _shift(parts, *n)
    if base == "LEA":
        return _lea(parts, n)
    return None


def _packed(words: list[str]) -> int | None:
    """HFMA2 R, -RZ, RZ, high, low: how compilers load a constant, as two half-precision numbers."""
    if len(words) != 4 or not {words[0], words[1]} <= {"RZ", "-RZ"}:
        return None
    try:
        high, low = (int.from_bytes(struct.pack("<e", float(word)), "little") for word in words[2:])
    except (ValueError, OverflowError):
        return None
    return high << 16 | low


def _shift(parts: list[str], low: int, by: int, high: int) -> int | None:
    if by > 31:
        return None
    if parts[:1] == ["L"] and "HI" not in parts and "U32" in parts and not high:
        return low << by
    if parts[:1] == ["R"] and "HI" in parts and not low:
        return (_signed(high) if "S32" in parts else high) >> by
    return None


def _lea(parts: list[str], n: list[int]) -> int | None:
    if parts == ["HI"] and len(n) == 4 and n[3] < 32:
        return ((n[2] << 32 | n[0]) >> 32 - n[3]) + n[1]
    if parts == ["HI", "SX32"] and len(n) == 3 and n[2] < 32:
        return (_signed(n[0]) >> 32 - n[2]) + n[1]
    if not parts and len(n) == 3 and n[2] < 32:
        return (n[0] << n[2]) + n[1]
    return None


def _lut(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for case in range(8):
        if table >> case & 1:
            found |= (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
    return found & _MASK


_COMPARED = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
}  # fmt: skip


def _compare(base: str, parts: list[str], words: list[str], state: State, constants: Constants) -> State | None:
    """ISETP.GE.AND P0, PT, a, b, Pc: P0 = (a >= b) and Pc. PLOP3.LUT P0, PT, Pa, Pb, Pc, table, table."""
    if not _REGISTER.fullmatch(words[0]) or words[1] not in ("PT", "UPT"):
        return None
    if base == "PLOP3":
        inputs = [_predicate(word, state) for word in words[2:5]]
        table = value(words[5], state, constants) if len(words) > 5 else None
        if None in inputs or table is None:
            return None
        at = sum((bit or 0) << 2 - place for place, bit in enumerate(inputs))
        return {words[0]: table >> at & 1}
    if "EX" in parts or not parts or parts[0] not in _COMPARED or len(words) != 5:
        return None
    a, b = (value(word, state, constants) for word in words[2:4])
    more = _predicate(words[4], state)
    truth = None
    if a is not None and b is not None:
        truth = int(_COMPARED[parts[0]](*((a, b) if "U32" in parts else (_signed(a), _signed(b)))))
    result = _joined(parts[-1], truth, more)
    return None if result is None else {words[0]: result}


def _joined(how: str, a: int | None, b: int | None) -> int | None:
    if how == "AND" and 0 in (a, b):
        return 0
    if how == "OR" and 1 in (a, b):
        return 1
    if a is None or b is None:
        return None
    return {"AND": a & b, "OR": a | b, "XOR": a ^ b}.get(how)


def _load(one: Instruction, words: list[str], constants: Constants) -> State | None:
    """LDC, ULDC: one 32-bit value, or two or four in a row."""
    found = _BANK.fullmatch(words[-1])
    if found is None or any(part in one.opcode for part in (".U8", ".S8", ".U16", ".S16")):
        return None
    at = _offset(found)
    values = {register: constants.get(at + 4 * place) for place, register in enumerate(written(one))}
    return {register: number for register, number in values.items() if number is not None}
