"""The launch plan as JSON, for people and for programs that launch or emulate the kernel (schema 1)."""
from .config import GemmConfig
from .launch_plan import LaunchPlan, TensorMap
from .multicast import Slices
from .raster import place
from .shared_memory import SharedMemory


# ---- JSON ----------------------------------------------------------------------------------------------------------
def quoted(text: String) -> String:
    """A JSON string. The texts here hold no quotes, backslashes or control characters."""
    return String('"', text, '"')


def pair(name: StaticString, value: Int) -> String:
    return String(quoted(name), ": ", value)


def pair(name: StaticString, value: Bool) -> String:
    return String(quoted(name), ": ", "true" if value else "false")


def pair(name: StaticString, value: String) -> String:
    """`value` is JSON already."""
    return String(quoted(name), ": ", value)


def text(name: StaticString, value: String) -> String:
    return pair(name, quoted(value))


def array(items: List[String]) -> String:
    return String("[", String(", ").join(items), "]")


def numbers(*items: Int) -> String:
    var list = List[String]()
    for item in items:
        list.append(String(item))
    return array(list)


def object(members: List[String]) -> String:
    return String("{", String(", ").join(members), "}")


# ---- parts of the plan ---------------------------------------------------------------------------------------------
def config_json(config: GemmConfig) -> String:
    return object(
        [
            text("dtype", config.dtype_name()),
            pair("mma_shape", numbers(config.mma_m, config.mma_n, 16)),
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
            pair("multicast", config.multicast),
            text("label", config.label()),
        ]
    )


def shared_memory_json(config: GemmConfig) -> String:
    def line(name: StaticString, bytes: Int, detail: String) -> String:
        return object([text("name", name), pair("bytes", bytes), text("detail", detail)])

    var c = String(config.cta_m(), " x ", config.mma_n, " x 2")
    if config.c_bytes() < config.cta_m() * config.mma_n * 2:
        c = String(config.c_buffers(), " x ", config.step_bytes())
    return array(
        [
            line("A stages", config.stages * config.a_bytes(), String(config.stages, " x ", config.a_bytes())),
            line("B stages", config.stages * config.b_bytes(), String(config.stages, " x ", config.b_bytes())),
            line("C tile", config.c_bytes(), c),
            line(
                "barriers",
                config.barrier_bytes(),
                String(
                    "full ",
                    config.stages,
                    ", empty ",
                    config.stages,
                    tmem_barriers_detail(config) if config.has_tmem() else String(),
                    ": ",
                    config.barrier_bytes() // 8,
                    " x 8",
                ),
            ),
        ]
    )


def tmem_barriers_detail(config: GemmConfig) -> String:
    var text = String(", accumulator ", config.accumulators)
    if config.walks_tiles():
        text += String(" full and ", config.accumulators, " empty")
    if config.asks_for_tiles():
        text += String(", answer ", config.clc_depth, " x (16 bytes, full, empty)")
    return String(text, ", TMEM address")


def role(name: StaticString, first: Int, last: Int, does: String) -> String:
    var warps = List[String]()
    for warp in range(first, last + 1):
        warps.append(String(warp))
    return object([text("name", name), pair("warps", array(warps)), text("does", does)])


def roles_json(config: GemmConfig) -> String:
    return sm100_roles(config) if config.has_tmem() else sm90_roles(config)


