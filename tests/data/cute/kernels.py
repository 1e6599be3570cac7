"""CuTe DSL kernels for the tests of the emulator. ``python kernels.py`` compiles them, with CuTe DSL 4.8 and no GPU."""

import tempfile
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass import memory, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_ptr
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import blackwell_helpers, blockscaled_layout, hopper_helpers

STAGES = 3
# Totals of a CTA in tensor memory.
TOTALS = 2
THREADS = 128
# Numbers of A and B that share a scale factor.
BLOCK = 16
# Columns of D that a thread takes from tensor memory at a time.
SLICE = 32


@cute.kernel
def axpy_kernel(scale: cutlass.Float32, x: cute.Tensor, y: cute.Tensor):
    """y = scale * x + y, masked at the end."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    if at < y.shape[0]:
        y[at] = scale * x[at] + y[at]


@cute.jit
def axpy(scale: cutlass.Float32, x: cute.Tensor, y: cute.Tensor):
    axpy_kernel(scale, x, y).launch(grid=[cute.ceil_div(y.shape[0], THREADS), 1, 1], block=[THREADS, 1, 1])


@cute.struct
class Barriers:
    """In shared memory, before the tiles."""

    tiles: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    total: cute.struct.MemRange[cutlass.Int64, 2 * TOTALS]
    leave: cutlass.Int64
    tmem: cutlass.Int32


@cute.jit
def store_total(total: cute.Tensor, result: cute.Tensor, thread: cutlass.Int32):
    """From tensor memory to C, some columns at a time."""
    slices = ((cute.size(total, mode=[0, 0]), SLICE),)
    totals, results = cute.zipped_divide(total, slices), cute.zipped_divide(result, slices)
    load = tcgen05.make_tmem_copy(
        cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(SLICE)), cutlass.Float32), totals[None, 0]
    )
    mine = load.get_slice(thread)
    source, target = mine.partition_S(totals), mine.partition_D(results)
    values = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
    rounded = cute.make_rmem_tensor(values.shape, result.element_type)
    for i in cutlass.range(cute.size(source, mode=[2]), unroll=1):
        cute.copy(load, source[None, None, i], values)
        cute.arch.fence_view_async_tmem_load()
        rounded.store(values.load().to(result.element_type))
        cute.autovec_copy(rounded, target[None, None, i])


@cute.jit
def allocate(barriers: Barriers, threads: cutlass.Constexpr, columns: cutlass.Constexpr, pair: cutlass.Constexpr):
    """Columns of tensor memory, which warp 0 allocates, for all threads of the CTA."""
    tmem = memory.TmemAllocator(
        barriers.tmem.ptr,
        barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=threads),
        is_two_cta=pair,
        two_cta_tmem_dealloc_mbar_ptr=barriers.leave.ptr,
    )
    tmem.allocate(columns)
    return tmem


@cute.kernel
def gemm_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    c: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    ctas: cute.Layout,
    tile: cutlass.Constexpr,
    element: cutlass.Constexpr,
):
    """C = A @ B.T by tcgen05: the clusters of the grid share out its tiles. Warps 0 to 3 store, 4 loads, 5 multiplies.

    ``ctas`` is the cluster: the CTAs of an MMA (1 or 2), then MMAs down and across, which share what they load. Of
    tensor memory there are two totals: one is stored while the other one is computed.
    """
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    _, _, first = cute.arch.block_idx()
    _, _, clusters = cute.arch.grid_dim()
    group, down, across = (cute.size(ctas, mode=[i]) for i in range(3))
    place = ctas.get_flat_coord(cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()))

    shared = memory.SmemAllocator()
    barriers = shared.allocate(Barriers)
    tiles_a = shared.allocate_tensor(element, layout_a.outer, 1024, layout_a.inner)
    tiles_b = shared.allocate_tensor(element, layout_b.outer, 1024, layout_b.inner)
    if cutlass.const_expr(group == 2):
        # A pair allocates tensor memory together: the peer must have started.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    # Before the pipelines, which end on a barrier of the cluster: a peer that leaves early must find the mbarrier.
    tmem = allocate(barriers, THREADS + 64, TOTALS * tile[1], cutlass.const_expr(group == 2))
    stage_bytes = sum(cute.size_in_bytes(element, cute.select(x, mode=[0, 1, 2])) for x in (layout_a, layout_b))

    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    filling, reading = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=one,
        # A CTA's tiles come from all MMAs in its row and its column of the cluster: each of them frees a stage.
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, down + across - 1),
        tx_count=group * stage_bytes,
        barrier_storage=barriers.tiles.data_ptr(),
        cta_layout_vmnk=ctas,
    ).make_participants()
    summing, taking = pipeline.PipelineUmmaAsync.create(
        num_stages=TOTALS,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, group * THREADS),
        barrier_storage=barriers.total.data_ptr(),
        cta_layout_vmnk=ctas,
    ).make_participants()

    part = mma.get_slice(place[0])
    rows = part.partition_A(cute.local_tile(a, (tile[0], tile[2]), (None, None)))
    columns = part.partition_B(cute.local_tile(b, (tile[1], tile[2]), (None, None)))
    results = part.partition_C(cute.local_tile(c, tile[:2], (None, None)))
    to_a, from_a = cpasync.tma_partition(
        load_a, place[2], cute.make_layout(across), cute.group_modes(tiles_a, 0, 3), cute.group_modes(rows, 0, 3)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, place[1], cute.make_layout(down), cute.group_modes(tiles_b, 0, 3), cute.group_modes(columns, 0, 3)
    )
    mask_a = mask_b = None
    if cutlass.const_expr(cute.size(ctas) > 1):
        mask_a = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=2)
        mask_b = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=1)
    left, right = mma.make_fragment_A(tiles_a), mma.make_fragment_B(tiles_b)

    tmem.wait_for_alloc()
    columns_of_tmem = tmem.retrieve_ptr(cutlass.Float32)
    shape_of_totals = cute.append(mma.partition_shape_C(tile[:2]), TOTALS)
    totals = cute.make_tensor(columns_of_tmem, mma.make_fragment_C(shape_of_totals).layout)

    steps = cute.size(rows, mode=[4])
    # Of clusters, down the matrix and in all.
    of_clusters = cute.size(results, mode=[3]) // down
    count = of_clusters * (cute.size(results, mode=[4]) // across)
    if warp == THREADS // 32:
        for at in cutlass.range(first, count, clusters, unroll=1):
            row, column = at % of_clusters * down + place[1], at // of_clusters * across + place[2]
            for step in cutlass.range(steps, unroll=1):
                stage = filling.acquire_and_advance()
                full = stage.barrier
                cute.copy(load_a, from_a[None, row, step], to_a[None, stage.index], tma_bar_ptr=full, mcast_mask=mask_a)
                cute.copy(
                    load_b, from_b[None, column, step], to_b[None, stage.index], tma_bar_ptr=full, mcast_mask=mask_b
                )
        filling.tail()
    if warp == THREADS // 32 + 1 and place[0] == 0:
        for _ in cutlass.range(first, count, clusters, unroll=1):
            whole = summing.acquire_and_advance()
            mma.set(tcgen05.Field.ACCUMULATE, False)
            total = totals[None, None, None, whole.index]
            for _ in cutlass.range(steps, unroll=1):
                stage = reading.wait_and_advance()
                for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
                    where = (None, None, block, stage.index)
                    cute.gemm(mma, total, left[where], right[where], total)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                stage.release()
            whole.commit()
        summing.tail()
    if warp < THREADS // 32:
        tmem.relinquish_alloc_permit()
        for at in cutlass.range(first, count, clusters, unroll=1):
            row, column = at % of_clusters * down + place[1], at // of_clusters * across + place[2]
            ready = taking.wait_and_advance()
            store_total(totals[None, None, None, ready.index], results[None, None, None, row, column], thread)
            ready.release()
    pipeline.sync(barrier_id=1)
    tmem.free(columns_of_tmem)


@cute.jit
def gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    tile: cutlass.Constexpr,
    cluster: cutlass.Constexpr,
    group: cutlass.Constexpr,
    clusters: cutlass.Int32,
):
    """Of row-major A (M x K), B (N x K) and C (M x N), which whole tiles of whole clusters cover."""
    element = a.element_type
    ways = (tcgen05.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K)
    shape, ctas_of_mma = (tile[0], tile[1], 256 // element.width), tcgen05.CtaGroup(group)
    if cutlass.const_expr(element.width == 8):
        op = tcgen05.MmaF8F6F4Op(element, element, cutlass.Float32, shape, ctas_of_mma, *ways)
    else:
        op = tcgen05.MmaF16BF16Op(element, cutlass.Float32, shape, ctas_of_mma, *ways)
    mma = cute.make_tiled_mma(op)
    layout_a = blackwell_helpers.make_smem_layout_a(mma, tile, element, STAGES)
    layout_b = blackwell_helpers.make_smem_layout_b(mma, tile, element, STAGES)
    ctas = cute.tiled_divide(cute.make_layout((*cluster, 1)), (mma.thr_id.shape,))
    alone = cutlass.const_expr(cluster == (1, 1))
    copy = (cpasync.CopyBulkTensorTileG2SOp if alone else cpasync.CopyBulkTensorTileG2SMulticastOp)(ctas_of_mma)
    load_a, tensor_a = cute.nvgpu.make_tiled_tma_atom_A(
        copy, a, cute.select(layout_a, mode=[0, 1, 2]), tile, mma, ctas.shape
    )
    load_b, tensor_b = cute.nvgpu.make_tiled_tma_atom_B(
        copy, b, cute.select(layout_b, mode=[0, 1, 2]), tile, mma, ctas.shape
    )
    gemm_kernel(mma, load_a, tensor_a, load_b, tensor_b, c, layout_a, layout_b, ctas, tile, element).launch(
        grid=(*cluster, clusters),
        block=(THREADS + 64, 1, 1),
        cluster=(*cluster, 1),
        smem=shared_bytes(tile, element, group),
    )


@cute.struct
class StageBarriers:
    """In shared memory, before the tiles."""

    tiles: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]


@cute.kernel
def persistent_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    c: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    tile: cutlass.Constexpr,
    element: cutlass.Constexpr,
):
    """C = A @ B.T by wgmma: the CTAs of the grid share out its tiles. Warps 0 to 3 multiply and store, warp 4 loads."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()

    shared = memory.SmemAllocator()
    barriers = shared.allocate(StageBarriers)
    tiles_a = shared.allocate_tensor(element, layout_a.outer, 1024, layout_a.inner)
    tiles_b = shared.allocate_tensor(element, layout_b.outer, 1024, layout_b.inner)
    filling, reading = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS),
        tx_count=sum(cute.size_in_bytes(element, cute.select(x, mode=[0, 1])) for x in (layout_a, layout_b)),
        barrier_storage=barriers.tiles.data_ptr(),
        enable_multicast_signaling=True,
    ).make_participants()

    rows = cute.local_tile(a, (tile[0], tile[2]), (None, None))
    columns = cute.local_tile(b, (tile[1], tile[2]), (None, None))
    results = cute.local_tile(c, tile[:2], (None, None))
    alone = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, alone, cute.group_modes(tiles_a, 0, 2), cute.group_modes(rows, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, alone, cute.group_modes(tiles_b, 0, 2), cute.group_modes(columns, 0, 2)
    )
    steps, down = cute.size(rows, mode=[3]), cute.size(results, mode=[2])
    count = down * cute.size(results, mode=[3])

    if warp == THREADS // 32:
        for at in cutlass.range(first, count, ctas, unroll=1):
            row, column = at % down, at // down
            for step in cutlass.range(steps, unroll=1):
                stage = filling.acquire_and_advance()
                full = stage.barrier
                cute.copy(load_a, from_a[None, row, step], to_a[None, stage.index], tma_bar_ptr=full)
                cute.copy(load_b, from_b[None, column, step], to_b[None, stage.index], tma_bar_ptr=full)
        filling.tail()
    if warp < THREADS // 32:
        mine = mma.get_slice(thread)
        left = mma.make_fragment_A(mine.partition_A(tiles_a))
        right = mma.make_fragment_B(mine.partition_B(tiles_b))
        targets = mine.partition_C(results)
        total = cute.make_rmem_tensor(targets[None, None, None, 0, 0].shape, cutlass.Float32)
        rounded = cute.make_rmem_tensor(total.shape, c.element_type)
        for at in cutlass.range(first, count, ctas, unroll=1):
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for _ in cutlass.range(steps, unroll=1):
                stage = reading.wait_and_advance()
                warpgroup.fence()
                for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
                    where = (None, None, block, stage.index)
                    cute.gemm(mma, total, left[where], right[where], total)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                stage.release()
            rounded.store(total.load().to(c.element_type))
            cute.autovec_copy(rounded, targets[None, None, None, at % down, at // down])


@cute.jit
def persistent(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, ctas: cutlass.Int32, tile: cutlass.Constexpr):
    """Of row-major A (M x K), B (N x K) and C (M x N), which whole tiles cover."""
    element = a.element_type
    mma = hopper_helpers.make_trivial_tiled_mma(
        element, element, OperandMajorMode.K, OperandMajorMode.K, cutlass.Float32, (tile[0] // 64, 1, 1), (64, tile[1])
    )
    layout_a = hopper_helpers.make_smem_layout_a(LayoutEnum.from_tensor(a), tile, element, STAGES)
    layout_b = hopper_helpers.make_smem_layout_b(LayoutEnum.from_tensor(b), tile, element, STAGES)
    copy = cpasync.CopyBulkTensorTileG2SOp()
    load_a, tensor_a = cpasync.make_tiled_tma_atom(copy, a, cute.select(layout_a, mode=[0, 1]), (tile[0], tile[2]))
    load_b, tensor_b = cpasync.make_tiled_tma_atom(copy, b, cute.select(layout_b, mode=[0, 1]), (tile[1], tile[2]))
    persistent_kernel(mma, load_a, tensor_a, load_b, tensor_b, c, layout_a, layout_b, tile, element).launch(
        grid=(ctas, 1, 1), block=(THREADS + 32, 1, 1), smem=shared_bytes(tile, element, 1)
    )


@cute.kernel
def scaled_kernel(
    mma: cute.TiledMma,
    loads: list,
    tensors: list,
    c: cute.Tensor,
    layouts: list,
    tile: cutlass.Constexpr,
):
    """A tile of C = (scale_a * A) @ (scale_b * B).T: warp 0 loads, warp 1 copies the scale factors and multiplies."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    row, column, _ = cute.arch.block_idx()

    shared = memory.SmemAllocator()
    barriers = shared.allocate(Barriers)
    # Of A, of B, and of the scale factors of each; so are all lists here.
    elements = (cutlass.Float4E2M1FN, cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float8E4M3FN)
    tiles = [shared.allocate_tensor(e, x.outer, 1024, x.inner) for e, x in zip(elements[:2], layouts[:2], strict=True)]
    tiles += [shared.allocate_tensor(e, x, 1024) for e, x in zip(elements[2:], layouts[2:], strict=True)]

    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    filling, reading = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=one,
        consumer_group=one,
        tx_count=sum(
            cute.size_in_bytes(e, cute.select(x, mode=[0, 1, 2])) for e, x in zip(elements, layouts, strict=True)
        ),
        barrier_storage=barriers.tiles.data_ptr(),
    ).make_participants()
    summing, taking = pipeline.PipelineUmmaAsync.create(
        num_stages=1,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS),
        barrier_storage=barriers.total.data_ptr(),
    ).make_participants()
    tmem = allocate(barriers, THREADS, 256, False)

    part = mma.get_slice(0)
    to, of = [], []
    for i in cutlass.range_constexpr(4):
        is_a = i % 2 == 0
        rest = (row if is_a else column, None)
        area = cute.local_tile(tensors[i], (tile[0 if is_a else 1], tile[2]), rest)
        parts = part.partition_A(area) if cutlass.const_expr(is_a) else part.partition_B(area)
        target, source = cpasync.tma_partition(
            loads[i], 0, cute.make_layout(1), cute.group_modes(tiles[i], 0, 3), cute.group_modes(parts, 0, 3)
        )
        to.append(cute.filter_zeros(target))
        of.append(cute.filter_zeros(source))
    result = part.partition_C(cute.local_tile(c, tile[:2], (row, column)))
    left, right = mma.make_fragment_A(tiles[0]), mma.make_fragment_B(tiles[1])

    tmem.wait_for_alloc()
    pointer = tmem.retrieve_ptr(cutlass.Float32)
    total = cute.make_tensor(pointer, mma.make_fragment_C(mma.partition_shape_C(tile[:2])).layout)
    copies, staged, to_tmem, factors = [], [], [], []
    column_of = tcgen05.find_tmem_tensor_col_offset(total)
    makers = (blockscaled_layout.make_tmem_layout_sfa, blockscaled_layout.make_tmem_layout_sfb)
    for i in cutlass.range_constexpr(2):
        layout = makers[i](mma, tile, BLOCK, cute.slice_(layouts[2 + i], (None, None, None, 0)))
        factor = cute.make_tensor(cute.recast_ptr(pointer + column_of, dtype=elements[2]), layout)
        column_of = column_of + tcgen05.find_tmem_tensor_col_offset(factor)
        compact = cute.filter_zeros(factor)
        copy = tcgen05.make_s2t_copy(
            cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), elements[2]), compact
        )
        mine = copy.get_slice(0)
        staged.append(tcgen05.get_s2t_smem_desc_tensor(copy, mine.partition_S(cute.filter_zeros(tiles[2 + i]))))
        to_tmem.append(mine.partition_D(compact))
        copies.append(copy)
        factors.append(factor)

    steps = cute.size(of[0], mode=[1])
    if warp == 0:
        for step in cutlass.range(steps, unroll=1):
            stage = filling.acquire_and_advance()
            for i in cutlass.range_constexpr(4):
                cute.copy(loads[i], of[i][None, step], to[i][None, stage.index], tma_bar_ptr=stage.barrier)
        filling.tail()
    if warp == 1:
        whole = summing.acquire_and_advance()
        for _ in cutlass.range(steps, unroll=1):
            stage = reading.wait_and_advance()
            cute.copy(copies[0], staged[0][None, None, None, None, stage.index], to_tmem[0])
            cute.copy(copies[1], staged[1][None, None, None, None, stage.index], to_tmem[1])
            for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
                mma.set(tcgen05.Field.SFA, factors[0][None, None, block].iterator)
                mma.set(tcgen05.Field.SFB, factors[1][None, None, block].iterator)
                where = (None, None, block, stage.index)
                cute.gemm(mma, total, left[where], right[where], total)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            stage.release()
        whole.commit()
    tmem.relinquish_alloc_permit()

    ready = taking.wait_and_advance()
    store_total(total, result, thread)
    ready.release()
    pipeline.sync(barrier_id=1)
    tmem.free(pointer)


@cute.jit
def scaled(
    a: cute.Tensor,
    b: cute.Tensor,
    scale_a: cute.Pointer,
    scale_b: cute.Pointer,
    c: cute.Tensor,
    tile: cutlass.Constexpr,
):
    """Of row-major A (M x K), B (N x K) and C (M x N), which whole tiles cover.

    The scale factors of 128 rows and 4 blocks lie together, in the order in which tcgen05.cp.32x128b takes them.
    """
    element = a.element_type
    mma = cute.make_tiled_mma(
        tcgen05.MmaMXF4NVF4Op(
            cutlass.Float8E4M3FN, (tile[0], tile[1], 64), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        )
    )
    chunk = blockscaled_layout.BlockScaledBasicChunk(BLOCK).layout
    factors = [
        cute.make_tensor(at, cute.tile_to_shape(chunk, x.shape, (2, 1))) for at, x in ((scale_a, a), (scale_b, b))
    ]
    layouts = [
        blackwell_helpers.make_smem_layout_a(mma, tile, element, STAGES),
        blackwell_helpers.make_smem_layout_b(mma, tile, element, STAGES),
        blockscaled_layout.make_smem_layout_sfa(mma, tile, BLOCK, STAGES),
        blockscaled_layout.make_smem_layout_sfb(mma, tile, BLOCK, STAGES),
    ]
    copy = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    loads, tensors = [], []
    for i, x in enumerate((a, b, *factors)):
        make = cute.nvgpu.make_tiled_tma_atom_A if i % 2 == 0 else cute.nvgpu.make_tiled_tma_atom_B
        layout = cute.slice_(layouts[i], (None, None, None, 0))
        more = {"internal_type": cutlass.Int16} if i >= 2 else {}
        load, tensor = make(copy, x, layout, tile, mma, (1, 1, 1, 1), **more)
        loads.append(load)
        tensors.append(tensor)
    down, across = cute.ceil_div(c.shape, tile[:2])
    scaled_kernel(mma, loads, tensors, c, layouts, tile).launch(
        grid=(down, across, 1), block=(THREADS, 1, 1), smem=shared_bytes_scaled(tile)
    )


def shared_bytes(tile: tuple[int, int, int], element: type, group: int) -> int:
    """Of dynamic shared memory: the barriers, and the stages of a CTA's part of A and B, 1024 bytes aligned."""
    m, n, k = tile
    return 1024 + STAGES * (m + n) // group * k * element.width // 8


def shared_bytes_scaled(tile: tuple[int, int, int]) -> int:
    """The same for numbers of 4 bits, and a scale factor of a byte for each BLOCK of them."""
    m, n, k = tile
    return 1024 + STAGES * (m + n) * (k // 2 + k // BLOCK)


# Element of A and B, element of C, tile (of an MMA), cluster, CTAs of an MMA.
GEMMS = {
    "gemm_bf16": (cutlass.BFloat16, cutlass.BFloat16, (128, 64, 64), (1, 1), 1),
    "gemm_fp8": (cutlass.Float8E4M3FN, cutlass.Float32, (128, 64, 128), (1, 1), 1),
    "gemm_f16_pairs": (cutlass.Float16, cutlass.Float32, (256, 64, 64), (4, 2), 2),
}
# Tile.
SCALED = {"scaled_nvfp4": (128, 128, 256)}
# Element of A and B, element of C, tile.
PERSISTENT = {
    "persistent_f16": (cutlass.Float16, cutlass.Float16, (64, 64, 64)),
    "persistent_fp8": (cutlass.Float8E4M3FN, cutlass.Float32, (64, 64, 128)),
}
KERNELS = [
    ("axpy", "90a"),
    ("axpy", "100a"),
    *((name, "100a") for name in (*GEMMS, *SCALED)),
    *((name, "90a") for name in PERSISTENT),
]


def matrices(element: type, of_c: type, tile: tuple[int, int, int]) -> list:
    """A, B and C, row-major, of any number of whole tiles."""
    m, n, k = (cute.sym_int(divisibility=size) for size in tile)
    return [
        make_fake_compact_tensor(dtype, shape, stride_order=(1, 0), assumed_align=32)
        for dtype, shape in ((element, (m, k)), (element, (n, k)), (of_c, (m, n)))
    ]


def compiled(name: str, arch: str) -> tuple[str, int]:
    """The PTX, and the bytes of dynamic shared memory that a launch needs."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch sm_{arch} --keep-ptx --dump-dir {folder}"
        if name in GEMMS:
            element, of_c, tile, cluster, group = GEMMS[name]
            one = cutlass.Int32(1)
            done = cute.compile(gemm, *matrices(element, of_c, tile), tile, cluster, group, one, options=options)
            return done.__ptx__, shared_bytes(tile, element, group)
        if name in SCALED:
            tile = SCALED[name]
            a, b, c = matrices(cutlass.Float4E2M1FN, cutlass.Float32, tile)
            factors = [make_ptr(cutlass.Float8E4M3FN, 0, cute.AddressSpace.gmem, assumed_align=32) for _ in range(2)]
            done = cute.compile(scaled, a, b, *factors, c, tile, options=options)
            return done.__ptx__, shared_bytes_scaled(tile)
        if name in PERSISTENT:
            element, of_c, tile = PERSISTENT[name]
            one = cutlass.Int32(1)
            done = cute.compile(persistent, *matrices(element, of_c, tile), one, tile, options=options)
            return done.__ptx__, shared_bytes(tile, element, 1)
        vectors = [make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),)) for _ in range(2)]
        return cute.compile(axpy, cutlass.Float32(1), *vectors, options=options).__ptx__, 0


def main() -> None:
    for name, arch in KERNELS:
        text, shared = compiled(name, arch)
        head = f"// CuTe DSL {cutlass.__version__}, {name}, sm_{arch}: {shared} bytes of shared memory\n"
        path = Path(__file__).parent / f"{name}_sm{arch.rstrip('a')}.ptx"
        path.write_text(head + text.rstrip("\0\n") + "\n")
        print(path.name, shared)


if __name__ == "__main__":
    main()
