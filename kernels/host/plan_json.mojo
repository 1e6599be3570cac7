"""The launch plan as JSON (schema 1), for programs that launch, emulate or explain the kernel. It has numbers and
names; harness/compile/plan_words.py has the sentences about them."""
from ..common.block_scaling import SCALE_SLOTS
from ..common.config import GemmConfig, SharedMemory
from .json import array, numbers, object, pair, quoted, text
from .label import label
from .launch_plan import LaunchPlan, TensorMap
from ..common.multicast import Slices
from ..common.raster import Raster
from ..common.word import Word
from std.math import ceildiv


def config_json(config: GemmConfig) -> String:
    """Returns all options of a configuration."""
    return object(
        [
            text("dtype", config.dtype_name()),
            text("scales", config.scales),
            text("out_dtype", config.c_dtype_name()),
            pair("mma_shape", numbers(config.mma_m, config.mma_n, config.scaling.mma_k())),
            pair("cta_group", config.cta_group),
            pair("block_k", config.block_k),
            pair("stages", config.stages),
            pair("cluster", numbers(config.cluster_m, config.cluster_n)),
            pair("epilogue_width", config.epilogue_width),
            pair("band_m", config.band_m),
            text("scheduler", config.scheduler),
            pair("raster_group", config.raster_group),
            pair("accumulators", config.accumulators),
            pair("clc_depth", config.clc_depth),
            pair("sms", config.sms),
            pair("ping_pong", config.ping_pong),
            pair("split_k", config.split_k),
            text("layout", config.layout),
            pair("swapped", config.swapped),
            pair("grouped", config.grouped),
            pair("masked", config.masked),
            pair("multicast", config.multicast),
            text("epilogue", config.fusion().name),
            text("label", label(config)),
        ]
    )


def shared_memory_json(config: GemmConfig) -> String:
    """Returns the parts of shared memory in their order. `count` is the number of equal pieces; 0 for barriers, which
    `barriers_json` lists."""

    def part(name: StaticString, bytes: Int, count: Int) -> String:
        return object([text("name", name), pair("bytes", bytes), pair("count", count)])

    def stages(name: StaticString, bytes: Int) {imm config} -> String:
        return part(name, config.stages * bytes, config.stages)

    var has_steps = config.c_bytes() < config.cta_m() * config.mma_n * config.c_element_bytes()
    var parts: List[String] = [
        stages("A stages", config.a_bytes()),
        stages("B stages", config.b_bytes()),
        part("C tile", config.c_bytes(), config.c_buffers() if has_steps else 1),
    ]
    if config.has_scale_factors():
        parts.append(stages("A scale stages", config.a_scale_bytes()))
        parts.append(stages("B scale stages", config.b_scale_bytes()))
    parts.append(part("barriers", config.barrier_bytes(), 0))
    return array(parts)


def roles_json(config: GemmConfig) -> String:
    """Returns the roles of a CTA and their warps."""

    def role(name: StaticString, first: Int, count: Int) -> String:
        return object([text("name", name), pair("warps", numbers([warp for warp in range(first, first + count)]))])

    var roles: List[String] = [role("set-up", 0, 1)]
    if config.has_tmem():
        if not config.kernel.pipelined:
            return array(roles + [role("load and mma", 0, 1), role("epilogue", 0, 4)])
        roles += [role("epilogue", 0, 4), role("producer", 4, 1), role("mma", 5, 1)]
        if config.fetches_tiles():
            roles.append(role("scheduler", 6, 1))
        return array(roles)
    var consumers = 4 * config.consumers()
    var warps = pair("warps", numbers([warp for warp in range(consumers)]))
    roles.append(object([text("name", "consumers"), warps, pair("defers_epilogue", config.defers_epilogue())]))
    roles.append(role("producer", consumers, 4) if config.kernel.pipelined else role("load", 0, 1))
    if config.counts_tiles():
        roles.append(role("scheduler", consumers + 1, 1))
    return array(roles)


