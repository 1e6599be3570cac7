"""A debugger for the emulated GPU that also goes back: from a wrong element or a hang to its cause."""

from emugpu.debug.debugger import Debugger, debug

__all__ = ["Debugger", "debug"]
