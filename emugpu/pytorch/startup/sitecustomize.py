"""Python imports this when it starts under ``emugpu exec``, which puts this folder on PYTHONPATH.

It prepares `emugpu.pytorch`, and then imports the sitecustomize that Python has without this one.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

try:
    from emugpu.pytorch.importing import activate_when_imported
except ImportError:
    pass  # this Python has no emugpu, so its PyTorch has no GPU
else:
    activate_when_imported()

_others = [path for path in sys.path if os.path.abspath(path) != _HERE]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(importlib.util.module_from_spec(_next))
