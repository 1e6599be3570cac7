"""The instructions: one table, filled by one file per family. Importing this package fills it."""

import importlib
import pkgutil

FAMILIES = tuple(importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
"""The modules that fill the table: every file in this folder."""