def sm100_roles(config: GemmConfig) -> String:
    var set_up = role("set-up", 0, 0, "initialise the barriers, allocate TMEM; free it at the end")
    var epilogue = role("epilogue", 0, 3, "wait for the accumulator, TMEM to registers to shared memory, TMA store")
    if not config.pipelined():
        comptime does = (
            "one thread: wait for the empty stage, load this CTA's slices of A and B by TMA; in the CTA that leads"
            " the MMA also wait for the full stage, issue MMAs, commit"
        )
        return array([set_up, role("load and mma", 0, 0, does), epilogue])
    comptime load = "one thread: wait for an empty stage, load this CTA's slices of A and B by TMA"
    comptime multiply = "one thread of the CTA that leads the MMA: wait for a full stage, issue MMAs, commit"
    if not config.walks_tiles():
        return array([set_up, epilogue, role("producer", 4, 4, load), role("mma", 5, 5, multiply)])
    comptime write = (
        "tile after tile: wait for a full accumulator, TMEM to registers to shared memory, TMA store; after the last"
        " load from TMEM hand the accumulator back"
    )
    comptime load_on = "one thread, tile after tile: wait for an empty stage, load this CTA's slices of A and B by TMA"
    comptime multiply_on = (
        "one thread of the CTA that leads the MMA, tile after tile: wait for an empty accumulator, then for full"
        " stages, issue MMAs, commit"
    )
    var roles: List[String] = [
        set_up,
        role("epilogue", 0, 3, write),
        role("producer", 4, 4, load_on),
        role("mma", 5, 5, multiply_on),
    ]
    if config.asks_for_tiles():
        comptime ask = (
            "one thread: announce the bytes of an answer on this CTA's barrier; in the CTA of rank 0 wait for an empty"
            " slot and ask for the next tile"
        )
        roles.append(role("scheduler", 6, 6, ask))
    return array(roles)


def sm90_roles(config: GemmConfig) -> String:
    var last = 4 * config.consumers() - 1
    comptime multiply = (
        "each warpgroup, for its rows: wait for a full stage, multiply, release the stage to the CTAs that wrote into"
        " it; at the end registers to shared memory, TMA store"
    )
    comptime multiply_on = (
        "each warpgroup, for its rows, tile after tile: wait for a full stage, multiply, release the stage to the CTAs"
        " that wrote into it; meanwhile one step of the tile before: registers to shared memory, TMA store"
    )
    var roles: List[String] = [
        role("set-up", 0, 0, "initialise the barriers"),
        role(
            "consumers",
            0,
            last,
            multiply_on if config.walks_tiles() else multiply,
        ),
    ]
    comptime load = "one thread: wait for the empty stage, load this CTA's slices of A and B by TMA"
    if not config.pipelined():
        roles.append(role("load", 0, 0, load))
    else:
        roles.append(role("producer", last + 1, last + 4, load))
    return array(roles)


def barriers_json(config: GemmConfig) -> String:
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

    var layout = SharedMemory(config)
    var arrivals = config.empty_arrivals()
    if not config.has_tmem():
        return array(
            [
                barrier(
                    "full",
                    layout.full,
                    config.stages,
                    1,
                    config.full_bytes(),
                    (
                        "this CTA's loading thread, announcing the bytes; TMA delivers them, sent by the CTAs that"
                        " share a tile"
                    ),
                    "the consumers",
                ),
                barrier(
                    "empty",
                    layout.empty,
                    config.stages,
                    arrivals,
                    0,
                    "one thread of each consumer warpgroup that reads what this CTA loads into the stage",
                    "this CTA's loading thread",
                ),
            ]
        )
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
            arrivals,
            0,
            "one commit of each MMA that reads what this CTA loads into the stage",
            "this CTA's loading thread",
        ),
        barrier(
            "accumulator full" if config.walks_tiles() else "accumulator",
            layout.accumulator_full,
            config.accumulators,
            1,
            0,
            "the last commit of the MMA thread",
            "the epilogue warps",
        ),
    ]
    if config.walks_tiles():
        found.append(
            barrier(
                "accumulator empty",
                layout.accumulator_empty,
                config.accumulators,
                config.accumulator_readers(),
                0,
                "every epilogue warp of the CTAs of the MMA, after its last load from TMEM",
                "the MMA thread",
            )
        )
    if config.asks_for_tiles():
        found.append(
            barrier(
                "answer full",
                layout.answer_full,
                config.clc_depth,
                1,
                16,
                "this CTA's scheduler thread, announcing the bytes; the hardware delivers them to the whole cluster",
                "every role of this CTA",
            )
        )
        found.append(
            barrier(
                "answer empty",
                layout.answer_empty,
                config.clc_depth,
                config.answer_readers(),
                0,
                "every role of every CTA of the cluster that has read the answer",
                "the scheduler thread of rank 0",
            )
        )
    return array(found)


