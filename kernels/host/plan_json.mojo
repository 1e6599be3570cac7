"""The launch plan as JSON (schema 1), for programs that launch, emulate or explain the kernel. It has numbers and
names; harness/compile/plan_words.py has the sentences about them. Tensor maps list dimensions innermost first, as
cuTensorMapEncodeTiled takes them (CUDA driver API): dims and boxes in elements, strides in bytes."""
from ..common.config import SharedMemory
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from .json import array, member, numbers, object, quoted, string_member
from ..common.series import find_kernel
from .label import label
from .launch_plan import LaunchPlan, TensorMap, l2_promotion
from ..common.multicast import Slices
from ..common.raster import Raster
from ..common.word import Word
from std.math import ceildiv


def config_json(config: LayerConfig) -> String:
    """Returns all options of a configuration."""
    var gemm = config.gemm
    return object(
        [
            string_member("dtype", config.dtype_name()),
            string_member("scales", config.scales),
            string_member("out_dtype", config.c_dtype_name()),
            member("mma_shape", numbers(gemm.mma_m, gemm.mma_n, config.scaling.mma_k())),
            member("cta_group", gemm.cta_group),
            member("block_k", config.block_k()),
            member("stages", gemm.stages),
            member("cluster", numbers(gemm.cluster_m, gemm.cluster_n)),
            member("epilogue_width", gemm.epilogue_width),
            member("band_m", gemm.band_m),
            string_member("scheduler", gemm.scheduler),
            member("raster_group", gemm.raster_group),
            member("accumulators", config.accumulators),
            member("clc_depth", config.clc_depth),
            member("sms", config.sms),
            member("ping_pong", config.ping_pong),
            member("split_k", config.split_k),
            string_member("layout", config.layout),
            member("swapped", config.swapped),
            member("grouped", config.grouped),
            member("masked", config.masked),
            member("multicast", gemm.multicast),
            string_member("epilogue", config.fusion().name),
            string_member("label", label(config)),
        ]
    )


def shared_memory_json(config: LayerConfig) -> String:
    """Returns the parts of shared memory in order. `count`: equal pieces, or 0 for barriers (`barriers_json`)."""
    var gemm = config.gemm

    def part(name: String, bytes: Int, count: Int) -> String:
        return object([string_member("name", name), member("bytes", bytes), member("count", count)])

    def stages(name: StaticString, bytes: Int) {imm gemm} -> String:
        return part(name, gemm.stages * bytes, gemm.stages)

    if gemm.kernel.reads_directly:
        return array([part("partial sums", config.shared_memory_bytes(), 1)])
    var has_steps = gemm.c_bytes() < gemm.cta_m() * gemm.mma_n * element_bytes(gemm.out_dtype)
    var parts: List[String] = [
        stages("A stages", gemm.a_bytes()),
        stages("B stages", gemm.b_bytes()),
        part("C tile", gemm.c_bytes(), gemm.c_buffers() if has_steps else 1),
    ]
    if config.has_scale_factors():
        parts.append(stages("A scale stages", config.a_scale_bytes()))
        parts.append(stages("B scale stages", config.b_scale_bytes()))
    var kernel = find_kernel(gemm.kernel.name)
    for i in range(kernel.buffer_count):
        var buffer = kernel.buffers[i]
        parts.append(part(buffer.name.text(), buffer.bytes, 1))
    parts.append(part("barriers", config.shared_memory_bytes() - SharedMemory(gemm).responses, 0))
    return array(parts)


def roles_json(config: LayerConfig) -> String:
    """Returns the roles of a CTA and their warps."""
    var gemm = config.gemm

    def role(name: StaticString, first: Int, count: Int) -> String:
        return object(
            [string_member("name", name), member("warps", numbers([warp for warp in range(first, first + count)]))]
        )

    if gemm.kernel.reads_directly:
        return array([role("all", 0, config.split_k)])
    var roles: List[String] = [role("set-up", 0, 1)]
    if gemm.has_tmem():
        if not gemm.kernel.pipelined:
            return array(roles + [role("load and mma", 0, 1), role("epilogue", 0, 4)])
        roles += [role("epilogue", 0, 4), role("producer", 4, 1), role("mma", 5, 1)]
        if gemm.fetches_tiles():
            roles.append(role("scheduler", 6, 1))
        return array(roles)
    var consumers = 4 * gemm.consumers
    var warps = member("warps", numbers([warp for warp in range(consumers)]))
    roles.append(
        object([string_member("name", "consumers"), warps, member("defers_epilogue", config.defers_epilogue())])
    )
    roles.append(role("producer", consumers, 4) if gemm.kernel.pipelined else role("load", 0, 1))
    if gemm.counts_tiles():
        roles.append(role("scheduler", consumers + 1, 1))
    return array(roles)


