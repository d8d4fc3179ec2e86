"""Counts FADD, FMUL and FFMA for an element in PyTorch's own elementwise kernels, out of their machine code.

    python scripts/proof/silicon/aten_counts.py [--library libtorch_cuda.so] [--torch 2.14.1] [--archs 75 80 90 100] [--write]

PyTorch is open source, so reading its kernels is allowed; nothing disassembled is kept, counts only. cuobjdump comes from PATH
or from the triton wheel, c++filt from binutils. The kernels read are ``vectorized_elementwise_kernel<4, FUNCTOR, ...>``: the
path of a whole block, from its first instruction to the wide store, has no loop, and each thread does the same number of
elements on it, which the kernel compares with what is left. Other kernels do the same with the functor for each element. Of
optimizers (``multi_tensor_apply_kernel``) a turn of the loop with wide stores is read, which does 4 elements.

Which way a branch or a predicated instruction goes on ordinary values (magnitude between 1e-30 and 80, no zero, no NaN): calls are
slow paths of division and square roots and are not taken; a comparison with a constant outside of that range has one answer.
A functor that can still do more than one count (tanh of small and large values, ...) has the middle where that is within 8 % of
both, and is else left out and listed with --open.
Packed FADD2, FMUL2 and FFMA2 of sm_100 are two each. Functors with arithmetic in half are left out as well: a rule of fp32
instructions alone would not be all they do.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distribution, version
from itertools import pairwise
from pathlib import Path

from perfctl.orchestrator.analyse.derived.functors import functor_of

TABLE = Path(__file__).resolve().parents[3] / "orchestrator" / "analyse" / "derived" / "elementwise.csv"
ARCHS = ("75", "80", "90", "100")
FLOATS = re.compile(r"\b(?:float|half|bfloat16)\b")
OTHERS = re.compile(r"double|complex|float8|float4|long|short|char|lambda|\bint\b|igamma")
KERNEL = re.compile(r"vectorized_elementwise_kernel<4, |multi_tensor_apply_kernel<")
THREADS = 128
SPREAD = 0.08
"""A functor whose FLOPs the values change by more, up or down from the middle, has no count."""
FP32 = ("FFMA", "FMUL", "FADD")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?)(U?P[0-9T]+)\s+)?([A-Z0-9_.]+)\s*([^;]*);")
_SMALL, _LARGE = 1e-30, 80.0


@dataclass(slots=True)
class Instruction:
    address: int
    negated: bool
    predicate: str
    """"" for one that always runs."""
    name: str
    operands: str


@dataclass(slots=True)
class Block:
    """Instructions without a branch between them."""

    body: list[Instruction] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    stores: int = 0
    """Width of the widest store to memory, in bits."""
    calls: bool = False


def read(lines: Sequence[str]) -> list[Instruction]:
    found = (_INSTRUCTION.match(line) for line in lines)
    return [Instruction(int(one[1], 16), bool(one[2]), one[3] or "", one[4], one[5].strip()) for one in found if one]


def ordinary(code: Sequence[Instruction], place: int) -> bool | None:
    """Whether the predicate of instruction ``place`` holds on ordinary values; None where both can be."""
    one = code[place]
    for setter in reversed(code[max(0, place - 200) : place]):
        targets = setter.operands.split(", ")
        if setter.name in ("BRA", "CALL.REL.NOINC", "EXIT") or one.predicate not in targets[:2]:
            continue
        if setter.predicate:
            return None
        if setter.name == "FCHK":
            return one.negated
        if targets[0] != one.predicate or targets[-1] != "PT":
            return None
        if setter.name.startswith("ISETP"):
            truth = _bits(setter.name.split(".")[1], targets[3])
        else:
            truth = _compared(setter.name.split(".")[1], targets[2:4]) if setter.name.startswith("FSETP") else None
        return None if truth is None else truth != one.negated
    return None


def _bits(how: str, limit: str) -> bool | None:
    """A value's bits compared with those of infinity: ordinary ones are smaller."""
    if limit not in ("0x7f800000", "0x7f7fffff"):
        return None
    return {"GE": False, "GT": False, "EQ": False, "NE": True, "LT": True, "LE": True}.get(how)


def _compared(how: str, operands: Sequence[str]) -> bool | None:
    try:
        limit = float("inf" if "INF" in operands[1] else operands[1].split(" ")[0])
    except ValueError:
        return None
    limit = -limit if operands[1].startswith("-INF") else limit
    if not (abs(limit) <= _SMALL or abs(limit) >= _LARGE):
        return None
    tiny = 0 < limit <= _SMALL  # asks whether a positive value is denormal
    samples = (_SMALL * 2, _LARGE / 2) if tiny or operands[0].lstrip("-").startswith("|") else (-1.0, 1.0)
    truths = {_truth(how.removesuffix("U"), sample, limit) for sample in samples}
    return truths.pop() if len(truths) == 1 else None


