"""The process that traces models for ``perfctl calculator``; ``traced_models.py`` starts it::

    python -P -m perfctl.orchestrator.actions.predict.tracer

It gets lists of names on stdin, as lines of JSON, and answers each name with a line: its model or
what the problem was. It ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys

from perfctl.orchestrator.actions.estimate import without_driver_warning
from perfctl.orchestrator.actions.predict.traced_models import model_record, traced
from perfctl.orchestrator.report.calculator import Model


def main() -> None:
    """The process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    with answers, without_driver_warning():
        for line in sys.stdin:
            for name in json.loads(line):
                found = traced(f"torchvision:{name}")
                record = model_record(found) if isinstance(found, Model) else None
                problem = found if isinstance(found, str) else None
                print(json.dumps({"model": record, "problem": problem}), file=answers, flush=True)


if __name__ == "__main__":
    main()
