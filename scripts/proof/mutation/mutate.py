"""Do the tests notice wrong code? Runs a random sample of mutants of the parsers and of the rooms that compute.

    python scripts/proof/mutation/mutate.py [--sample 300] [--seed 0] [--work FOLDER] [--only parsers/common/numbers.py ...]
    python scripts/proof/mutation/mutate.py --sample 40 --work NEW --only parsers/common/numbers.py \
        --tests tests/parsers/common/test_units.py

cosmic-ray (extra ``mutation``) makes the mutants and runs them in a copy of the checkout. For each mutant, the tests run
that, by coverage, execute the mutated lines; a mutant on lines that no test executes has survived. FOLDER keeps the
copy, the coverage and the session, so that a run can be stopped and continued. Prints the share killed with its 95 %
interval and every survivor as a diff. Exits 1 below 85 %.

Left out are mutants that change nothing (operators inside annotations, ``|`` between types, ``slots`` and ``frozen`` of
dataclasses) and cosmic-ray's experimental ones; the same share of all the others is drawn from every file.
"""  # noqa: E501

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
from math import sqrt
from pathlib import Path

from copied import CODE, Copy
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parents[3]
REACH = 0.85
TIMEOUT_S = 600
_SAME = re.compile(
    r"core/(Variable.*"  # experimental
    r"|ReplaceBinaryOperator_BitOr_.*"  # a | b is between types nearly everywhere
    # not a realistic mistake
    r"|ReplaceBinaryOperator_\w+_(BitOr|BitAnd|BitXor|LShift|RShift|Pow|Mod)"
    # "is None" against "== None": the same
    r"|ReplaceComparisonOperator_(Is|IsNot)_(Eq|NotEq|Lt|LtE|Gt|GtE)"
    r"|ReplaceComparisonOperator_\w+_(Is|IsNot)"
    r"|ReplaceUnaryOperator_.*Invert)$"
)


def main() -> int:
    """Exit code: 0 when enough were killed, 1 when not."""
    arguments = _arguments()
    copy = Copy(ROOT, arguments.work)
    copy.make(has_coverage=not arguments.tests)
    database = _session(copy, arguments)
    subprocess.run(
        [_tool("cosmic-ray"), "exec", "cosmic.toml", "session.sqlite"],
        cwd=copy.folder,
        env=copy.environment(),
        check=True,
    )
    return _judge(database)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=300, help="mutants to run (300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "mutation", help="folder that is kept"
    )
    parser.add_argument(
        "--tests", nargs="*", default=[], help="test files for every mutant; default: by coverage"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="files to take mutants of; default: all"
    )
    return parser.parse_args()


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _session(copy: Copy, arguments: argparse.Namespace) -> WorkDB:
    """The session's database, made with its sample where it is not there yet."""
    path = copy.folder / "session.sqlite"
    new = not path.exists()
    if new:
        paths = ", ".join(f'"{name}"' for name in arguments.only or CODE)
        runner = Path(__file__).with_name("covering.py")
        tests = "".join(f" '{name}'" for name in arguments.tests)
        (copy.folder / "cosmic.toml").write_text(
            f"[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = {TIMEOUT_S}.0\n"
            "excluded-modules = []\n"
            f"test-command = \"'{sys.executable}' '{runner}'{tests}\"\n[cosmic-ray.distributor]\n"
            'name = "local"\n',
            encoding="utf-8",
        )
        subprocess.run(
            [_tool("cosmic-ray"), "init", "cosmic.toml", path.name],
            cwd=copy.folder,
            env=copy.environment(),
            check=True,
        )
    database = WorkDB(path, WorkDB.Mode.open)
    if new:
        _draw(database, arguments)
    return database


def _draw(database: WorkDB, arguments: argparse.Namespace) -> None:
    """Leaves ``--sample`` mutants to be run and marks all others as skipped."""
    items = sorted(database.pending_work_items, key=_where)
    taken = [
        item
        for item in items
        if not _SAME.match(item.mutations[0].operator_name) and not _of_dataclass(item)
    ]
    if arguments.only:
        taken = [item for item in taken if str(item.mutations[0].module_path) in arguments.only]
    # no secret
    drawn = random.Random(arguments.seed).sample(taken, min(arguments.sample, len(taken)))  # noqa: S311
    chosen = {item.job_id for item in drawn}
    print(
        f"{len(items)} mutants, {len(taken)} of them change something, {len(chosen)} drawn",
        flush=True,
    )
    skipped = WorkResult(output="not drawn", worker_outcome=WorkerOutcome.SKIPPED)
    database.set_multiple_results(
        [item.job_id for item in items if item.job_id not in chosen], skipped
    )


def _of_dataclass(item: WorkItem) -> bool:
    mutation = item.mutations[0]
    lines = (ROOT / mutation.module_path).read_text(encoding="utf-8").splitlines()
    return lines[mutation.start_pos[0] - 1].startswith("@dataclass(")


def _where(item: WorkItem) -> tuple[object, ...]:
    mutation = item.mutations[0]
    return (
        str(mutation.module_path),
        mutation.start_pos,
        mutation.operator_name,
        mutation.occurrence,
    )


def _judge(database: WorkDB) -> int:
    ran = [
        result for _, result in database.results if result.worker_outcome != WorkerOutcome.SKIPPED
    ]
    survived = [result for result in ran if result.test_outcome == TestOutcome.SURVIVED]
    for result in survived:
        print((result.diff or "").strip(), end="\n\n")
    killed = 1 - len(survived) / len(ran)
    half = 1.96 * sqrt(killed * (1 - killed) / len(ran))
    print(
        f"{len(ran)} mutants, {len(survived)} survived: {killed:.1%} killed (95 % interval "
        f"+-{half:.1%}); reach {REACH:.0%}"
    )
    return int(killed < REACH)


if __name__ == "__main__":
    sys.exit(main())
