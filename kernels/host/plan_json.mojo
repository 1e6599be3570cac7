"""The launch plan as JSON (schema 1), for programs that launch, emulate or explain the kernel. It has numbers and
names; harness/compile/plan_words.py has the sentences about them. Tensor maps list dimensions innermost first, as
cuTensorMapEncodeTiled takes them (CUDA driver API): dims and boxes in elements, strides in bytes."""
from ..common.config import SharedMemory
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from .json import Json, numbers, object
from ..common.series import find_kernel
from .label import label
from .launch_plan import LaunchPlan, TensorMap, l2_promotion
from ..common.multicast import Slices
from ..common.raster import Raster
from ..common.word import Word
from std.math import ceildiv


def config_json(config: LayerConfig) -> Json:
    """Returns all options of a configuration."""
    var gemm = config.gemm
    return object(
        dtype=config.dtype_name(),
        scales=config.scales,
        out_dtype=config.c_dtype_name(),
        mma_shape=numbers(gemm.mma_m, gemm.mma_n, config.scaling.mma_k()),
        cta_group=gemm.cta_group,
        block_k=config.block_k(),
        stages=gemm.stages,
        cluster=numbers(gemm.cluster_m, gemm.cluster_n),
        epilogue_width=gemm.epilogue_width,
        band_m=gemm.band_m,
        scheduler=gemm.scheduler,
        raster_group=gemm.raster_group,
        accumulators=config.accumulators,
        clc_depth=config.clc_depth,
        sms=config.sms,
        ping_pong=config.ping_pong,
        split_k=config.split_k,
        layout=config.layout,
        swapped=config.swapped,
        grouped=config.grouped,
        masked=config.masked,
        multicast=gemm.multicast,
        epilogue=config.fusion().name,
        label=label(config),
    )


def shared_memory_json(config: LayerConfig) -> List[Json]:
    """Returns the parts of shared memory in order. `count`: equal pieces, or 0 for barriers (`barriers_json`)."""
    var gemm = config.gemm

    def part(name: Word, bytes: Int, count: Int) -> Json:
        return object(name=name, bytes=bytes, count=count)

    def stages(name: Word, bytes: Int) {imm gemm} -> Json:
        return part(name, gemm.stages * bytes, gemm.stages)

    if gemm.kernel.reads_directly:
        return [part("partial sums", config.shared_memory_bytes(), 1)]
    var has_steps = gemm.c_bytes() < gemm.cta_m() * gemm.mma_n * element_bytes(gemm.out_dtype)
    var parts: List[Json] = [
        stages("A stages", gemm.a_bytes()),
        stages("B stages", gemm.b_bytes()),
        part("C tile", gemm.c_bytes(), gemm.c_buffers() if has_steps else 1),
    ]
    if config.has_scale_factors():
        parts.append(stages("A scale stages", config.a_scale_bytes()))
        parts.append(stages("B scale stages", config.b_scale_bytes()))
    var kernel = find_kernel(gemm.kernel.name)
    for i in range(kernel.buffer_count):
        parts.append(part(kernel.buffers[i].name, kernel.buffers[i].bytes, 1))
    parts.append(part("barriers", config.shared_memory_bytes() - SharedMemory(gemm).responses, 0))
    return parts^


def roles_json(config: LayerConfig) -> List[Json]:
    """Returns the roles of a CTA and their warps."""
    var gemm = config.gemm

    def warps(first: Int, count: Int) -> List[Int]:
        return [warp for warp in range(first, first + count)]

    def role(name: StaticString, first: Int, count: Int) {} -> Json:
        return object(name=name, warps=warps(first, count))

    if gemm.kernel.reads_directly:
        return [role("all", 0, config.split_k)]
    var roles: List[Json] = [role("set-up", 0, 1)]
    if gemm.has_tmem():
        if not gemm.kernel.pipelined:
            return roles + [role("load and mma", 0, 1), role("epilogue", 0, 4)]
        roles += [role("epilogue", 0, 4), role("producer", 4, 1), role("mma", 5, 1)]
        if gemm.fetches_tiles():
            roles.append(role("scheduler", 6, 1))
        return roles^
    var count = 4 * gemm.consumers
    roles.append(object(name="consumers", warps=warps(0, count), defers_epilogue=config.defers_epilogue()))
    roles.append(role("producer", count, 4) if gemm.kernel.pipelined else role("load", 0, 1))
    if gemm.counts_tiles():
        roles.append(role("scheduler", count + 1, 1))
    return roles^


