"""Small wrong programs, each with its right twin: what a GPU, compute-sanitizer and the checker say of them.

The folder ``programs`` holds the programs as data: each is a body of PTX with named places, what stands there in the
right program, and for each fault what stands there instead, with the section of the PTX ISA that it breaks.

    python -m conformance.faults check faults.json                       # the checker, without a GPU
    python -m conformance.faults gpu faults.json --launches 1000         # an H100, alone and under compute-sanitizer
    python -m conformance.faults table faults.json                       # what is in the file, in Markdown
    python -m conformance.faults write FOLDER                            # launch files of all programs

A machine with a GPU needs what `conformance` needs. Results are written as they come, and each part adds its own to the
file, so that the parts can be measured on different machines.
"""
