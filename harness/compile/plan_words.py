"""Adds sentences to a launch plan: what its roles do, which threads arrive and wait at its barriers, and how many bytes
each part of shared memory has. The kernels give the numbers (``kernels/host/plan_json.mojo``).
"""

from __future__ import annotations

from typing import Any

from harness.problem import C_TYPES

Json = dict[str, Any]


def add_words(plan: Json) -> Json:
    """Adds the sentences to a plan. The planner of an older commit wrote them itself, so its plan stays as it is."""
    if "does" in plan["roles"][0]:
        return plan
    for part in plan["shared_memory"]:
        is_ring = part["name"].endswith("stages") or part["count"] > 1
        part["one"] = part["name"].removesuffix("s") if is_ring else ""
        part["detail"] = _detail(part, is_ring, plan)
    for role in plan["roles"]:
        defers = role.pop("defers_epilogue", False)
        does = _roles_of_sm90(plan, defers) if _is_sm90(plan) else _roles_of_sm100(plan)
        role["does"] = (does | ROLE_OF_ROWS)[role["name"]]
    at = _at_barriers(plan)
    for barrier in plan["barriers"]:
        if "arrives" not in barrier:  # a kernel says it of the barriers that it declares
            barrier["arrives"], barrier["waits"] = at[barrier["name"]]
    return plan


def _is_sm90(plan: Json) -> bool:
    return plan["arch"] == "sm_90a"


def _has_scales(plan: Json) -> bool:
    return plan["config"]["scales"] == "block"


# ---- shared memory ---------------------------------------------------------------------------------------------------
def _detail(part: Json, is_ring: bool, plan: Json) -> str:
    if is_ring:
        return f"{part['count']} x {part['bytes'] // part['count']}"
    if part["name"] == "barriers":
        return f"{', '.join(_barriers_by_ring(plan))}: {part['bytes'] // 8} x 8"
    if part["name"] == "partial sums":
        return "16-byte f32 vectors of each lane, for each warp"
    if part["name"] != "C tile":
        return "declared by the kernel"
    config = plan["config"]
    rows, columns, _ = config["mma_shape"]
    return f"{rows // config['cta_group']} x {columns} x {max(1, C_TYPES[config['out_dtype']].bits // 8)}"


def _barriers_by_ring(plan: Json) -> list[str]:
    count = {barrier["name"]: barrier["count"] for barrier in plan["barriers"]}
    found = [f"full {count['full']}", f"empty {count['empty']}"]
    if "accumulator" in count:
        found.append(f"accumulator {count['accumulator']}")
    if "accumulator full" in count:
        found.append(f"accumulator {count['accumulator full']} full and {count['accumulator empty']} empty")
    if "answer full" in count:
        found.append(f"answer {count['answer full']} x (16 bytes, full, empty)")
    found += [f"{barrier['name']} {barrier['count']}" for barrier in plan["barriers"] if "arrives" in barrier]
    return found if _is_sm90(plan) else [*found, "TMEM address"]


# ---- roles -----------------------------------------------------------------------------------------------------------
ADD_PARTS = (
    "; with split-K partial sums go to the workspace first, and one thread arrives at their counter: the last to arrive"
    " adds all parts, the others are done with the tile"
)


ROLE_OF_ROWS = {
    "all": "in turns along K: load a step of B and of A from global memory to registers, multiply; then add the sums of"
    " all warps through shared memory, store C"
}


def _roles_of_sm100(plan: Json) -> dict[str, str]:
    read, operands, copy = "the last load from TMEM", "A and B", ""
    if _has_scales(plan):
        read, operands = "the load of the columns that both share", "A, B and their scale factors"
        copy = "copy scale factors to an empty slot of TMEM, "
    found = {
        "set-up": "initialise the barriers, allocate TMEM; free it at the end",
        "load and mma": "one thread: wait for the empty stage, load this CTA's slices of A and B by TMA; in the CTA"
        " that leads the MMA also wait for the full stage, issue MMAs, commit",
        "scheduler": "one thread: announce the bytes of a response on this CTA's barrier; in the CTA of rank 0 wait for"
        " an empty slot and request the next tile",
    }
    if plan["tiles"] is None:
        return found | {
            "epilogue": "wait for the accumulator, TMEM to registers to shared memory, TMA store",
            "producer": "one thread: wait for an empty stage, load this CTA's slices of A and B by TMA",
            "mma": "one thread of the CTA that leads the MMA: wait for a full stage, issue MMAs, commit",
        }
    return found | {
        "epilogue": "tile after tile: wait for a full accumulator, TMEM to registers to shared memory, TMA store; after"
        f" {read} release the accumulator" + (ADD_PARTS if plan["config"]["split_k"] > 1 else ""),
        "producer": "one thread, tile after tile: wait for an empty stage, load this CTA's slices of"
        f" {operands} by TMA",
        "mma": "one thread of the CTA that leads the MMA, tile after tile: wait for an empty accumulator, then for full"
        f" stages, {copy}issue MMAs, commit",
    }


