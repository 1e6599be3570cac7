"""PTX instructions that the library does not offer in the form that a kernel needs.

Shared memory addresses have 32 bits; bits 24 and up of a CTA's own addresses hold its rank in the cluster. Convergent
instructions (barriers, `elect.sync`, shuffles) use the library instead, because the compiler may duplicate inline
assembly into both sides of a branch. Other files wrap TMA copies (tma.mojo), conversions (pack.mojo) and mbarriers
(pipeline.mojo)."""
from std.memory import bitcast
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

comptime Registers[count: Int] = _RegisterPackType[*TypeList.splat[count, Float32]()]
"""The result of an instruction with many output registers. Read it as `r[i]` with a compile-time i."""


# ---- operand text --------------------------------------------------------------------------------------------------
def repeat(constraint: StaticString, count: Int) -> String:
    """Returns the constraint `count` times, each followed by a comma."""
    var text = String()
    for _ in range(count):
        text += constraint
        text += ","
    return text


def operands(first: Int, count: Int) -> String:
    """Returns a vector operand of `count` registers, `{$first, ...}`."""
    var text = String("{")
    for i in range(count):
        if i > 0:
            text += ", "
        text += "$"
        text += String(first + i)
    text += "}"
    return text


# ---- shared memory -------------------------------------------------------------------------------------------------
@inline(.always)
def load_shared(address: UInt32) -> UInt32:
    """Loads 4 bytes from shared memory."""
    return inlined_assembly["ld.shared.b32 $0, [$1];", UInt32, constraints="=r,r,~{memory}"](address)


@inline(.always)
def load_shared_f32[offset: Int](address: UInt32) -> Float32:
    """Loads an f32 from shared memory, `offset` bytes after the address."""
    comptime text = String("ld.shared.f32 $0, [$1+", offset, "];")
    return inlined_assembly[text, Float32, constraints="=f,r,~{memory}"](address)


@inline(.always)
def store_shared[offset: Int = 0](address: UInt32, value: UInt32):
    """Stores 4 bytes to shared memory, `offset` bytes after the address."""
    inlined_assembly[String("st.shared.b32 [$0+", offset, "], $1;"), NoneType, constraints="r,r,~{memory}"](
        address, value
    )


@inline(.always)
def store_async(address: UInt32, value: UInt32, barrier: UInt32):
    """Stores 4 bytes to shared memory of any CTA of the cluster, asynchronously. A barrier of that CTA counts them when
    they have arrived (PTX ISA 9.7.9.12)."""
    inlined_assembly[
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$0], $1, [$2];",
        NoneType,
        constraints="r,r,r,~{memory}",
    ](address, value, barrier)


@inline(.always)
def fence_proxy_async():
    """Orders this thread's generic accesses to shared memory before those of TMA and MMA (PTX ISA 9.7.13.4)."""
    inlined_assembly["fence.proxy.async.shared::cta;", NoneType, constraints="~{memory}"]()


# ---- global memory -------------------------------------------------------------------------------------------------
@inline(.always)
def load_global_u32(address: UInt64) -> UInt32:
    """Loads 4 bytes from global memory."""
    return inlined_assembly["ld.global.u32 $0, [$1];", UInt32, constraints="=r,l,~{memory}"](address)


@inline(.always)
def increment_counter(counter: UInt64, last: UInt32) -> UInt32:
    """Increments a counter in global memory, which wraps from `last` to 0. Returns its old value (PTX ISA 9.7.13.6)."""
    return inlined_assembly["atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;", UInt32, constraints="=r,l,r,~{memory}"](
        counter, last
    )


@inline(.always)
def increment_counter_acq_rel(counter: UInt64, last: UInt32) -> UInt32:
    """Increments a counter like `increment_counter`, with acquire and release at gpu scope (PTX ISA 9.7.13.6). Later
    arrivals observe what this CTA wrote before its barrier, and this thread observes what earlier arrivals released."""
    return inlined_assembly["atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;", UInt32, constraints="=r,l,r,~{memory}"](
        counter, last
    )


@inline(.always)
def store_global[offset: Int](address: UInt64, values: SIMD[DType.float32, 4]):
    """Stores four f32 to global memory, at a multiple of 16 bytes, `offset` bytes after the address."""
    inlined_assembly[
        String("st.global.v4.f32 [$0+", offset, "], {$1, $2, $3, $4};"), NoneType, constraints="l,f,f,f,f,~{memory}"
    ](address, values[0], values[1], values[2], values[3])


@inline(.always)
def store_global(address: UInt64, value: Float32):
    """Stores one f32 to global memory."""
    inlined_assembly["st.global.f32 [$0], $1;", NoneType, constraints="l,f,~{memory}"](address, value)


@inline(.always)
def store_bytes[count: Int](address: UInt64, word: UInt32):
    """Stores the lowest `count` bytes of a word (1, 2 or 4) to global memory, at a multiple of `count` bytes."""
    inlined_assembly[String("st.global.b", 8 * count, " [$0], $1;"), NoneType, constraints="l,r,~{memory}"](
        address, word
    )