def _truth(how: str, value: float, limit: float) -> bool:
    return {
        "GE": value >= limit,
        "GT": value > limit,
        "LT": value < limit,
        "LE": value <= limit,
        "EQ": value == limit,
        "NE": value != limit,
    }.get(how, value == value)


def blocks(code: Sequence[Instruction]) -> dict[int, Block]:
    """Address -> block, with the addresses of those that can follow on ordinary values."""
    starts = {code[0].address}
    for one, following in pairwise(code):
        if one.name.startswith(("BRA", "EXIT", "RET", "CALL", "BRX", "BREAK")):
            starts.add(following.address)
            starts |= _targets(one)
    found: dict[int, Block] = {}
    block = found[code[0].address] = Block()
    for place, one in enumerate(code):
        if one.address in starts and one.address not in found:
            if not block.body or not block.body[-1].name.startswith(("BRA", "EXIT", "RET")) or block.body[-1].predicate:
                block.after.append(one.address)
            block = found[one.address] = Block()
        block.body.append(one)
        block.calls |= one.name.startswith(("CALL", "RET", "BRX"))
        if one.name.startswith("STG"):
            wide = re.search(r"\.[US]?(8|16|64|128|256)\b", one.name)
            block.stores = max(block.stores, int(wide[1]) if wide else 32)
        if one.name.startswith("BRA"):
            goes = ordinary(code, place) if one.predicate not in ("", "PT", "UPT") else None
            if "," in one.operands:
                goes = None
            if goes is None or goes:
                block.after.extend(_targets(one))
            if goes:
                block.body[-1] = Instruction(one.address, False, "", "BRA", one.operands)
    return found


def _targets(one: Instruction) -> set[int]:
    return (
        {int(found, 16) for found in re.findall(r"0x[0-9a-f]+$", one.operands)} if one.name.startswith("BRA") else set()
    )


Counts = tuple[int, int, int]


def counts(code: Sequence[Instruction]) -> tuple[Counts, Counts, int, bool] | str:
    """(fewest, most) of FFMA, FMUL, FADD on a whole block's path, elements of a thread, arithmetic in half; else the reason."""
    graph = blocks(code)
    widths = {block.stores for block in graph.values()} - {0}
    if len(widths) < 2:
        return "no wide store"
    widest = max(widths)
    ends = {address for address, block in graph.items() if block.stores == widest}
    usable = {address for address, block in graph.items() if not block.calls}
    before: dict[int, set[int]] = defaultdict(set)
    for address in usable:
        for following in graph[address].after:
            if following in usable:
                before[following].add(address)
    path = _reach(ends & usable, before) | _reach(
        ends & usable, {address: set(graph[address].after) & usable for address in usable}
    )
    if code[0].address not in path:
        return "the wide store is behind a call"
    places = {one.address: number for number, one in enumerate(code)}
    least: dict[int, Counts] = {}
    most: dict[int, Counts] = {}
    for address in _ordered(code[0].address, graph, path) or ():
        low, high = _block_counts(code, places, graph[address])
        following = [other for other in graph[address].after if other in path]
        ends_here = any(one.name == "EXIT" for one in graph[address].body) or not following
        least[address] = _plus(low, min((least[other] for other in following), key=_flops, default=(0, 0, 0)))
        most[address] = _plus(high, max((most[other] for other in following), key=_flops, default=(0, 0, 0)))
        if ends_here and not following and address not in ends and not _reach({address}, before) & ends:
            return "a path without the wide store"
    if code[0].address not in least:
        return "a loop"
    elements = _per_thread(code)
    if elements is None:
        return "elements of a thread are not in the code"
    half = any(_half(one) for address in path for one in graph[address].body)
    return least[code[0].address], most[code[0].address], elements, half


def foreach_counts(code: Sequence[Instruction]) -> tuple[Counts, Counts, int, bool] | str:
    """The same of the main loop of a kernel over lists of tensors, which does 4 elements in a turn."""
    graph = blocks(code)
    found: set[tuple[Counts, Counts, bool]] = set()
    for last, block in graph.items():
        for first in block.after:
            body = {address for address in graph if first <= address <= last and not graph[address].calls}
            if first > last or not any(graph[address].stores >= 64 for address in body):
                continue
            inside = {
                address: {other for other in graph[address].after if other in body and other != first}
                for address in body
            }
            before: dict[int, set[int]] = defaultdict(set)
            for address, following in inside.items():
                for other in following:
                    before[other].add(address)
            found |= _turn(code, graph, first, _reach({last}, before) & _reach({first}, inside))
    if len(found) != 1:
        return f"{len(found)} main loops"
    low, high, half = found.pop()
    return low, high, 4, half


