"""Formulas of the user's: FLOPs and bytes of one launch or range, as arithmetic over the parameters
of a run.

A formula is data. Of Python's syntax only the nodes below are read, and no value grows beyond
BITS_MAX, so that perfctl refuses 9**9**9 before it computes it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.records.possible import MOST_COUNT

BITS_MAX = 512
"""Of the numerator and the denominator of every value in a formula."""
LENGTH_MAX = 300
"""Characters of a formula."""
QUANTITIES = ("flops", "bytes")
EXAMPLE = "For example 'sgemm*: flops=2*N**3, bytes=3*4*N**2'"
_TERM = re.compile(rf"\s*({'|'.join(QUANTITIES)})\s*=")
_NEXT = re.compile(rf",(?=\s*(?:{'|'.join(QUANTITIES)})\s*=)")
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True, slots=True)
class FormulaTerm:
    """The formula of one quantity, as it was written."""

    text: str
    column: int
    """Of its first character in ``UserFormula.text``, from 0."""


@dataclass(frozen=True, slots=True)
class UserFormula:
    """What the user expects of the kernels or ranges that match a pattern."""

    text: str
    """As it was written."""
    pattern: str
    """Glob of names of kernels or NVTX ranges."""
    terms: Mapping[str, FormulaTerm]
    """By quantity: one of QUANTITIES."""
    source: str = "option"
    """option or file."""

    def raise_if_unknown_parameter(self, allowed_parameters: Sequence[str]) -> None:
        """Raise UsageError for a parameter that is not one of ``allowed_parameters``."""
        for term in self.terms.values():
            for node in ast.walk(_parse_term(self, term)):
                if isinstance(node, ast.Name) and node.id not in (*allowed_parameters, *_FUNCTIONS):
                    raise _make_unknown_parameter_error(self, term, node, allowed_parameters)

    def evaluate_and_round(self, quantity: str, numbers: Mapping[str, Fraction]) -> int | None:
        """Return the quantity with these values of parameters, rounded; None if the formula does
        not have it. Raises UsageError."""
        term = self.terms.get(quantity)
        if term is None:
            return None
        value = _evaluate_node(self, term, _parse_term(self, term), numbers)
        if not 0 <= value <= MOST_COUNT:
            reason = f"{quantity} is {float(value):g}, not between 0 and {MOST_COUNT:g}"
            raise _make_formula_error(self, term.column, reason, None)
        return round(value)


def parse_user_formula(text: str, source: str = "option") -> UserFormula:
    """Return 'sgemm*: flops=2*N**3, bytes=3*4*N**2' as a formula. Raises UsageError that names the
    column of the mistake."""
    head = re.match(rf"\s*(.+?)\s*:(?={_TERM.pattern})", text)
    if head is None:
        other = re.match(r".+:\s*(\w+)\s*=", text)
        reason = f": '{other[1]}' is not {' or '.join(QUANTITIES)}" if other else ""
        raise UsageError(f"invalid value '{text[:80]}' for `expect`{reason}", EXAMPLE)
    formula = UserFormula(text, head[1], {}, source)
    terms: dict[str, FormulaTerm] = {}
    start = head.end()
    for piece in _NEXT.split(text[start:]):
        match = _TERM.match(piece)
        assert match is not None
        if match[1] in terms:
            raise _make_formula_error(formula, start, f"{match[1]} is given twice")
        expression = piece[match.end() :]
        lead = len(expression) - len(expression.lstrip())
        terms[match[1]] = FormulaTerm(expression.strip(), start + match.end() + lead)
        start += len(piece) + 1
    formula = UserFormula(text, head[1], terms, source)
    for term in terms.values():
        _parse_term(formula, term)
    return formula


def read_formula_file(path: Path) -> list[UserFormula]:
    """Return the formulas of a TOML file: ``[[expect]]`` tables with ``pattern``, ``flops`` and
    ``bytes``. Raises UsageError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["expect"]
        return [
            parse_user_formula(
                f"{table['pattern']}: "
                + ", ".join(f"{name}={table[name]}" for name in QUANTITIES if name in table),
                "file",
            )
            for table in tables
        ]
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (KeyError, TypeError, ValueError) as error:
        reason = f"is no list of formulas ({type(error).__name__}: {error})"
    remedy = 'Write [[expect]], pattern = "sgemm*", flops = "2*N**3"'
    raise UsageError(f"`expect` {path}: {reason}", remedy)


