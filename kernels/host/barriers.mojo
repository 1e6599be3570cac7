"""The barriers of a CTA: where they lie, what completes a phase, who arrives and who waits, for the launch plan."""
from ..common.block_scaling import SCALE_SLOTS
from ..common.config import GemmConfig, SharedMemory
from .json import array, object, pair, text


def barrier(
    name: String,
    offset: Int,
    count: Int,
    arrivals: Int,
    bytes: Int,
    arrives: StaticString,
    waits: StaticString,
) -> String:
    return object(
        [
            text("name", name),
            pair("offset", offset),
            pair("count", count),
            pair("arrivals", arrivals),
            pair("bytes", bytes),
            text("arrives", arrives),
            text("waits", waits),
        ]
    )


def barriers_json(config: GemmConfig) -> String:
    var found = sm100_barriers(config) if config.has_tmem() else sm90_barriers(config)
    if config.fetches_tiles():
        found += response_barriers(config)
    return array(found)


def sm90_barriers(config: GemmConfig) -> List[String]:
    var layout = SharedMemory(config)
    var releases: StaticString = "one thread of each consumer warpgroup that reads what this CTA loads into the stage"
    if config.promotes():
        releases = "one thread of each warp of the consumers that read what this CTA loads into the stage"
    return [
        barrier(
            "full",
            layout.full,
            config.stages,
            1,
            config.full_bytes(),
            "this CTA's loading thread, announcing the bytes; TMA delivers them, sent by the CTAs that share a tile",
            "the consumers",
        ),
        barrier(
            "empty",
            layout.empty,
            config.stages,
            config.empty_arrivals(),
            0,
            releases,
            "this CTA's loading thread",
        ),
    ]


def sm100_barriers(config: GemmConfig) -> List[String]:
    var layout = SharedMemory(config)
    var found: List[String] = [
        barrier(
            "full",
            layout.full,
            config.stages,
            1,
            config.full_bytes(),
            "the loading thread of the CTA that leads the MMA, announcing the bytes of all its CTAs; TMA delivers them",
            "the MMA thread",
        ),
        barrier(
            "empty",
            layout.empty,
            config.stages,
            config.empty_arrivals(),
            0,
            "one commit of each MMA that reads what this CTA loads into the stage",
            "this CTA's loading thread",
        ),
        barrier(
            "accumulator full" if config.kernel.is_persistent else "accumulator",
            layout.accumulator_full,
            config.accumulator_barriers(),
            1,
            0,
            "the last commit of the MMA thread",
            "the epilogue warps",
        ),
    ]
    var read: StaticString = "every epilogue warp of the CTAs of the MMA, after its last load from TMEM"
    if config.accumulators_overlap():
        read = "every epilogue warp of the CTAs of the MMA, after it has loaded the columns that the accumulators share"
    if config.kernel.is_persistent:
        found.append(
            barrier(
                "accumulator empty",
                layout.accumulator_empty,
                config.accumulator_barriers(),
                config.accumulator_readers(),
                0,
                read,
                "the MMA thread",
            )
        )
    if config.kernel.is_block_scaled:
        found.append(
            barrier(
                "scales empty",
                layout.scales_empty,
                SCALE_SLOTS,
                1,
                0,
                "a commit of the MMA thread, when the MMAs that use the slot are done",
                "the MMA thread, before it copies scale factors into the slot",
            )
        )
    return found^


def response_barriers(config: GemmConfig) -> List[String]:
    var layout = SharedMemory(config)
    var writer: StaticString = (
        "this CTA's scheduler thread, announcing the bytes; that of rank 0 sends them to the whole cluster"
    )
    var readers: StaticString = "every role of this CTA that has read the response; at rank 0 also the other CTAs"
    if config.cluster_size() == 1:
        writer = "the scheduler thread, after it has written the response"
    if config.cancels_clusters():
        writer = "this CTA's scheduler thread, announcing the bytes; the hardware delivers them to the whole cluster"
        readers = "every role of every CTA of the cluster that has read the response"
    return [
        barrier(
            "answer full",
            layout.response_full,
            config.response_slots(),
            1,
            16 if config.cancels_clusters() else (4 if config.cluster_size() > 1 else 0),
            writer,
            "every role of this CTA",
        ),
        barrier(
            "answer empty",
            layout.response_empty,
            config.response_slots(),
            config.response_readers(),
            0,
            readers,
            "the scheduler thread",
        ),
    ]