def _turn(
    code: Sequence[Instruction], graph: dict[int, Block], first: int, body: set[int]
) -> set[tuple[Counts, Counts, bool]]:
    """Fewest and most instructions from the loop's first block to its last; empty where it has a loop inside."""
    places = {one.address: number for number, one in enumerate(code)}
    inside = {
        address: replace(graph[address], after=[other for other in graph[address].after if other != first])
        for address in body
    }
    least: dict[int, Counts] = {}
    most: dict[int, Counts] = {}
    for address in _ordered(first, inside, body) or ():
        low, high = _block_counts(code, places, graph[address])
        following = [other for other in inside[address].after if other in body]
        least[address] = _plus(low, min((least[other] for other in following), key=_flops, default=(0, 0, 0)))
        most[address] = _plus(high, max((most[other] for other in following), key=_flops, default=(0, 0, 0)))
    half = any(_half(one) for address in body for one in graph[address].body)
    return {(least[first], most[first], half)} if first in least else set()


def _reach(start: set[int], edges: dict[int, set[int]]) -> set[int]:
    found, queue = set(start), list(start)
    while queue:
        for other in edges.get(queue.pop(), ()):
            if other not in found:
                found.add(other)
                queue.append(other)
    return found


def _ordered(start: int, graph: dict[int, Block], path: set[int]) -> list[int] | None:
    """Blocks of the path, each after all that can follow it; None where it has a loop."""
    order: list[int] = []
    state: dict[int, int] = {}
    stack = [(start, False)]
    while stack:
        address, done = stack.pop()
        if done:
            state[address] = 2
            order.append(address)
            continue
        if state.get(address):
            continue
        state[address] = 1
        stack.append((address, True))
        for other in graph[address].after:
            if other in path:
                if state.get(other) == 1:
                    return None
                if not state.get(other):
                    stack.append((other, False))
    return order


def _block_counts(code: Sequence[Instruction], places: dict[int, int], block: Block) -> tuple[Counts, Counts]:
    low, high = [0, 0, 0], [0, 0, 0]
    for one in block.body:
        kind = one.name.split(".")[0]
        packed = 2 if kind.endswith("2") and kind[:-1] in FP32 else 1
        kind = kind.removesuffix("2") if packed == 2 else kind.removesuffix("32I")
        if kind not in FP32:
            continue
        runs = ordinary(code, places[one.address]) if one.predicate else True
        low[FP32.index(kind)] += packed if runs else 0
        high[FP32.index(kind)] += packed if runs is not False else 0
    return (low[0], low[1], low[2]), (high[0], high[1], high[2])


def _plus(one: Counts, other: Counts) -> Counts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _flops(one: Counts) -> int:
    return 2 * one[0] + one[1] + one[2]


def _per_thread(code: Sequence[Instruction]) -> int | None:
    """Elements of a thread: what is left of the tensor is compared with a block's elements before anything else."""
    for one in code:
        limit = re.search(r", (0x[0-9a-f]+)", one.operands) if one.name.startswith(("ISETP", "UISETP")) else None
        if limit is not None and (int(limit[1], 16) + 1) // THREADS in (4, 8, 16):
            return (int(limit[1], 16) + 1) // THREADS
    return None


def _half(one: Instruction) -> bool:
    """Arithmetic in half: not the moves of constants (all zero factors), and not HADD2.F32, a conversion to float."""
    if not one.name.startswith(("HADD2", "HMUL2", "HFMA2")) or one.name.startswith("HADD2.F32"):
        return False
    return not re.search(r"-?RZ, -?RZ|-RZ, RZ", one.operands)


def functions(cubin: Path) -> list[str]:
    """Names of the kernels in an ELF file for the GPU: its sections .text.NAME."""
    data = cubin.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    number, names = struct.unpack_from("<HH", data, 0x3C)
    sections = [struct.unpack_from("<IIQQ", data, table + 64 * place) for place in range(number)]
    (strings,) = struct.unpack_from("<Q", data, table + 64 * names + 24)
    words = (data[strings + section[0] : data.index(b"\0", strings + section[0])].decode() for section in sections)
    return [word.removeprefix(".text.") for word in words if word.startswith(".text.")]


def demangled(names: Sequence[str]) -> list[str]:
    done = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


def disassembled(tool: str, cubin: Path, names: Sequence[str]) -> Iterator[tuple[str, list[Instruction]]]:
    for start in range(0, len(names), 50):
        done = subprocess.run(
            [tool, "-sass", "-fun", ",".join(names[start : start + 50]), str(cubin)],
            text=True,
            capture_output=True,
            check=True,
        )
        for part in re.split(r"\n\s+Function : ", done.stdout)[1:]:
            lines = part.splitlines()
            yield lines[0].strip(), read(lines[1:])


