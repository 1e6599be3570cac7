"""Instructions with which clusters share the tiles of a launch, and launches follow one another."""
from std.sys._assembly import inlined_assembly


# ---- cluster launch control ------------------------------------------------------------------------------------------
@inline(.always)
def try_cancel[multicast: Bool](response: UInt32, barrier: UInt32):
    """Requests to cancel a cluster of this grid that has not started, so that this cluster can compute its tile (PTX
    ISA 9.7.13.17). The hardware writes 16 bytes to `response` and counts them on `barrier`; with `multicast`, at these
    offsets in every CTA of the cluster. One thread calls this."""
    comptime to = ".multicast::cluster::all" if multicast else ""
    inlined_assembly[
        String(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes", to, ".b128 [$0], [$1];"
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](response, barrier)


comptime NOTHING_CANCELED = ~UInt32(0)


@inline(.always)
def canceled_cluster_x(response: UInt32) -> UInt32:
    """Returns blockIdx.x of the first CTA of the canceled cluster in a response, or NOTHING_CANCELED."""
    return inlined_assembly[
        (
            "{ .reg .b128 answer; .reg .pred granted; ld.shared.b128 answer, [$1];"
            " clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, answer; mov.b32 $0, -1;"
            " @granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, answer; }"
        ),
        UInt32,
        constraints="=&r,r,~{memory}",
    ](response)


# ---- responses ------------------------------------------------------------------------------------------------------
@inline(.always)
def store_async(address: UInt32, value: UInt32, barrier: UInt32):
    """Stores 4 bytes to shared memory of any CTA of the cluster, asynchronously. A barrier of that CTA counts them when
    they have arrived (PTX ISA 9.7.9.12)."""
    inlined_assembly[
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$0], $1, [$2];",
        NoneType,
        constraints="r,r,r,~{memory}",
    ](address, value, barrier)


# ---- launches ------------------------------------------------------------------------------------------------------
@inline(.always)
def launch_dependents():
    """Lets the next launch of the stream start, if it has the attribute for it (PTX ISA 9.7.13.13). The instruction is
    not convergent, and executing it twice is harmless."""
    inlined_assembly["griddepcontrol.launch_dependents;", NoneType, constraints="~{memory}"]()


@inline(.always)
def griddepcontrol_wait():
    """Waits until the grids that this launch depends on have ended and their writes are visible (PTX ISA 9.7.13.13)."""
    inlined_assembly["griddepcontrol.wait;", NoneType, constraints="~{memory}"]()
