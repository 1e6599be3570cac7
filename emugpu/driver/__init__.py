"""An emulated CUDA driver: programs that use the driver or the runtime API run on the emulated GPU, unmodified.

    program -> libcuda.so.1 (shim/: C, made from functions.txt) -> a private socket -> server.py -> the emulator
                     \\____________ device memory: one file, mapped by both ____________/

``functions.txt`` is the API as one table, `api` reads it. `library` makes the shared libraries of it and of the C in
shim/ (also a CUDA runtime and NVML), `server` starts the program and answers what they ask, `session` one call. `state`
is what is kept for each process of the program; the files that handle calls are ``*_calls.py``, `recording` keeps
launches.
"""