def find_gemm_sizes(formula: str, numbers: Mapping[str, Fraction]) -> tuple[int, int, int] | None:
    """Return (m, n, k) of a formula that is one product, 2*M*N*K or 2*N**3; None for any other, and
    where the names do not tell which factor is which."""
    term = FormulaTerm(formula, 0)
    try:
        pending: list[ast.expr] = [_parse_term(UserFormula(formula, "", {"flops": term}), term)]
    except UsageError:  # the database's user wrote it in words
        return None
    factors: list[tuple[str, Fraction]] = []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            pending += [node.left, node.right]
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and isinstance(node.right, ast.Constant)
            and node.right.value in (2, 3)
        ):
            pending += [node.left] * (3 if node.right.value == 3 else 2)
        elif isinstance(node, ast.Name) and node.id in numbers:
            factors.append((node.id.lower(), numbers[node.id]))
        elif isinstance(node, ast.Constant):
            factors.append(("", Fraction(str(node.value))))
        else:
            return None
    sizes = [(name, size) for name, size in factors if name or size != 2]
    if len(factors) != 4 or len(sizes) != 3:
        return None
    by_name = dict(sizes)
    if by_name.keys() == {"m", "n", "k"}:
        m, n, k = (int(by_name[name]) for name in "mnk")
        return m, n, k
    distinct = {size for _, size in sizes}
    return (int(sizes[0][1]),) * 3 if len(distinct) == 1 else None


def _make_formula_error(
    formula: UserFormula, column: int, reason: str, remedy: str | None = EXAMPLE
) -> UsageError:
    location = f"`expect` '{formula.text[:200]}', column {column + 1}"
    return UsageError(f"{location}: {reason}", remedy)


def _make_unknown_parameter_error(
    formula: UserFormula, term: FormulaTerm, node: ast.Name, names: Collection[str]
) -> UsageError:
    reason = f"no parameter '{node.id}' with a number (known: {', '.join(names) or 'none'})"
    return _make_formula_error(formula, _find_column(term, node), reason, None)


def _parse_term(formula: UserFormula, term: FormulaTerm) -> ast.expr:
    """Return the syntax of a term, whose columns begin at 1. Raises UsageError for what is no
    arithmetic."""
    if len(formula.text) > LENGTH_MAX or not term.text.isascii():
        reason = f"a formula has up to {LENGTH_MAX} ASCII characters"
        raise _make_formula_error(formula, term.column, reason)
    try:
        tree = ast.parse(f"({term.text})", mode="eval").body
    except SyntaxError as error:
        column = term.column + max((error.offset or 2) - 2, 0)
        raise _make_formula_error(formula, column, f"no arithmetic ({error.msg})") from None
    except (ValueError, RecursionError, MemoryError):
        raise _make_formula_error(formula, term.column, "no arithmetic") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not _is_allowed_arithmetic(node):
            reason = f"only numbers, parameters, + - * / // % ** and {', '.join(_FUNCTIONS)}"
            raise _make_formula_error(formula, _find_column(term, node), f"{reason} are allowed")
    return tree


def _is_allowed_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) is int or (isinstance(value, float) and math.isfinite(value))
        case ast.UnaryOp(op=sign):
            return type(sign) in _UNARY
        case ast.BinOp(op=operation):
            return type(operation) in _BINARY
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS
    return isinstance(node, ast.Name)


def _find_column(term: FormulaTerm, node: ast.expr) -> int:
    return term.column + max(node.col_offset - 1, 0)


def _evaluate_node(
    formula: UserFormula, term: FormulaTerm, node: ast.expr, numbers: Mapping[str, Fraction]
) -> Fraction:
    """Return the value of checked syntax: exact, but for functions and fractional powers. Raises
    UsageError."""
    evaluate = partial(_evaluate_node, formula, term, numbers=numbers)
    compute: Callable[..., Any]
    arguments: list[Any]
    match node:
        case ast.Constant(value=value):
            compute, arguments = Fraction, [value]
        case ast.Name(id=name):
            if name not in numbers:
                raise _make_unknown_parameter_error(formula, term, node, numbers)
            return numbers[name]
        case ast.UnaryOp(op=sign, operand=operand):
            compute, arguments = _UNARY[type(sign)], [evaluate(operand)]
        case ast.BinOp(left=left, op=operation, right=right):
            compute, arguments = _BINARY[type(operation)], [evaluate(left), evaluate(right)]
        case ast.Call(func=ast.Name(id=name), args=values):
            compute, arguments = _FUNCTIONS[name], list(map(evaluate, values))
    try:
        result = Fraction(compute(*arguments))
    except ZeroDivisionError:
        reason = "division by zero"
    except (ArithmeticError, TypeError, ValueError) as error:
        reason = str(error)
    else:
        if _count_bits(result) <= BITS_MAX:
            return result
        reason = "the value is too large"
    raise _make_formula_error(formula, _find_column(term, node), reason, None)


def _count_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _raise_to_power(base: Fraction, exponent: Fraction) -> Any:
    if abs(exponent) * max(_count_bits(base) - 1, 1) > BITS_MAX:
        raise OverflowError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the root of a negative number")
    return result


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _raise_to_power,
}