def barriers_json(config: LayerConfig) -> String:
    """Returns the offsets of the barriers, and the arrivals and announced bytes that complete a phase of each."""
    var gemm = config.gemm
    if gemm.kernel.reads_directly:
        return "[]"
    var layout = SharedMemory(gemm)

    def barrier(name: StaticString, offset: Int, count: Int, arrivals: Int, bytes: Int = 0) -> String:
        var members: List[String] = [string_member("name", name), member("offset", offset), member("count", count)]
        return object(members + [member("arrivals", arrivals), member("bytes", bytes)])

    var found: List[String] = [
        barrier("full", layout.full, gemm.stages, 1, gemm.full_bytes()),
        barrier("empty", layout.empty, gemm.stages, gemm.empty_arrivals()),
    ]
    if gemm.has_tmem():
        var count = gemm.accumulator_barriers
        if gemm.kernel.is_persistent:
            var readers = gemm.accumulator_readers()
            found.append(barrier("accumulator full", layout.accumulator_full, count, 1))
            found.append(barrier("accumulator empty", layout.accumulator_empty, count, readers))
        else:
            found.append(barrier("accumulator", layout.accumulator_full, count, 1))
    if gemm.fetches_tiles():
        var slots = gemm.response_slots
        var bytes = 16
        if gemm.counts_tiles():
            bytes = 4 if gemm.cluster_size() > 1 else 0
        found.append(barrier("answer full", layout.response_full, slots, 1, bytes))
        found.append(barrier("answer empty", layout.response_empty, slots, gemm.response_readers()))
    var kernel = find_kernel(gemm.kernel.name)
    for i in range(kernel.barrier_count):
        var one = kernel.barriers[i]
        var members: List[String] = [
            string_member("name", one.name),
            member("offset", layout.declared_barriers + kernel.offset_of(one)),
        ]
        members += [member("count", one.count), member("arrivals", one.arrivals), member("bytes", one.bytes)]
        found.append(object(members + [string_member("arrives", one.arrives), string_member("waits", one.waits)]))
    return array(found)


def multicast_json(config: LayerConfig) -> String:
    """Returns the masks of each CTA, and the first line (K-major: row) of each box that it loads in the tile."""
    var gemm = config.gemm
    var sharing, b_scale_sharing = gemm.sharing(), config.b_scale_sharing()

    def rows(slices: Slices, part: UInt32) -> String:
        return numbers([box * slices.box_lines() for box in range(Int(part), slices.boxes(), slices.parts)])

    var ranks = List[String]()
    for i in range(gemm.cluster_size()):
        var rank = UInt32(i)
        var members: List[String] = [
            member("rank", i),
            member("a", Int(sharing.a_mask(rank))),
            member("b", Int(sharing.b_mask(rank))),
            member("commit", Int(sharing.writer_mask(rank))),
            member("a_rows", rows(gemm.a_slices(), sharing.a_part(rank))),
            member("b_rows", rows(gemm.b_slices(), sharing.b_part(rank))),
        ]
        if gemm.kernel.is_block_scaled:
            members.append(member("b_scales", Int(b_scale_sharing.b_mask(rank))))
            members.append(member("a_scale_rows", rows(config.a_scale_slices(), sharing.a_part(rank))))
            members.append(member("b_scale_rows", rows(config.b_scale_slices(), b_scale_sharing.b_part(rank))))
        ranks.append(object(members))
    return array(ranks)


def tiles_json(config: LayerConfig, plan: LaunchPlan, sizes: List[Int]) -> String:
    """Returns the first tiles in the order of the raster, as [row, column] in cluster tiles; null for kernels that are
    not persistent. With split-K, the parts of a tile follow one another; each group has rows of its own."""
    var gemm = config.gemm
    if not gemm.kernel.is_persistent:
        return "null"
    comptime most = 512
    var order = List[String]()
    var above = 0
    for size in sizes.copy() if len(sizes) > 0 else [plan.rows]:
        var rows = ceildiv(size, gemm.cluster_rows())
        var raster = Raster(UInt32(gemm.raster_group), UInt32(max(1, rows)), UInt32(plan.clusters_n))
        for number in range(min(most - len(order), rows * plan.clusters_n)):
            var found = raster.place(UInt32(number))
            order.append(numbers(above + Int(found.row), Int(found.column)))
        above += rows
    return object([member("rows", above), member("columns", plan.clusters_n), member("order", array(order))])


