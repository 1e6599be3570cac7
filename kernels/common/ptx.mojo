"""PTX instructions that the library does not offer in the form that a kernel needs.

Shared memory addresses have 32 bits; bits 24 and up of a CTA's own addresses hold its rank in the cluster. Convergent
instructions (barriers, `elect.sync`, shuffles) use the library instead, because the compiler may duplicate inline
assembly into both sides of a branch. Other files wrap TMA copies (tma.mojo), conversions (box.mojo), mbarriers
(pipeline.mojo), launch control (launch_control.mojo) and global memory (global_memory.mojo)."""
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
def fence_proxy_async():
    """Orders this thread's generic accesses to shared memory before those of TMA and MMA (PTX ISA 9.7.13.4)."""
    inlined_assembly["fence.proxy.async.shared::cta;", NoneType, constraints="~{memory}"]()


# ---- order -----------------------------------------------------------------------------------------------------------
@inline(.always)
def pinned[dtype: DType, //](value: Scalar[dtype]) -> Scalar[dtype]:
    """Returns the same f32 or 32-bit integer, which the compiler computes and uses here and no earlier."""
    comptime constraints = "=f,0" if dtype == DType.float32 else "=r,0"
    return inlined_assembly["", Scalar[dtype], constraints=constraints, has_side_effect=True](value)
