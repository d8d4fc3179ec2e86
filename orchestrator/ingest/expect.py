"""What the user says of stored runs: values of parameters, and formulas, which are worked out for
each run. Both can be changed without reading a report again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from perfctl.orchestrator.counts.kernels.names import (
    extract_function_name,
    is_kernel_name_matching_glob,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops.registered import KERNELS, compute_registered_kernel_flops
from perfctl.orchestrator.estimate.user_formulas import (
    QUANTITIES,
    UserFormula,
    parse_user_formula,
    read_formula_file,
)
from perfctl.orchestrator.store import database, read, write
from perfctl.records.run import Expectation, Parameter, make_parameter

NAMES_MAX = 5
"""Kernels that a warning lists."""
_NAMES = """
SELECT name, short_name FROM kernel WHERE run_id = :run GROUP BY name
UNION ALL SELECT name, NULL FROM range WHERE run_id = :run GROUP BY name
"""


def parse_formulas_and_formula_files(texts: Iterable[str]) -> list[UserFormula]:
    """Return formulas, and those of the TOML files among ``texts``. Raises UsageError."""
    formulas = []
    for text in texts:
        formulas += (
            read_formula_file(Path(text)) if text.endswith(".toml") else [parse_user_formula(text)]
        )
    patterns = [formula.pattern for formula in formulas]
    if doubles := {pattern for pattern in patterns if patterns.count(pattern) > 1}:
        raise UsageError(f"`expect`: '{min(doubles)}' has several formulas", "Give it one")
    return formulas


def parse_parameters(texts: Iterable[str]) -> list[Parameter]:
    """Return "N=20480" as a parameter. Raises UsageError."""
    parameters = []
    for text in texts:
        name, is_set, value = text.partition("=")
        if not (name.isidentifier() and is_set and value.strip()):
            raise UsageError(
                f"invalid value '{text}' for `parameters`",
                "Use a name and a value, such as N=20480",
            )
        if name == "batch":
            raise UsageError("`parameters` cannot set the batch size", "Use `batch`")
        parameters.append(make_parameter(name, value))
    return parameters


def store_expectations_and_yield_problems(
    store: Path,
    run_ids: Iterable[int],
    formulas: Sequence[UserFormula],
    parameters: Sequence[Parameter] = (),
) -> Iterator[str]:
    """Write the parameters and what the formulas give into stored runs, in place of the formulas
    that they had; without ``formulas``, what these give with the new parameters. Yield what a run
    lacks for a formula. Raises UsageError if it is the only run, which stays as it is.
    """
    run_ids = list(dict.fromkeys(run_ids))
    with database.open_store_for_writing(store) as connection:
        for run_id in run_ids:
            recorded = read.read_run_table_rows(connection, Parameter, "parameter", run_id)
            merged = {item.name: item for item in (*recorded, *parameters)}
            numbers = {
                item.name: Fraction(item.value if item.value.isdecimal() else item.number)
                for item in merged.values()
                if item.number is not None
            }
            names = connection.execute(_NAMES, {"run": run_id}).fetchall()
            stored = read.read_run_table_rows(connection, Expectation, "expectation", run_id)
            of_run = formulas or [
                parse_user_formula(f"{item.pattern}: {item.formula}", item.source)
                for item in stored
                if item.formula is not None
            ]
            patterns = {formula.pattern for formula in of_run}
            # a registered formula may be of another program
            registered = [
                name for name in KERNELS.keys() - patterns if _has_matching_name(names, name)
            ]
            expected = []
            all_formulas: list[UserFormula | str] = [*of_run, *registered]
            for formula in all_formulas:
                try:
                    expected.append(_evaluate_formula(formula, numbers))
                except UsageError as error:
                    if len(run_ids) == 1:
                        raise
                    yield f"run {run_id}: {error}"
            write.replace_parameters_and_expectations(
                connection, run_id, tuple(merged.values()), expected
            )
            query = "SELECT EXISTS (SELECT 1 FROM kernel WHERE run_id = ?)"
            (has_kernels,) = connection.execute(query, (run_id,)).fetchone()
            for formula_ in expected:
                if not _has_matching_name(names, formula_.pattern):
                    listed = list(dict.fromkeys(extract_function_name(name) for name, _ in names))[
                        :NAMES_MAX
                    ]
                    has = f" (the report has {', '.join(listed)})" if listed else ""
                    yield f"run {run_id}: no kernel or range matches '{formula_.pattern}'{has}"
                elif not has_kernels:
                    yield f"run {run_id}: '{formula_.pattern}' matches ranges without kernels"


def _evaluate_formula(formula: UserFormula | str, numbers: Mapping[str, Fraction]) -> Expectation:
    if isinstance(formula, str):
        return Expectation(
            formula, compute_registered_kernel_flops(formula, numbers), None, None, "registered"
        )
    flops, size = (formula.evaluate_and_round(name, numbers) for name in QUANTITIES)
    terms = ", ".join(f"{name}={term.text}" for name, term in formula.terms.items())
    return Expectation(formula.pattern, flops, size, terms, formula.source)


def _has_matching_name(names: Iterable[tuple[str, str | None]], pattern: str) -> bool:
    return any(is_kernel_name_matching_glob(pattern, *name_pair) for name_pair in names)