def barriers_json(config: GemmConfig) -> String:
    """Returns the offsets of the barriers, and the arrivals and announced bytes that complete a phase of each."""
    var layout = SharedMemory(config)

    def barrier(name: StaticString, offset: Int, count: Int, arrivals: Int, bytes: Int = 0) -> String:
        var members: List[String] = [text("name", name), pair("offset", offset), pair("count", count)]
        return object(members + [pair("arrivals", arrivals), pair("bytes", bytes)])

    var found: List[String] = [
        barrier("full", layout.full, config.stages, 1, config.full_bytes()),
        barrier("empty", layout.empty, config.stages, config.empty_arrivals()),
    ]
    if config.has_tmem():
        var count = config.accumulator_barriers()
        if config.kernel.is_persistent:
            var readers = config.accumulator_readers()
            found.append(barrier("accumulator full", layout.accumulator_full, count, 1))
            found.append(barrier("accumulator empty", layout.accumulator_empty, count, readers))
        else:
            found.append(barrier("accumulator", layout.accumulator_full, count, 1))
    if config.kernel.is_block_scaled:
        found.append(barrier("scales empty", layout.scales_empty, SCALE_SLOTS, 1))
    if config.fetches_tiles():
        var slots = config.response_slots()
        var bytes = 16
        if config.counts_tiles():
            bytes = 4 if config.cluster_size() > 1 else 0
        found.append(barrier("answer full", layout.response_full, slots, 1, bytes))
        found.append(barrier("answer empty", layout.response_empty, slots, config.response_readers()))
    return array(found)


def multicast_json(config: GemmConfig) -> String:
    """Returns the masks of each CTA, and the first line (K-major: row) of each box that it loads, counted in the tile
    that the receivers hold."""
    var sharing, b_scale_sharing = config.sharing(), config.b_scale_sharing()

    def rows(slices: Slices, part: UInt32) -> String:
        return numbers([box * slices.box_lines() for box in range(Int(part), slices.boxes(), slices.parts)])

    var ranks = List[String]()
    for i in range(config.cluster_size()):
        var rank = UInt32(i)
        var members: List[String] = [
            pair("rank", i),
            pair("a", Int(sharing.a_mask(rank))),
            pair("b", Int(sharing.b_mask(rank))),
            pair("commit", Int(sharing.commit_mask(rank))),
            pair("a_rows", rows(config.a_slices(), sharing.a_part(rank))),
            pair("b_rows", rows(config.b_slices(), sharing.b_part(rank))),
        ]
        if config.kernel.is_block_scaled:
            members.append(pair("b_scales", Int(b_scale_sharing.b_mask(rank))))
            members.append(pair("a_scale_rows", rows(config.a_scale_slices(), sharing.a_part(rank))))
            members.append(pair("b_scale_rows", rows(config.b_scale_slices(), b_scale_sharing.b_part(rank))))
        ranks.append(object(members))
    return array(ranks)


def tiles_json(config: GemmConfig, plan: LaunchPlan, sizes: List[Int]) -> String:
    """Returns the first tiles in the order of the raster, as [row, column] in cluster tiles; null for kernels that are
    not persistent. With split-K, the parts of a tile follow one another; with groups, each group has rows of its
    own."""
    if not config.kernel.is_persistent:
        return "null"
    comptime most = 512
    var order = List[String]()
    var above = 0
    for size in sizes.copy() if len(sizes) > 0 else [plan.rows]:
        var rows = ceildiv(size, config.cluster_rows())
        var raster = Raster(UInt32(config.raster_group), UInt32(max(1, rows)), UInt32(plan.clusters_n))
        for number in range(min(most - len(order), rows * plan.clusters_n)):
            var found = raster.place(UInt32(number))
            order.append(numbers(above + Int(found.row), Int(found.column)))
        above += rows
    return object([pair("rows", above), pair("columns", plan.clusters_n), pair("order", array(order))])