@dataclass(frozen=True, slots=True)
class Found:
    functor: str
    counts: tuple[float, ...] | None
    """FFMA, FMUL, FADD for an element, and by how much of their FLOPs the values can change them (0.05 is 5 % up or down).

    None with a reason where no count holds for all ordinary values.
    """
    reason: str = ""


def functors(tool: str, folder: Path, pattern: str) -> Iterator[Found]:
    for cubin in sorted(folder.glob("*.cubin")):
        names = functions(cubin)
        wanted = {
            name: functor
            for name, plain in zip(names, demangled(names), strict=True)
            if KERNEL.search(plain) and (functor := functor_of(plain)) and wanted_functor(functor, pattern)
        }
        for name, code in disassembled(tool, cubin, list(wanted)) if wanted else ():
            foreach = wanted[name].startswith("foreach")
            yield judged(wanted[name], foreach_counts(code) if foreach else counts(code))


def wanted_functor(functor: str, pattern: str) -> bool:
    return bool(FLOATS.search(functor) and not OTHERS.search(functor) and re.search(pattern, functor))


def judged(functor: str, found: tuple[Counts, Counts, int, bool] | str) -> Found:
    if isinstance(found, str):
        return Found(functor, None, found)
    low, high, elements, half = found
    if half:
        return Found(functor, None, "arithmetic in half")
    spread = (_flops(high) - _flops(low)) / ((_flops(high) + _flops(low)) or 1)
    if spread > SPREAD:
        return Found(functor, None, f"{_flops(low) / elements:g} to {_flops(high) / elements:g} FLOP by the values")
    middle = ((one + other) / 2 / elements for one, other in zip(low, high, strict=True))
    return Found(functor, (*(round(value, 3) for value in middle), round(spread, 3)))


def find_tool(name: str) -> str:
    if found := shutil.which(name):
        return found
    for file in distribution("triton").files or ():
        if file.name == name:
            return str(file.locate())
    sys.exit(f"aten_counts: {name} is not on PATH and not in the triton wheel")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count instructions of PyTorch's elementwise kernels for an element.")
    parser.add_argument("--library", type=Path, help="libtorch_cuda.so; default: that of the installed torch")
    parser.add_argument("--torch", help="its version, for the table; default: that of the installed torch")
    parser.add_argument("--archs", nargs="+", default=ARCHS, help="compute capabilities without the point")
    parser.add_argument(
        "--cubins", type=Path, help="folder of unpacked cubins, a folder for each architecture; default: unpack"
    )
    parser.add_argument(
        "--functors", default="", help="only those that match this pattern; --write keeps the others' rows"
    )
    parser.add_argument("--open", action="store_true", help="also print the functors without a count, and why")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}, which perfctl reads")
    asked = parser.parse_args()
    library = asked.library or next(
        Path(str(file.locate())) for file in distribution("torch").files or () if file.name == "libtorch_cuda.so"
    )
    tool = find_tool("cuobjdump")
    table: dict[str, dict[str, tuple[float, ...] | None]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as scratch:
        for arch in asked.archs:
            folder = Path(asked.cubins or scratch) / arch
            if not folder.is_dir():
                folder.mkdir()
                subprocess.run(
                    [tool, "-xelf", f"sm_{arch}.cubin", str(library)], cwd=folder, check=True, stdout=subprocess.DEVNULL
                )
            for found in functors(tool, folder, asked.functors):
                table[found.functor][arch] = found.counts
                if asked.open and found.counts is None:
                    print(f"sm_{arch} {found.functor}: {found.reason}")
    rows = list(lines(table, asked.torch or version("torch")))
    print(f"{len(rows)} rows for {len({row[0] for row in rows})} of {len(table)} functors")
    if asked.write:
        if TABLE.is_file():
            with TABLE.open(newline="", encoding="utf-8") as file:
                rows.extend(tuple(row) for row in list(csv.reader(file))[1:] if not re.search(asked.functors, row[0]))
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("functor", "arch", "ffma", "fmul", "fadd", "spread", "source"))
            writer.writerows(sorted(rows, key=lambda row: [str(cell) for cell in row]))
    return 0


def lines(table: dict[str, dict[str, tuple[float, ...] | None]], torch: str) -> Iterator[tuple[object, ...]]:
    """A row for all architectures where they agree, else a row for each; none where one of them has no count."""
    for functor, by_arch in sorted(table.items()):
        if None in by_arch.values():
            continue
        if len(set(by_arch.values())) == 1:
            by_arch = {"": next(iter(by_arch.values()))}
        for arch, found in by_arch.items():
            yield functor, arch, *(f"{value:g}" for value in found or ()), f"torch {torch}"


if __name__ == "__main__":
    sys.exit(main())
