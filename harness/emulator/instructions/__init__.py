"""What each instruction does: one table, filled by a file per family. Importing this package fills it."""

from harness.emulator.instructions import (
    arithmetic,
    barrier,
    bulk,
    compare,
    control,
    fence,
    integer,
    launch_control,
    load_store,
    matrix,
    mbarrier,
    move,
    registers,
    tensor_core,
    tensor_memory,
    warp,
    wgmma,
)

FAMILIES = (
    arithmetic,
    barrier,
    bulk,
    compare,
    control,
    fence,
    integer,
    launch_control,
    load_store,
    matrix,
    mbarrier,
    move,
    registers,
    tensor_core,
    tensor_memory,
    warp,
    wgmma,
)
"""The modules that make up the table."""
