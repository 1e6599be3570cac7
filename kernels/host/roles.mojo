"""What the warps of a CTA do, in words, for the launch plan."""
from ..common.config import GemmConfig
from .json import array, numbers, object, pair, text


def role(name: StaticString, first: Int, last: Int, does: String) -> String:
    var warps = numbers([warp for warp in range(first, last + 1)])
    return object([text("name", name), pair("warps", warps), text("does", does)])


def roles_json(config: GemmConfig) -> String:
    return sm100_roles(config) if config.has_tmem() else sm90_roles(config)


comptime ADD_PARTS = (
    "; with split-K partial sums go to the workspace first, and one thread arrives at their counter: the last to arrive"
    " adds all parts, the others are done with the tile"
)


def sm100_roles(config: GemmConfig) -> String:
    var set_up = role("set-up", 0, 0, "initialise the barriers, allocate TMEM; free it at the end")
    var epilogue = role("epilogue", 0, 3, "wait for the accumulator, TMEM to registers to shared memory, TMA store")
    if not config.kernel.pipelined:
        comptime does = (
            "one thread: wait for the empty stage, load this CTA's slices of A and B by TMA; in the CTA that leads"
            " the MMA also wait for the full stage, issue MMAs, commit"
        )
        return array([set_up, role("load and mma", 0, 0, does), epilogue])
    comptime load = "one thread: wait for an empty stage, load this CTA's slices of A and B by TMA"
    comptime multiply = "one thread of the CTA that leads the MMA: wait for a full stage, issue MMAs, commit"
    if not config.kernel.is_persistent:
        return array([set_up, epilogue, role("producer", 4, 4, load), role("mma", 5, 5, multiply)])
    var write_on = String(
        "tile after tile: wait for a full accumulator, TMEM to registers to shared memory, TMA store; after the last"
        " load from TMEM release the accumulator"
    )
    var load_on = String(
        "one thread, tile after tile: wait for an empty stage, load this CTA's slices of A and B by TMA"
    )
    var multiply_on = String(
        "one thread of the CTA that leads the MMA, tile after tile: wait for an empty accumulator, then for full"
        " stages, issue MMAs, commit"
    )
    if config.splits_k():
        write_on += ADD_PARTS
    if config.kernel.is_block_scaled:
        write_on = write_on.replace("the last load from TMEM", "the load of the columns that both share")
        load_on = load_on.replace("A and B", "A, B and their scale factors")
        multiply_on = multiply_on.replace("issue MMAs", "copy scale factors to an empty slot of TMEM, issue MMAs")
    var roles: List[String] = [
        set_up,
        role("epilogue", 0, 3, write_on),
        role("producer", 4, 4, load_on),
        role("mma", 5, 5, multiply_on),
    ]
    if config.fetches_tiles():
        comptime ask = (
            "one thread: announce the bytes of a response on this CTA's barrier; in the CTA of rank 0 wait for an empty"
            " slot and request the next tile"
        )
        roles.append(role("scheduler", 6, 6, ask))
    return array(roles)


def sm90_roles(config: GemmConfig) -> String:
    var last = 4 * config.consumers() - 1
    comptime multiply = (
        "each warpgroup, for its rows: wait for a full stage, multiply, release the stage to the CTAs that wrote into"
        " it; at the end of a tile registers to shared memory, TMA store"
    )
    comptime multiply_on = (
        "each warpgroup, for its rows, tile after tile: wait for a full stage, multiply, release the stage to the CTAs"
        " that wrote into it; meanwhile one step of the tile before: registers to shared memory, TMA store"
    )
    comptime in_turn = (
        "ping-pong, each warpgroup a tile: wait for a full stage, multiply, release the stage to the CTAs that wrote"
        " into it; then, while the other multiplies, registers to shared memory, TMA store"
    )
    var does = String(multiply_on if config.defers_epilogue() else multiply)
    if config.ping_pong:
        does = String(in_turn)
    if config.splits_k():
        does += ADD_PARTS
    if config.promotes():
        does = does.replace("multiply, release", "read scale factors, multiply, wait, release")
    var roles: List[String] = [role("set-up", 0, 0, "initialise the barriers"), role("consumers", 0, last, does)]
    var load = String("one thread: wait for the empty stage, load this CTA's slices of A and B by TMA")
    if config.promotes():
        load = load.replace("A and B by", "A and B and their scale factors by")
    if not config.kernel.pipelined:
        roles.append(role("load", 0, 0, load))
    else:
        roles.append(role("producer", last + 1, last + 4, load))
    if config.counts_tiles():
        comptime take = (
            "one thread: announce the bytes of a response on this CTA's barrier; in the CTA of rank 0 wait for an empty"
            " slot, take the number of the next tile from the counter in global memory, send it to every CTA of the"
            " cluster; in the others signal rank 0 when all roles have read it"
        )
        roles.append(role("scheduler", last + 2, last + 2, take))
    return array(roles)
