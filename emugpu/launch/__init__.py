"""Launches of any PTX: launch files, buffers, expectations, and verdicts on results and synchronisation.

`emugpu.emulator.ptx` is another package: the emulator's parser, which knows nothing of launches. This package is
built on the emulator and the checker. It has only plain data and functions; the commands are in `emugpu.cli`.
"""
