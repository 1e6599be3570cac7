"""Small kernels that ask a GPU, and the emulator, how an instruction behaves.

A probe is PTX with its inputs and an interpretation of what it writes. The same probe runs on a real GPU through
the CUDA driver and on the emulated one; what a GPU answered is kept in tests/data/hardware, and a test holds the
emulator to it.

    python -m conformance                                        # on the emulator
    python -m conformance --device gpu --json answers.json       # on a GPU of compute capability 9.0, 10.0 or 10.3
    python -m conformance --group blackwell                      # only what Hopper cannot answer

A machine with a GPU needs the folders conformance and emugpu, NumPy, ml_dtypes, click, zstandard, and no CUDA toolkit.

`conformance.faults` measures what a GPU and compute-sanitizer show of small wrong programs.

Two more ask a GPU's driver:

    python -m conformance.tensor_map_encoding maps.json        # the 128 bytes of tensor maps, and what is refused
    python -m conformance.device_facts facts.json                # device attributes, limits, addresses
"""
