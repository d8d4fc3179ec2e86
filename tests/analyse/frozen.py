"""Whether the records of a module can be changed once they are made."""

from __future__ import annotations

from dataclasses import is_dataclass
from types import ModuleType


def changeable(module: ModuleType) -> list[str]:
    """Names of the module's records that are not frozen, or take attributes that they do not declare."""
    return [
        name
        for name, item in vars(module).items()
        if isinstance(item, type) and item.__module__ == module.__name__ and is_dataclass(item)
        if not (item.__dataclass_params__.frozen and hasattr(item, "__slots__"))  # type: ignore[attr-defined]
    ]