def _roles_of_sm90(plan: Json, defers_epilogue: bool) -> dict[str, str]:
    multiply, operands = "multiply, release", "A and B"
    if _has_scales(plan):
        multiply, operands = "read scale factors, multiply, wait, release", "A and B and their scale factors"
    steps = f"wait for a full stage, {multiply} the stage to the CTAs that wrote into it"
    store = "registers to shared memory, TMA store"
    consumers = f"each warpgroup, for its rows: {steps}; at the end of a tile {store}"
    if defers_epilogue:
        consumers = (
            f"each warpgroup, for its rows, tile after tile: {steps}; meanwhile one step of the tile before: {store}"
        )
    if plan["config"]["ping_pong"]:
        consumers = f"ping-pong, each warpgroup a tile: {steps}; then, while the other multiplies, {store}"
    load = f"one thread: wait for the empty stage, load this CTA's slices of {operands} by TMA"
    return {
        "set-up": "initialise the barriers",
        "consumers": consumers + (ADD_PARTS if plan["config"]["split_k"] > 1 else ""),
        "load": load,
        "producer": load,
        "scheduler": "one thread: announce the bytes of a response on this CTA's barrier; in the CTA of rank 0 wait for"
        " an empty slot, take the number of the next tile from the counter in global memory, send it to every CTA of"
        " the cluster; in the others signal rank 0 when all roles have read it",
    }


# ---- barriers --------------------------------------------------------------------------------------------------------
def _at_barriers(plan: Json) -> dict[str, tuple[str, str]]:
    """Returns who arrives and who waits, by the name of the barrier."""
    found = _at_stages_of_sm90(plan) if _is_sm90(plan) else _at_barriers_of_sm100(plan)
    return found | _at_answers(plan)


def _at_stages_of_sm90(plan: Json) -> dict[str, tuple[str, str]]:
    reader = "each warp of the consumers that read" if _has_scales(plan) else "each consumer warpgroup that reads"
    return {
        "full": (
            "this CTA's loading thread, announcing the bytes; TMA delivers them, sent by the CTAs that share a tile",
            "the consumers",
        ),
        "empty": (f"one thread of {reader} what this CTA loads into the stage", "this CTA's loading thread"),
    }


def _at_barriers_of_sm100(plan: Json) -> dict[str, tuple[str, str]]:
    read = "its last load from TMEM"
    if _has_scales(plan):
        read = "it has loaded the columns that the accumulators share"
    finished = ("the last commit of the MMA thread", "the epilogue warps")
    return {
        "full": (
            "the loading thread of the CTA that leads the MMA, announcing the bytes of all its CTAs; TMA delivers them",
            "the MMA thread",
        ),
        "empty": (
            "one commit of each MMA that reads what this CTA loads into the stage",
            "this CTA's loading thread",
        ),
        "accumulator": finished,
        "accumulator full": finished,
        "accumulator empty": (
            f"every epilogue warp of the CTAs of the MMA, after {read}",
            "the MMA thread",
        ),
        "scales empty": (  # of older commits: kernel 9 declares it now
            "a commit of the MMA thread, when the MMAs that use the slot are done",
            "the MMA thread, before it copies scale factors into the slot",
        ),
    }


def _at_answers(plan: Json) -> dict[str, tuple[str, str]]:
    writer = "this CTA's scheduler thread, announcing the bytes; the hardware delivers them to the whole cluster"
    readers = "every role of every CTA of the cluster that has read the response"
    if plan["config"]["scheduler"] == "dynamic":
        writer = "this CTA's scheduler thread, announcing the bytes; that of rank 0 sends them to the whole cluster"
        readers = "every role of this CTA that has read the response; at rank 0 also the other CTAs"
        if len(plan["multicast"]) == 1:
            writer = "the scheduler thread, after it has written the response"
    return {"answer full": (writer, "every role of this CTA"), "answer empty": (readers, "the scheduler thread")}
