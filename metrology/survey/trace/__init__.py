"""When each warp of a kernel waited, loaded, multiplied and stored: written down by the kernel itself.

`instrument` adds the writing to a kernel's PTX: what is run otherwise is the compiler's, untouched. `record` runs the
result on a GPU, and `harness.timing.measured` makes a timeline of what was written.
"""