def arguments_json(config: LayerConfig, plan: LaunchPlan) -> String:
    """Returns the arguments of the kernel in the order of its parameters."""
    var promotion = l2_promotion(config)

    def argument(name: StaticString, kind: StaticString, members: List[String]) -> String:
        var first: List[String] = [string_member("name", name), string_member("kind", kind)]
        return object(first + members.copy())

    def map(name: StaticString, map: TensorMap) {imm promotion} -> String:
        var rows = map.row_bytes()
        var dims, strides = numbers(map.columns, map.rows), numbers(rows)
        var box = numbers(map.box_columns, map.box_rows)
        if map.windows > 0:
            dims, strides = numbers(map.columns, map.box_rows, map.windows), numbers(rows, rows)
            box = numbers(map.box_columns, map.box_rows, 1)
        var members: List[String] = [string_member("tensor", map.tensor), string_member("dtype", map.dtype)]
        members += [member("dims", dims), member("strides", strides), member("box", box)]
        members.append(member("offset", -map.box_rows * rows if map.windows > 0 else 0))
        var swizzle = String(map.swizzle_bytes(), "B") if map.swizzle_bytes() > 0 else String("none")
        members += [string_member("swizzle", swizzle), member("l2_promotion", promotion)]
        return argument(name, "tensor_map", members)

    def scalar(name: StaticString, value: Int, type: StaticString = "u32") -> String:
        return argument(name, "scalar", [string_member("type", type), member("value", value)])

    def address(name: StaticString, is_taken: Bool, shape: List[Int], dtype: Word) -> String:
        """Returns a parameter that is the address of a tensor, or 0."""
        if not is_taken:
            return scalar(name, 0, "u64")
        return argument(name, "tensor", [string_member("dtype", dtype), member("shape", numbers(shape))])

    var workspace = scalar("workspace", 0, "u64")
    if plan.workspace > 0:
        var size: List[String] = [member("counters", plan.counters), member("bytes", plan.workspace)]
        workspace = argument("workspace", "workspace", size)

    var bias: List[Int] = [plan.groups, plan.n] if config.grouped else [plan.n]
    var fused: List[String] = [
        address("bias", config.fusion().takes_bias, bias, config.dtype_name()),
        address("residual", config.fusion().takes_residual, [plan.m, plan.n], config.dtype_name()),
        scalar("alpha", 1, "f32"),
        scalar("beta", 0, "f32"),
    ]
    if config.gemm.kernel.reads_directly:
        var direct = List[String]()
        direct.append(address("A", True, [plan.m, plan.k], plan.a.dtype))
        direct.append(address("B", True, [plan.n, plan.k], plan.b.dtype))
        direct.append(address("C", True, [plan.m, plan.c.columns], plan.c.dtype))
        direct += [scalar("m", plan.m), scalar("n", plan.n), scalar("row_bytes", plan.a.columns * plan.a.element_bytes)]
        direct += [scalar("a_pitch", plan.a.row_bytes()), scalar("b_pitch", plan.b.row_bytes())]
        direct.append(scalar("c_pitch", plan.c.row_bytes()))
        return array(direct + fused^)
    var found: List[String] = [map("a_map", plan.a), map("b_map", plan.b), map("c_map", plan.c)]
    if config.has_scale_factors():
        found.append(map("a_scales_map", plan.scales[0]))
        found.append(map("b_scales_map", plan.scales[1]))
    found.append(scalar("k_iterations", plan.k_iterations))
    found.append(scalar("m", plan.rows))
    found.append(scalar("n", plan.columns))
    found.append(workspace^)
    found += fused^
    var factor: Word = "f32"
    if config.out_scaling.factors > 0:
        factor = "ue8m0" if config.out_scaling.factors_are_powers_of_two() else "e4m3"
    found.append(address("factors", config.quantises(), plan.factors, factor))
    found.append(scalar("c_scale", 1, "f32"))
    found.append(address("sizes", config.grouped, [plan.groups], "s32"))
    found.append(scalar("groups", plan.groups))
    return array(found)


def plan_json(config: LayerConfig, plan: LaunchPlan, entry: String, sizes: List[Int] = []) -> String:
    """Returns the launch plan. `entry` is empty if the kernel is not compiled. `sizes` are the rows of the groups,
    which the host of a launch does not know."""
    var gemm = config.gemm
    var m = plan.m
    if config.masked:  # rows in memory
        m = 0
        for size in sizes:
            m += size
    var problem: List[String] = [member("m", m), member("n", plan.n), member("k", plan.k)]
    problem.append(member("groups", numbers(sizes)))
    if config.masked:
        problem.append(member("masked", plan.m // plan.groups))
    if plan.ld.a > 0 or plan.ld.b > 0 or plan.ld.c > 0:
        problem.append(member("ld", numbers(plan.ld.a, plan.ld.b, plan.ld.c)))
    return object(
        [
            member("schema", 1),
            string_member("kernel", gemm.kernel.name),
            string_member("arch", gemm.arch),
            member("entry", quoted(entry) if entry.byte_length() > 0 else String("null")),
            member("config", config_json(config)),
            member("problem", object(problem)),
            member("grid", numbers(plan.grid_x, plan.grid_y, plan.grid_z)),
            member("cluster", numbers(gemm.cluster_m, gemm.cluster_n, 1)),
            member("block", numbers(plan.block, 1, 1)),
            member("dynamic_smem", plan.dynamic_shared_memory),
            member("shared_memory", shared_memory_json(config)),
            member("tmem_columns", gemm.tmem_columns),
            member("tiles", tiles_json(config, plan, sizes)),
            member("roles", roles_json(config)),
            member("barriers", barriers_json(config)),
            member("multicast", multicast_json(config)),
            member("arguments", arguments_json(config, plan)),
        ]
    )
