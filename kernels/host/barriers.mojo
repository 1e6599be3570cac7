"""The barriers of a CTA: where they lie, what completes a phase, who arrives and who waits, for the launch plan."""
from ..common.block_scaling import SCALE_SLOTS
from ..common.config import GemmConfig, SharedMemory
from .json import array, object, pair, text


def barrier(
    name: StaticString, offset: Int, count: Int, arrivals: Int, bytes: Int, arrives: StaticString, waits: StaticString
) -> String:
    var members: List[String] = [text("name", name), pair("offset", offset), pair("count", count)]
    members += [pair("arrivals", arrivals), pair("bytes", bytes), text("arrives", arrives), text("waits", waits)]
    return object(members)


def barriers_json(config: GemmConfig) -> String:
    var found = stage_barriers(config)
    if config.has_tmem():
        found += accumulator_barriers(config)
    if config.fetches_tiles():
        found += response_barriers(config)
    return array(found)


def stage_barriers(config: GemmConfig) -> List[String]:
    var layout = SharedMemory(config)
    var fills: StaticString = (
        "this CTA's loading thread, announcing the bytes; TMA delivers them, sent by the CTAs that share a tile"
    )
    var multiplies: StaticString = "the consumers"
    var releases: StaticString = "one thread of each consumer warpgroup that reads what this CTA loads into the stage"
    if config.promotes():
        releases = "one thread of each warp of the consumers that read what this CTA loads into the stage"
    if config.has_tmem():
        fills = (
            "the loading thread of the CTA that leads the MMA, announcing the bytes of all its CTAs; TMA delivers them"
        )
        multiplies = "the MMA thread"
        releases = "one commit of each MMA that reads what this CTA loads into the stage"
    return [
        barrier("full", layout.full, config.stages, 1, config.full_bytes(), fills, multiplies),
        barrier(
            "empty", layout.empty, config.stages, config.empty_arrivals(), 0, releases, "this CTA's loading thread"
        ),
    ]


def accumulator_barriers(config: GemmConfig) -> List[String]:
    """And that of scale factors in tensor memory."""
    var layout = SharedMemory(config)
    var count = config.accumulator_barriers()
    var name: StaticString = "accumulator full" if config.kernel.is_persistent else "accumulator"
    comptime finished = "the last commit of the MMA thread"
    var found: List[String] = [
        barrier(name, layout.accumulator_full, count, 1, 0, finished, "the epilogue warps"),
    ]
    var read: StaticString = "every epilogue warp of the CTAs of the MMA, after its last load from TMEM"
    if config.accumulators_overlap():
        read = "every epilogue warp of the CTAs of the MMA, after it has loaded the columns that the accumulators share"
    if config.kernel.is_persistent:
        var place = layout.accumulator_empty
        found.append(
            barrier("accumulator empty", place, count, config.accumulator_readers(), 0, read, "the MMA thread")
        )
    if config.kernel.is_block_scaled:
        comptime used = "a commit of the MMA thread, when the MMAs that use the slot are done"
        comptime copies = "the MMA thread, before it copies scale factors into the slot"
        found.append(barrier("scales empty", layout.scales_empty, SCALE_SLOTS, 1, 0, used, copies))
    return found^


def response_barriers(config: GemmConfig) -> List[String]:
    var layout = SharedMemory(config)
    var slots = config.response_slots()
    var bytes = 16
    var writer: StaticString = (
        "this CTA's scheduler thread, announcing the bytes; the hardware delivers them to the whole cluster"
    )
    var readers: StaticString = "every role of every CTA of the cluster that has read the response"
    if config.counts_tiles():
        bytes = 4
        writer = "this CTA's scheduler thread, announcing the bytes; that of rank 0 sends them to the whole cluster"
        readers = "every role of this CTA that has read the response; at rank 0 also the other CTAs"
    if config.counts_tiles() and config.cluster_size() == 1:
        bytes = 0
        writer = "the scheduler thread, after it has written the response"
    var releases = config.response_readers()
    return [
        barrier("answer full", layout.response_full, slots, 1, bytes, writer, "every role of this CTA"),
        barrier("answer empty", layout.response_empty, slots, releases, 0, readers, "the scheduler thread"),
    ]
