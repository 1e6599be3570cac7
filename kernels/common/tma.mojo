"""TMA: copies of boxes between global and shared memory by tensor map (PTX ISA 9.7.9.27), and bulk groups of stores.

Rows and columns count elements of the tensor map."""
from max.gpu.host.nvidia.tma import TMADescriptor
from std.sys._assembly import inlined_assembly


@inline(.always)
def tensor_map_address(map: Pointer[TMADescriptor, _]) -> UInt64:
    """Returns the address of a tensor map, which is a parameter of the kernel."""
    return UInt64(Int(map))


@inline(.always)
def prefetch_tensor_map(map: UInt64):
    """Prefetches a tensor map for later copies."""
    inlined_assembly["prefetch.tensormap [$0];", NoneType, constraints="l,~{memory}"](map)


@inline(.always)
def tma_load[
    cta_group: Int, multicast: Bool
](destination: UInt32, map: UInt64, barrier: UInt32, column: Int32, row: Int32, mask: UInt16):
    """Starts to copy one box to `destination` in shared memory; `barrier` counts its bytes (PTX ISA 9.7.9.27).

    With `multicast`, every CTA of `mask` receives the box, and its barrier the signal, at the same offsets. With
    `cta_group` 2, the signal goes to that CTA of the receiver's pair that has the parity of the CTA of `barrier`.
    """
    comptime group = ".cta_group::2" if cta_group == 2 else ""
    comptime copy = String(
        "cp.async.bulk.tensor.2d", group, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    )
    comptime if multicast:
        inlined_assembly[
            copy + ".multicast::cluster [$0], [$1, {$3, $4}], [$2], $5;", NoneType, constraints="r,l,r,r,r,h,~{memory}"
        ](destination, map, barrier, column, row, mask)
    else:
        inlined_assembly[copy + " [$0], [$1, {$3, $4}], [$2];", NoneType, constraints="r,l,r,r,r,~{memory}"](
            destination, map, barrier, column, row
        )


@inline(.always)
def tma_store(source: UInt32, map: UInt64, column: Int32, row: Int32):
    """Starts to copy one box to global memory, clipped to the tensor, in this thread's open bulk group."""
    inlined_assembly[
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$1, {$2, $3}], [$0];",
        NoneType,
        constraints="r,l,r,r,~{memory}",
    ](source, map, column, row)


@inline(.always)
def tma_commit_group():
    """Closes this thread's bulk group of TMA stores (PTX ISA 9.7.9.25)."""
    inlined_assembly["cp.async.bulk.commit_group;", NoneType, constraints="~{memory}"]()


@inline(.always)
def tma_wait_group_read[pending: Int]():
    """Waits until at most `pending` of this thread's newest bulk groups still read shared memory."""
    inlined_assembly[String("cp.async.bulk.wait_group.read ", pending, ";"), NoneType, constraints="~{memory}"]()
