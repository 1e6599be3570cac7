"""Anyone's PTX: what a file holds, how it is launched, and whether what came out is right; behind ``emugpu``.

Not to be confused with `emugpu.emulator.ptx`, the parser inside the emulator, which knows the text of PTX and nothing
of launches. This package stands on top of the emulator: launch files, buffers, expectations, records. Everything here
is plain data and functions; the command line is in `emugpu.cli`.
"""