@inline(.always)
def load_global[offset: Int](address: UInt64) -> SIMD[DType.float32, 4]:
    """Loads four f32 from global memory, at a multiple of 16 bytes, `offset` bytes after the address."""
    var found = inlined_assembly[
        String("ld.global.v4.f32 {$0, $1, $2, $3}, [$4+", offset, "];"),
        Registers[4],
        constraints="=f,=f,=f,=f,l,~{memory}",
    ](address)
    return {found[0], found[1], found[2], found[3]}


# ---- operands and functions of an epilogue ---------------------------------------------------------------------------
@inline(.always)
def load_pair_if_inside[dtype: DType](address: UInt64, element: UInt64, inside: Bool) -> SIMD[DType.float32, 2]:
    """Loads two adjacent elements of an array of 16-bit floats in global memory; the first has an even index. If not
    `inside`, it loads nothing and returns zeros."""
    var pair = inlined_assembly["mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1];", UInt32, constraints="=&r,l,b,~{memory}"](
        address + 2 * element, inside
    )
    return bitcast[dtype, 2](pair).cast[DType.float32]()


@inline(.always)
def load_one_if_inside[dtype: DType](address: UInt64, element: UInt64, inside: Bool) -> Float32:
    """Loads one element of an array of 16-bit floats, like `load_pair_if_inside`. Its index may be odd."""
    var one = inlined_assembly["mov.b16 $0, 0; @$2 ld.global.b16 $0, [$1];", UInt16, constraints="=&h,l,b,~{memory}"](
        address + 2 * element, inside
    )
    return bitcast[dtype](one).cast[DType.float32]()


@inline(.always)
def exp2(x: Float32) -> Float32:
    """Returns 2^x with a relative error of 2^-22.5. Subnormal results become 0 (PTX ISA 9.7.3.21)."""
    return inlined_assembly["ex2.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


@inline(.always)
def reciprocal(x: Float32) -> Float32:
    """Returns 1 / x with a relative error of 2^-23. Subnormal results become 0 (PTX ISA 9.7.3.13)."""
    return inlined_assembly["rcp.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


# ---- cluster launch control ------------------------------------------------------------------------------------------
@inline(.always)
def try_cancel[multicast: Bool](response: UInt32, barrier: UInt32):
    """Requests to cancel a cluster of this grid that has not started, so that this cluster can compute its tile (PTX
    ISA 9.7.13.17). The hardware writes 16 bytes to `response` and counts them on `barrier`; with `multicast`, at these
    offsets in every CTA of the cluster. One thread calls this."""
    comptime to = ".multicast::cluster::all" if multicast else ""
    inlined_assembly[
        String(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes", to, ".b128 [$0], [$1];"
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](response, barrier)


comptime NOTHING_CANCELED = ~UInt32(0)


@inline(.always)
def canceled_cluster_x(response: UInt32) -> UInt32:
    """Returns blockIdx.x of the first CTA of the canceled cluster in a response, or NOTHING_CANCELED."""
    return inlined_assembly[
        (
            "{ .reg .b128 answer; .reg .pred granted; ld.shared.b128 answer, [$1];"
            " clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, answer; mov.b32 $0, -1;"
            " @granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, answer; }"
        ),
        UInt32,
        constraints="=&r,r,~{memory}",
    ](response)


# ---- launches ------------------------------------------------------------------------------------------------------
@inline(.always)
def launch_dependents():
    """Lets the next launch of the stream start, if it has the attribute for it (PTX ISA 9.7.13.13). The instruction is
    not convergent, and executing it twice is harmless."""
    inlined_assembly["griddepcontrol.launch_dependents;", NoneType, constraints="~{memory}"]()


@inline(.always)
def griddepcontrol_wait():
    """Waits until the grids that this launch depends on have ended and their writes are visible (PTX ISA 9.7.13.13)."""
    inlined_assembly["griddepcontrol.wait;", NoneType, constraints="~{memory}"]()


# ---- operations behind a wait ----------------------------------------------------------------------------------------
@inline(.always)
def mul_after_wait(a: Float32, b: Float32) -> Float32:
    """Returns a * b. The compiler keeps this behind the wait for the tensor core, which writes `a`."""
    return inlined_assembly["mul.rn.f32 $0, $1, $2;", Float32, constraints="=f,f,f"](a, b)


@inline(.always)
def fma_after_wait(a: Float32, b: Float32, c: Float32) -> Float32:
    """Returns a * b + c, rounded once. It stays behind the wait, like `mul_after_wait`."""
    return inlined_assembly["fma.rn.f32 $0, $1, $2, $3;", Float32, constraints="=f,f,f,f"](a, b, c)


@inline(.always)
def pinned(value: UInt32) -> UInt32:
    """Returns the same value, which the compiler computes here and no earlier."""
    return inlined_assembly["", UInt32, constraints="=r,0", has_side_effect=True](value)


@inline(.always)
def pinned(value: Float32) -> Float32:
    """Returns the same value, which the compiler uses here and no earlier."""
    return inlined_assembly["", Float32, constraints="=f,0", has_side_effect=True](value)
