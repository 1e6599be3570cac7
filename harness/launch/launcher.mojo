"""Launches a prepared kernel: one call of a C function from Python, which reads a table of 64-bit words that
`harness.launch.launcher` writes and never changes.

    words 0 to 3      kernel, context, count of patches, count of parameters
    words 4 to 10     CUlaunchConfig (CUDA Driver API, cuLaunchKernelEx); its word 4 is the stream
    then the patches  4 words each: the word of the parameters to be replaced, the number of the value that replaces it,
                      what is added to the value, and the bits that must be 0 in the value, with bit 63 for a tensor map
    then the places   of each parameter, as a number of words from the first
    then the words of the parameters
"""
from std.ffi import external_call
from std.memory import Pointer, unsafe_stack_allocation

comptime Words = Pointer[UInt64, MutUntrackedOrigin]
comptime HEADER = 11
comptime MOST_PARAMETERS = 32
comptime MOST_WORDS = 128
"""Five tensor maps of 16 words each and twelve numbers are 92."""
comptime IS_MAP = UInt64(1) << 63
comptime MISALIGNED = 10000
"""Added to the number of a value, the answer if its address is not a multiple of what it must be. No error of the driver
is as large."""


@export
def launch(call: Words) abi("C") -> Int32:
    """`call` has the address of the table, the stream, and then the values: addresses, and floats in the lower halves of
    words. Returns 0, the error of a function of the driver, or MISALIGNED and the number of a value."""
    var context = Words(unsafe_from_address=Int(call[]))[unsafe_offset=1]
    var before = UInt64(0)
    var code = external_call["cuCtxGetCurrent", Int32](Pointer(to=before))
    if code != 0:
        return code
    if before == context:
        return launch_in_context(call)
    code = external_call["cuCtxSetCurrent", Int32](context)
    if code != 0:
        return code
    code = launch_in_context(call)
    _ = external_call["cuCtxSetCurrent", Int32](before)
    return code


def launch_in_context(call: Words) -> Int32:
    """Works as `launch`, in the kernel's context: the thread may have another, or none."""
    var table = Words(unsafe_from_address=Int(call[]))
    var stream = call[unsafe_offset=1]
    var values = call.unsafe_offset(2)
    var patches = Int(table[unsafe_offset=2])
    var count = Int(table[unsafe_offset=3])
    var places = HEADER + 4 * patches
    var words = places + count
    var block = unsafe_stack_allocation[MOST_WORDS, UInt64, alignment=64]()
    var parameters = unsafe_stack_allocation[MOST_PARAMETERS, UInt64]()
    var config = unsafe_stack_allocation[7, UInt64]()
    for i in range(7):
        config[unsafe_offset=i] = table[unsafe_offset=4 + i]
    config[unsafe_offset=4] = stream
    for i in range(MOST_WORDS):
        block[unsafe_offset=i] = table[unsafe_offset=words + i]
    for i in range(count):
        parameters[unsafe_offset=i] = UInt64(Int(block.unsafe_offset(Int(table[unsafe_offset=places + i]))))
    for i in range(patches):
        var patch = table.unsafe_offset(HEADER + 4 * i)
        var number = Int(patch[unsafe_offset=1])
        var value = values[unsafe_offset=number]
        var kind = patch[unsafe_offset=3]
        if value & kind & ~IS_MAP != 0:
            return Int32(MISALIGNED + number)
        value += patch[unsafe_offset=2]
        var word = block.unsafe_offset(Int(patch[unsafe_offset=0]))
        if kind & IS_MAP == 0:
            word[] = value
            continue
        var code = external_call["cuTensorMapReplaceAddress", Int32](word, value)
        if code != 0:
            return code
    return external_call["cuLaunchKernelEx", Int32](config, table[], parameters, UInt64(0))
