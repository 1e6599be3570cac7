"""The boxes of C of a configuration, and the TMA store of one: plain, transposed, or up to the last row of a group."""
from .box import BoxRows
from .config import GemmConfig
from .tma import tma_store, tma_store_in_window

comptime RowsOfBox[config: GemmConfig] = BoxRows[
    config.out_dtype, config.step_columns(), config.c_pitch(), config.swapped, config.results
]
"""The rows of a box of C that one warp writes."""


@inline(.always)
def store_rows[config: GemmConfig](box: UInt32, c_map: UInt64, column: Int32, row: Int32, end: Int32):
    """Starts the TMA store of a box: the rows of the accumulator from `row` up to `end`, where C or the group ends. If
    swapped, the rows may take two boxes. One thread calls this."""
    comptime if config.swapped:
        comptime across = config.c_box()[1]
        comptime for part in range(config.team_columns() // across):
            var place = box + UInt32(part * config.epilogue_width * config.c_pitch())
            tma_store(place, c_map, config.c_column(row) + Int32(part * across), column)
    elif config.grouped:
        comptime rows = Int32(config.team_rows())
        var inside = min(rows, end - row)
        tma_store_in_window(box, c_map, config.c_column(column), rows - inside, row + inside)
    else:
        tma_store(box, c_map, config.c_column(column), row)
