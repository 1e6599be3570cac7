"""Anyone's PTX: how it is launched, and whether its results are right and its synchronisation is sound.

Do not confuse it with `emugpu.emulator.ptx`, the parser inside the emulator, which reads PTX and knows nothing of
launches. This package is built on the emulator and the checker: launch files, buffers, expectations, verdicts. It holds
plain data and functions; commands are elsewhere.
"""
