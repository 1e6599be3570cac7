"""Loads and stores of global memory by threads. Tensor copies are in tma.mojo."""
from .ptx import Registers
from std.memory import bitcast
from std.sys._assembly import inlined_assembly


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
def store_global(address: UInt64, values: SIMD[DType.float32, 2]):
    """Stores two f32 to global memory, at a multiple of 8 bytes."""
    inlined_assembly["st.global.v2.f32 [$0], {$1, $2};", NoneType, constraints="l,f,f,~{memory}"](
        address, values[0], values[1]
    )


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
