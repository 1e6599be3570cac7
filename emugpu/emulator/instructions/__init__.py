"""What each instruction does: one table, filled by a file per family. Importing this package fills it."""

import importlib
import pkgutil

FAMILIES = tuple(importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
"""The modules that make up the table: every file beside this one."""
