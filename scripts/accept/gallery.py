"""Pages of the recordings, for the documentation's gallery:
``python scripts/accept/gallery.py OUT``

``make docs`` calls it as a hook of mkdocs, so that the site has the pages and the repository has
not. docs/gallery.md names them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "cpu": ("tests/data/recorded-cpu/torch", "tests/data/recorded-cpu/nsys"),
    "v100-study": ("examples/mnist_v100_study",),
    "inference": ("tests/data/inference-reports",),
    "trace": ("tests/data/kineto-synthetic/trace.json",),
}
"""Name of the page -> what is ingested for it."""


def make(out: Path) -> list[Path]:
    """Write OUT/NAME.html of each."""
    from perfctl import ingest
    from perfctl.orchestrator.commands.report import report

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, paths in PAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "perfctl.db"
            ingest([ROOT / path for path in paths], store, jobs=1)
            written.append(report(store, out / f"{name}.html").path)
    return written


def on_post_build(config: Any, **_: Any) -> None:
    """mkdocs has written the site."""
    make(Path(config["site_dir"]) / "gallery")


if __name__ == "__main__":
    for page in make(Path(sys.argv[1])):
        print(page)