def arguments_json(config: GemmConfig, plan: LaunchPlan) -> String:
    """Returns the arguments of the kernel in the order of its parameters."""
    var promotion = config.l2_promotion()

    def map(name: StaticString, map: TensorMap) {imm promotion} -> String:
        var rows = map.row_bytes()
        var dims, strides = numbers(map.columns, map.rows), numbers(rows)
        var box = numbers(map.box_columns, map.box_rows)
        if map.windows > 0:
            dims, strides = numbers(map.columns, map.box_rows, map.windows), numbers(rows, rows)
            box = numbers(map.box_columns, map.box_rows, 1)
        return object(
            [
                text("name", name),
                text("kind", "tensor_map"),
                text("tensor", map.tensor),
                text("dtype", map.dtype),
                pair("dims", dims),
                pair("strides", strides),
                pair("box", box),
                pair("offset", -map.box_rows * rows if map.windows > 0 else 0),
                text("swizzle", String(map.swizzle_bytes(), "B") if map.swizzle_bytes() > 0 else String("none")),
                pair("l2_promotion", promotion),
            ]
        )

    def scalar(name: StaticString, value: Int, type: StaticString = "u32") -> String:
        return object([text("name", name), text("kind", "scalar"), text("type", type), pair("value", value)])

    def address(name: StaticString, is_taken: Bool, shape: List[Int], dtype: Word) -> String:
        """Returns a parameter that is the address of a tensor, or 0."""
        if not is_taken:
            return scalar(name, 0, "u64")
        return object([text("name", name), text("kind", "tensor"), text("dtype", dtype), pair("shape", numbers(shape))])

    var workspace = scalar("workspace", 0, "u64")
    if plan.workspace > 0:
        var members: List[String] = [text("name", "workspace"), text("kind", "workspace")]
        members += [pair("counters", plan.counters), pair("bytes", plan.workspace)]
        workspace = object(members)

    var found: List[String] = [map("a_map", plan.a), map("b_map", plan.b), map("c_map", plan.c)]
    if config.has_scale_factors():
        found.append(map("a_scales_map", plan.scales[0]))
        found.append(map("b_scales_map", plan.scales[1]))
    found.append(scalar("k_iterations", plan.k_iterations))
    found.append(scalar("m", plan.rows))
    found.append(scalar("n", plan.columns))
    found.append(workspace^)
    var bias: List[Int] = [plan.groups, plan.n] if config.grouped else [plan.n]
    found.append(address("bias", config.fusion().takes_bias, bias, config.dtype_name()))
    found.append(address("residual", config.fusion().takes_residual, [plan.m, plan.n], config.dtype_name()))
    found.append(scalar("alpha", 1, "f32"))
    found.append(scalar("beta", 0, "f32"))
    var factor: Word = "f32"
    if config.out_scaling.factors > 0:
        factor = "ue8m0" if config.out_scaling.has_powers() else "e4m3"
    found.append(address("factors", config.quantises(), plan.factors, factor))
    found.append(scalar("c_scale", 1, "f32"))
    found.append(address("sizes", config.grouped, [plan.groups], "s32"))
    found.append(scalar("groups", plan.groups))
    return array(found)


def plan_json(config: GemmConfig, plan: LaunchPlan, entry: String, sizes: List[Int] = []) -> String:
    """Returns the launch plan. `entry` is empty if the kernel is not compiled. `sizes` are the rows of the groups,
    which the host of a launch does not know."""
    var m = plan.m
    if config.masked:  # rows in memory
        m = 0
        for size in sizes:
            m += size
    var problem: List[String] = [pair("m", m), pair("n", plan.n), pair("k", plan.k), pair("groups", numbers(sizes))]
    if config.masked:
        problem.append(pair("masked", plan.m // plan.groups))
    if plan.ld.a > 0 or plan.ld.b > 0 or plan.ld.c > 0:
        problem.append(pair("ld", numbers(plan.ld.a, plan.ld.b, plan.ld.c)))
    return object(
        [
            pair("schema", 1),
            text("kernel", config.kernel.name),
            text("arch", config.arch),
            pair("entry", quoted(entry) if entry.byte_length() > 0 else String("null")),
            pair("config", config_json(config)),
            pair("problem", object(problem)),
            pair("grid", numbers(plan.grid_x, plan.grid_y, plan.grid_z)),
            pair("cluster", numbers(config.cluster_m, config.cluster_n, 1)),
            pair("block", numbers(plan.block, 1, 1)),
            pair("dynamic_smem", plan.dynamic_shared_memory),
            pair("shared_memory", shared_memory_json(config)),
            pair("tmem_columns", config.tmem_columns()),
            pair("tiles", tiles_json(config, plan, sizes)),
            pair("roles", roles_json(config)),
            pair("barriers", barriers_json(config)),
            pair("multicast", multicast_json(config)),
            pair("arguments", arguments_json(config, plan)),
        ]
    )
