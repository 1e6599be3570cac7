"""Boxes of C of kernels 8 and 9: also transposed, of 4- and 8-bit elements, and up to the last row of a group."""
from .box import BoxRows, pack_wide, store_matrices, swizzle, write_wide
from .layer_config import LayerConfig
from .pack_narrow import pack_eight, pack_four, store_halves, store_quarters
from .ptx import store_shared
from .tile import element_bytes
from .tma import tma_store
from std.sys._assembly import inlined_assembly


struct LayerRows[config: LayerConfig](BoxRows):
    """The rows of a box that one warp writes. If `swapped`, the rows of the accumulator are columns of C: the warp
    writes 16 columns, or 8 where a fused epilogue makes 4 `results` of 8 values. Two boxes hold the columns of all
    warps if a row would exceed 128 bytes. e4m3 and e2m1 (two in a byte) need plain stores."""

    comptime dtype = Self.config.gemm.out_dtype
    comptime element = element_bytes(Self.dtype)
    comptime pitch = Self.config.c_pitch()
    comptime values = 8 if Self.dtype == DType.uint8 else 4 // Self.element
    comptime words = Self.config.step_columns() // 2 * Self.element // 4
    comptime across = Self.config.results // 4  # transposed: 8-column matrices side by side in C

    var address: UInt32  # where this lane stores: its row of a matrix, or its first elements

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        comptime pitch = UInt32(Self.pitch)
        comptime if Self.config.swapped:
            comptime across = UInt32(Self.across)
            comptime box_bytes = UInt32(Self.config.gemm.epilogue_width * Self.pitch)
            var c_row = lane % 4 * 2 if Self.element == 4 else lane // (8 * across) * 8 + lane % 8
            var column = row // 16 * (8 * across) + (lane // 4 if Self.element == 4 else lane // 8 % across * 8)
            var byte = column * UInt32(Self.element)
            self.address = box + byte // pitch * box_bytes
            self.address += c_row * pitch + (byte % pitch ^ swizzle[Self.pitch](c_row))
            return
        var lane_row = lane % 16 if Self.element == 2 else lane // 4
        var byte = lane // 16 * 16 if Self.element == 2 else lane % 4 * UInt32(8 // Self.values)
        self.address = box + (row + lane_row) * pitch + (byte ^ swizzle[Self.pitch](lane_row))

    @staticmethod
    @inline(.always)
    def pack(values: SIMD[DType.float32, Self.values]) -> UInt32:
        """Packs values; of e4m3 two adjacent columns and those 8 rows further, of e2m1 also all these 8 columns
        further."""
        comptime if Self.dtype == DType.float8_e4m3fn:
            return pack_four(values[0], values[1], values[2], values[3])
        elif Self.dtype == DType.uint8:
            return pack_eight(values.slice[8]())
        else:
            return pack_wide[Self.dtype](values)

    @inline(.always)
    def write[offset: Int, block: Int = 0](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the words. Transposed, block 1 is 16 columns further, an XOR of address bits that nothing else sets,
        because the first row is then a multiple of 32."""
        comptime if Self.config.swapped:
            self.write_transposed[offset](words, self.address ^ UInt32(block * 2 * Self.config.results * Self.element))
        elif Self.element == 1:
            comptime low = offset + block * 16 * Self.pitch
            comptime for i in range(Self.words):
                var place = self.address ^ UInt32(8 * i)
                comptime if Self.dtype == DType.uint8:
                    store_quarters[low, low + 8 * Self.pitch](place, words[i])  # 16 columns
                else:
                    store_halves[low, low + 8 * Self.pitch](place, words[i])  # 8 columns
        else:
            write_wide[Self.element, Self.pitch, offset + block * 16 * Self.pitch](self.address, words)

    @inline(.always)
    def write_transposed[offset: Int](self, words: SIMD[DType.uint32, Self.words], address: UInt32):
        """Stores the matrices that lie side by side, then those 8 rows of C further, which have the same swizzle."""
        comptime if Self.element == 4:
            comptime for i in range(Self.words):
                comptime down = i // (2 * Self.across) * 8 + i % 2
                var place = address ^ UInt32(i % 2 * 16) ^ UInt32(i // 2 % Self.across * 32)
                store_shared[offset + down * Self.pitch](place, words[i])
        else:
            comptime count = min(4, Self.words)
            comptime for first in range(0, Self.words, count):
                comptime down = first // Self.across * 8
                store_matrices[offset + down * Self.pitch, True](address, words.slice[count, offset=first]())

    @staticmethod
    @inline(.always)
    def store(box: UInt32, c_map: UInt64, column: Int32, row: Int32, end: Int32):
        """Starts the TMA store of a box. If swapped, its rows may take two boxes; with groups, rows from `end` on
        belong to the next group (groups.mojo)."""
        comptime if Self.config.swapped:
            comptime across = Self.config.c_box()[1]
            comptime for part in range(Self.config.team_columns() // across):
                var place = box + UInt32(part * Self.config.gemm.epilogue_width * Self.pitch)
                tma_store(place, c_map, Self.config.c_column(row) + Int32(part * across), column)
        elif Self.config.grouped:
            comptime rows = Int32(Self.config.gemm.team_rows())
            var inside = min(rows, end - row)
            tma_store_in_window(box, c_map, Self.config.c_column(column), rows - inside, row + inside)
        else:
            tma_store(box, c_map, Self.config.c_column(column), row)


@inline(.always)
def tma_store_in_window(source: UInt32, map: UInt64, column: Int32, row: Int32, window: Int32):
    """Starts a copy like `tma_store`, to a tensor of overlapping windows (groups.mojo)."""
    inlined_assembly[
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [$1, {$2, $3, $4}], [$0];",
        NoneType,
        constraints="r,l,r,r,r,~{memory}",
    ](source, map, column, row, window)
