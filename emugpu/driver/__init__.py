"""An emulated CUDA driver: programs that use the driver or the runtime API run on the emulated GPU, unmodified.

    program -> libcuda.so.1 (shim/: C, made from functions.txt) -> a private socket -> server.py -> the emulator
                     \\____________ device memory: one file, mapped by both ____________/

``functions.txt`` is the API as one table, and `api` reads it. `library` compiles the shared libraries from the table
and the C in shim/ (they include a CUDA runtime and NVML). `server` starts the program and serves its processes,
`session` handles one call. `state` holds the state of each process of the program. The files ``*_calls.py`` handle the
calls, and `recording` writes launches to disk.
"""
