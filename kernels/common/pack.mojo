"""Packs f32 values as narrower elements into words, and stores packed words to shared memory."""
from std.sys._assembly import inlined_assembly


@inline(.always)
def pack_pair[dtype: DType](low: Float32, high: Float32) -> UInt32:
    """Rounds two f32 values to 16-bit floats, to nearest even, and packs them, `low` in the lower half. The compiler
    takes this for a side effect, so it stays behind the wait for asynchronously written registers."""
    comptime assert dtype == DType.bfloat16 or dtype == DType.float16, "a pair is two 16-bit floats"
    comptime type = "bf16x2" if dtype == DType.bfloat16 else "f16x2"
    return inlined_assembly[String("cvt.rn.", type, ".f32 $0, $1, $2;"), UInt32, constraints="=r,f,f"](high, low)


@inline(.always)
def store_matrices[
    count: SIMDLength, //, offset: Int, transposed: Bool = False
](address: UInt32, matrices: SIMD[DType.uint32, count]):
    """Stores two or four 8x8 matrices of 16-bit elements, or their transposes, to shared memory. Lane l passes the
    address of row l % 8 of matrix l / 8 as it is stored (PTX ISA 9.7.14.5.16)."""
    comptime trans = ".trans" if transposed else ""
    comptime text = String("stmatrix.sync.aligned.m8n8.x", Int(count), trans, ".shared.b16 [$0+", offset, "], ")
    comptime if count == 2:
        inlined_assembly[text + "{$1, $2};", NoneType, constraints="r,r,r,~{memory}"](address, matrices[0], matrices[1])
    else:
        inlined_assembly[text + "{$1, $2, $3, $4};", NoneType, constraints="r,r,r,r,r,~{memory}"](
            address, matrices[0], matrices[1], matrices[2], matrices[3]
        )


@inline(.always)
def store_pair[offset: Int](address: UInt32, low: UInt32, high: UInt32):
    """Stores two words side by side to shared memory."""
    inlined_assembly[String("st.shared.v2.b32 [$0+", offset, "], {$1, $2};"), NoneType, constraints="r,r,r,~{memory}"](
        address, low, high
    )
