"""Files of scripts/, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def load(path: str) -> ModuleType:
    """Return the module scripts/``path``."""
    file = Path(__file__).resolve().parents[2] / "scripts" / path
    spec = importlib.util.spec_from_file_location(f"perfctl_scripts_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
