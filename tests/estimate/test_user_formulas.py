"""Formulas of the user's: arithmetic over parameters and nothing else."""

from fractions import Fraction

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.user_formulas import (
    find_gemm_sizes,
    parse_user_formula,
    read_formula_file,
)

NUMBERS = {"M": Fraction(3), "N": Fraction(20480), "K": Fraction(7)}


@pytest.mark.parametrize(
    ("text", "pattern", "flops", "size"),
    [
        ("sgemm*: flops=2*N**3, bytes=3*4*N**2", "sgemm*", 2 * 20480**3, 12 * 20480**2),
        ("void ns::mm<float>*: bytes = min(N, 3)", "void ns::mm<float>*", None, 3),
        ("x: flops=ceil(N/3)*(M - -1)", "x", 6827 * 4, None),
        ("x: flops=N**0.5 + N//3 + N%3 + +sqrt(9)", "x", round(20480**0.5 + 6826 + 2 + 3), None),
        ("x: flops=max(N, M)*log2(8)/3", "x", 20480, None),
        ("x: flops=2.5e3", "x", 2500, None),
    ],
)
def test_a_formula_gives_flops_and_bytes(text, pattern, flops, size):
    formula = parse_user_formula(text)
    values = [formula.evaluate_and_round(name, NUMBERS) for name in ("flops", "bytes")]
    assert [formula.pattern, *values] == [pattern, flops, size]


@pytest.mark.parametrize(
    ("expression", "column", "reason"),
    [
        ("9**9**9", 1, "the power is too large"),
        ("(-1)**(2**40)", 1, "the power is too large"),
        ("2*L", 3, "no parameter 'L' with a number (known: M, N, K)"),
        ("2*", 3, "no arithmetic"),
        ("2*N $ 3", 5, "no arithmetic"),
        ("2*(N", 1, "no arithmetic"),
        ("", 1, "only numbers"),
        ('__import__("os")', 1, "only numbers"),
        ("2*N.real", 3, "only numbers"),
        ("(lambda: 1)()", 1, "only numbers"),
        ("N if N else 1", 1, "only numbers"),
        ("[1]*9", 1, "only numbers"),
        ("True", 1, "only numbers"),
        ("2*N,3", 1, "only numbers"),
        ("N^3", 1, "only numbers"),
        ("min(1, key=2)", 1, "only numbers"),
        ("1e999", 1, "only numbers"),
        ("2+1/0", 3, "division by zero"),
        ("(-8)**0.5", 1, "the root of a negative number"),
        ("log2(0)", 1, "math domain error"),
        ("min()", 1, "min expected"),
        ("-N", 1, "flops is -20480, not between"),
        ("10**40", 1, "flops is 1e+40, not between"),
        ("2*ñ", 1, "ASCII"),
        (f"{'-' * 300}1", 1, "a formula has up to 300"),
        (f"{'(' * 250}1", 200, "no arithmetic"),
    ],
)
def test_a_mistake_is_named_with_its_column(expression, column, reason):
    with pytest.raises(UsageError) as refused:
        parse_user_formula(f"x: flops={expression}").evaluate_and_round("flops", NUMBERS)
    assert f"column {len('x: flops=') + column}: " in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["x", "x: 2*N", "flops=2", ": flops=2", "x: flop=2"])
def test_a_text_without_pattern_or_quantity_is_refused(text):
    with pytest.raises(UsageError, match="For example 'sgemm"):
        parse_user_formula(text)


def test_an_unknown_quantity_is_named_beside_the_allowed_ones():
    with pytest.raises(UsageError, match="`expect`: 'flopz' is not flops or bytes"):
        parse_user_formula("x: flopz=2")


@pytest.mark.parametrize(
    ("expression", "sizes"),
    [
        ("2*M*N*K", (3, 20480, 7)),
        ("K*(M*N)*2", (3, 20480, 7)),
        ("2*N**3", (20480,) * 3),
        ("2*N*N*N", (20480,) * 3),
        ("2*20480**3", (20480,) * 3),
        ("2*N**2*K", None),
        ("2*N**3 + N**2", None),
        ("4*N**2", None),
        ("2*N", None),
    ],
)
def test_a_product_is_recognised_if_its_factors_cannot_be_mixed_up(expression, sizes):
    assert find_gemm_sizes(expression, NUMBERS) == sizes


def test_formulas_of_a_file(tmp_path):
    path = tmp_path / "expect.toml"  # type: ignore[operator]
    path.write_text('[[expect]]\npattern = "a*"\nflops = "2*N"\nbytes = "N"\n')
    (formula,) = read_formula_file(path)
    assert (formula.pattern, formula.source) == ("a*", "file")
    assert formula.evaluate_and_round("bytes", NUMBERS) == 20480
    path.write_text("[[expect]]\nflops = 1\n")
    with pytest.raises(UsageError, match="KeyError: 'pattern'"):
        read_formula_file(path)
