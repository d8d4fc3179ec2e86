"""``python -P -m perfctl.orchestrator.cli.secret_names FILE``: names of what looks like a secret, as a JSON list.

A process of its own, so that a large file is looked through beside its parsing. It ends when its stdin does: whoever
started it has ended then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from perfctl.parsers.secret_scan import names_in


def main() -> None:
    """Exit code 1 where nobody is left to be told."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.stdout.write(json.dumps(names_in(Path(sys.argv[1]))))
    sys.stdout.flush()


def _end_with_stdin() -> None:
    # Not through sys.stdin: its lock, held in a read, would be waited for when Python ends.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