def barriers_json(config: LayerConfig) -> List[Json]:
    """Returns the offsets of the barriers, and the arrivals and announced bytes that complete a phase of each."""
    var gemm = config.gemm
    if gemm.kernel.reads_directly:
        return []
    var layout = SharedMemory(gemm)

    def barrier(name: StaticString, offset: Int, count: Int, arrivals: Int, bytes: Int = 0) -> Json:
        return object(name=name, offset=offset, count=count, arrivals=arrivals, bytes=bytes)

    var found: List[Json] = [
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
        found.append(
            object(
                name=one.name,
                offset=layout.declared_barriers + kernel.offset_of(one),
                count=one.count,
                arrivals=one.arrivals,
                bytes=one.bytes,
                arrives=one.arrives,
                waits=one.waits,
            )
        )
    return found^


def multicast_json(config: LayerConfig) -> List[Json]:
    """Returns the masks of each CTA, and the first line (K-major: row) of each box that it loads in the tile."""
    var gemm = config.gemm
    var sharing = gemm.sharing()

    def rows(slices: Slices, part: UInt32) -> List[Int]:
        return [box * slices.box_lines() for box in range(Int(part), slices.boxes(), slices.parts)]

    var ranks = List[Json]()
    for i in range(gemm.cluster_size()):
        var rank = UInt32(i)
        ranks.append(
            object(
                rank=i,
                a=Int(sharing.a_mask(rank)),
                b=Int(sharing.b_mask(rank)),
                commit=Int(sharing.writer_mask(rank)),
                a_rows=rows(gemm.a_slices(), sharing.a_part(rank)),
                b_rows=rows(gemm.b_slices(), sharing.b_part(rank)),
            )
        )
    return ranks^


def tiles_json(config: LayerConfig, plan: LaunchPlan, sizes: List[Int]) -> Json:
    """Returns the first tiles in the order of the raster, as [row, column] in cluster tiles; null for kernels that are
    not persistent. With split-K, the parts of a tile follow one another; each group has rows of its own."""
    var gemm = config.gemm
    if not gemm.kernel.is_persistent:
        return Json(text="null")
    comptime most = 512
    var order = List[Json]()
    var above = 0
    for size in sizes.copy() if len(sizes) > 0 else [plan.rows]:
        var rows = ceildiv(size, gemm.cluster_rows())
        var raster = Raster(UInt32(gemm.raster_group), UInt32(max(1, rows)), UInt32(plan.clusters_n))
        for number in range(min(most - len(order), rows * plan.clusters_n)):
            var found = raster.place(UInt32(number))
            order.append(numbers(above + Int(found.row), Int(found.column)))
        above += rows
    return object(rows=above, columns=plan.clusters_n, order=order)


def map_json(name: StaticString, map: TensorMap, promotion: Int) -> Json:
    """Returns the parameter of a kernel that is a tensor map."""
    var row, offset = map.row_bytes(), 0
    var dims: Json = numbers(map.columns, map.rows)
    var strides: Json = numbers(row)
    var box: Json = numbers(map.box_columns, map.box_rows)
    if map.windows > 0:
        dims = numbers(map.columns, map.box_rows, map.windows)
        strides = numbers(row, row)
        box = numbers(map.box_columns, map.box_rows, 1)
        offset = -map.box_rows * row
    return object(
        name=name,
        kind="tensor_map",
        tensor=map.tensor,
        dtype=map.dtype,
        dims=dims,
        strides=strides,
        box=box,
        offset=offset,
        swizzle=String(map.swizzle_bytes(), "B") if map.swizzle_bytes() > 0 else String("none"),
        l2_promotion=promotion,
    )


def scalar_json(name: StaticString, value: Int, type: StaticString = "u32") -> Json:
    """Returns a parameter that is a number."""
    return object(name=name, kind="scalar", type=type, value=value)


def tensor_json(name: StaticString, is_taken: Bool, shape: List[Int], dtype: Word) -> Json:
    """Returns a parameter that is the address of a tensor, or 0."""
    if not is_taken:
        return scalar_json(name, 0, "u64")
    return object(name=name, kind="tensor", dtype=dtype, shape=shape)


def arguments_json(config: LayerConfig, plan: LaunchPlan) -> List[Json]:
    """Returns the arguments of the kernel in the order of its parameters."""
    var fusion, dtype = config.fusion(), config.dtype_name()
    var bias = numbers(plan.groups, plan.n) if config.grouped else numbers(plan.n)
    var fused: List[Json] = [
        tensor_json("bias", fusion.takes_bias, bias, dtype),
        tensor_json("residual", fusion.takes_residual, [plan.m, plan.n], dtype),
        scalar_json("alpha", 1, "f32"),
        scalar_json("beta", 0, "f32"),
    ]
    if config.gemm.kernel.reads_directly:
        var direct = List[Json]()
        for one in [plan.a.copy(), plan.b.copy(), plan.c.copy()]:
            direct.append(tensor_json(one.tensor, True, [one.rows, one.columns], one.dtype))
        direct += [scalar_json("m", plan.m), scalar_json("n", plan.n)]
        direct.append(scalar_json("row_bytes", plan.a.columns * plan.a.element_bytes))
        direct += [scalar_json("a_pitch", plan.a.row_bytes()), scalar_json("b_pitch", plan.b.row_bytes())]
        direct.append(scalar_json("c_pitch", plan.c.row_bytes()))
        return direct + fused^
    var promotion = l2_promotion(config)
    var found: List[Json] = [
        map_json("a_map", plan.a, promotion),
        map_json("b_map", plan.b, promotion),
        map_json("c_map", plan.c, promotion),
    ]
    if config.has_scale_factors():
        found.append(map_json("a_scales_map", plan.scales[0], promotion))
        found.append(map_json("b_scales_map", plan.scales[1], promotion))
    found.append(scalar_json("k_iterations", plan.k_iterations))
    found.append(scalar_json("m", plan.rows))
    found.append(scalar_json("n", plan.columns))
    if plan.workspace > 0:
        found.append(object(name="workspace", kind="workspace", counters=plan.counters, bytes=plan.workspace))
    else:
        found.append(scalar_json("workspace", 0, "u64"))
    found += fused^
    var factor: Word = "f32"
    if config.out_scaling.factors > 0:
        factor = "ue8m0" if config.out_scaling.factors_are_powers_of_two() else "e4m3"
    found.append(tensor_json("factors", config.quantises(), plan.factors, factor))
    found.append(scalar_json("c_scale", 1, "f32"))
    found.append(tensor_json("sizes", config.grouped, [plan.groups], "s32"))
    found.append(scalar_json("groups", plan.groups))
    return found^


def problem_json(config: LayerConfig, plan: LaunchPlan, sizes: List[Int]) -> Json:
    """Returns the sizes of the problem. With masked groups, `m` counts the rows to multiply, and each group has
    `masked` rows in memory."""
    var m = plan.m
    var ld = List[Int]()
    if plan.ld.a > 0 or plan.ld.b > 0 or plan.ld.c > 0:
        ld = [plan.ld.a, plan.ld.b, plan.ld.c]
    if config.masked:
        m = 0
        for size in sizes:
            m += size
    var masked = plan.m // plan.groups if config.masked else 0
    return object(m=m, n=plan.n, k=plan.k, groups=sizes.copy(), masked=masked, ld=ld)


def plan_json(config: LayerConfig, plan: LaunchPlan, sizes: List[Int]) -> Json:
    """Returns the launch plan. `sizes` are the rows of the groups, which the host of a launch does not know."""
    var gemm = config.gemm
    return object(
        schema=1,
        kernel=gemm.kernel.name,
        arch=gemm.arch,
        entry=Json(text="null"),
        config=config_json(config),
        problem=problem_json(config, plan, sizes),
        grid=numbers(plan.grid_x, plan.grid_y, plan.grid_z),
        cluster=numbers(gemm.cluster_m, gemm.cluster_n, 1),
        block=numbers(plan.block, 1, 1),
        dynamic_smem=plan.dynamic_shared_memory,
        shared_memory=shared_memory_json(config),
        tmem_columns=gemm.tmem_columns,
        tiles=tiles_json(config, plan, sizes),
        roles=roles_json(config),
        barriers=barriers_json(config),
        multicast=multicast_json(config),
        arguments=arguments_json(config, plan),
    )