def multicast_json(config: GemmConfig) -> String:
    """Masks of each CTA, and the first row of each box that it loads, within the tile that the receivers hold."""
    var sharing = config.sharing()

    def rows(slices: Slices, part: UInt32) -> String:
        var first_rows = List[String]()
        for box in range(Int(part), slices.boxes(), slices.parts):
            first_rows.append(String(box * slices.box_rows()))
        return array(first_rows)

    var ranks = List[String]()
    for i in range(config.cluster_size()):
        var rank = UInt32(i)
        ranks.append(
            object(
                [
                    pair("rank", i),
                    pair("a", Int(sharing.a_mask(rank))),
                    pair("b", Int(sharing.b_mask(rank))),
                    pair("commit", Int(sharing.commit_mask(rank))),
                    pair("a_rows", rows(config.a_slices(), sharing.a_part(rank))),
                    pair("b_rows", rows(config.b_slices(), sharing.b_part(rank))),
                ]
            )
        )
    return array(ranks)


def tiles_json(config: GemmConfig, plan: LaunchPlan) -> String:
    """The first tiles in the order in which they are computed, as [row, column] in cluster tiles; null without one."""
    if not config.walks_tiles():
        return "null"
    comptime most = 512
    var order = List[String]()
    for number in range(min(most, plan.clusters_m * plan.clusters_n)):
        var found = place(UInt32(config.raster_group), UInt32(number), UInt32(plan.clusters_m), UInt32(plan.clusters_n))
        order.append(numbers(Int(found.row), Int(found.column)))
    return object([pair("rows", plan.clusters_m), pair("columns", plan.clusters_n), pair("order", array(order))])


def arguments_json(config: GemmConfig, plan: LaunchPlan) -> String:
    def map(name: StaticString, map: TensorMap, dtype: StaticString) -> String:
        return object(
            [
                text("name", name),
                text("kind", "tensor_map"),
                text("tensor", map.tensor),
                text("dtype", dtype),
                pair("dims", numbers(map.columns, map.rows)),
                pair("strides", numbers(map.row_bytes())),
                pair("box", numbers(map.box_columns, map.box_rows)),
                text("swizzle", String(map.swizzle_bytes(), "B")),
            ]
        )

    def scalar(name: StaticString, value: Int) -> String:
        return object([text("name", name), text("kind", "scalar"), text("type", "u32"), pair("value", value)])

    return array(
        [
            map("a_map", plan.a, config.dtype_name()),
            map("b_map", plan.b, config.dtype_name()),
            map("c_map", plan.c, config.dtype_name()),
            scalar("k_iterations", plan.k_iterations),
            scalar("clusters_m", plan.clusters_m),
            scalar("clusters_n", plan.clusters_n),
        ]
    )


def plan_json(config: GemmConfig, plan: LaunchPlan, entry: String) -> String:
    """`entry` is empty where the kernel has not been compiled."""
    return object(
        [
            pair("schema", 1),
            text("kernel", config.kernel),
            text("arch", config.arch),
            pair("entry", quoted(entry) if entry.byte_length() > 0 else String("null")),
            pair("config", config_json(config)),
            pair("problem", object([pair("m", plan.m), pair("n", plan.n), pair("k", plan.k)])),
            pair("grid", numbers(plan.grid_x, plan.grid_y, plan.grid_z)),
            pair("cluster", numbers(config.cluster_m, config.cluster_n, 1)),
            pair("block", numbers(plan.block, 1, 1)),
            pair("dynamic_smem", plan.dynamic_shared_memory),
            pair("shared_memory", shared_memory_json(config)),
            pair("tmem_columns", config.tmem_columns()),
            pair("tiles", tiles_json(config, plan)),
            pair("roles", roles_json(config)),
            pair("barriers", barriers_json(config)),
            pair("multicast", multicast_json(config)),
            pair("arguments", arguments_json(config, plan)),
        ]
    )
