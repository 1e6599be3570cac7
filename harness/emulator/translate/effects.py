"""Instructions that act on the machine, as calls of ``operations``.

Each emitter checks opcode, modifiers and operands, and returns an ``Effect`` or None (no functional effect). Anything
it does not know raises Unsupported; the translated code then faults when it gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..operations.memory import ATOMIC_OPERATIONS
from ..ptx.ast import TYPE_BYTES, Dual, Immediate, Instruction, Memory, Operand, Register, Vector
from .alu import Unsupported

if TYPE_CHECKING:
    from .writer import Writer


@dataclass
class Effect:
    """``call`` is a Python expression in which FRAGMENT stands for the fragment that executes it."""

    call: str
    results: Sequence[Operand] = ()
    blocking: bool = False
    poisons: Sequence[int] = ()
    """Register slots that hold poison until a later wait."""
    stores: Sequence[int] = ()
    """Register slots that the call reads from the register file: the block stores them there first."""


Emitter = Callable[[Instruction, "Writer"], Effect | None]
EFFECTS: dict[str, Emitter] = {}

_SPACES = {"shared", "shared::cta", "shared::cluster", "global", "param", "param::entry", "const", "local"}
_HINTS = {
    "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "volatile", "nc", "ca", "cg",
    "cs", "lu", "cv", "wb", "wt", "L1::no_allocate", "L1::evict_last", "L1::evict_first", "L2::128B", "L2::256B",
    "L2::64B", "L2::cache_hint",
}  # fmt: skip


def emits(*opcodes: str) -> Callable[[Emitter], Emitter]:
    def register(emitter: Emitter) -> Emitter:
        for opcode in opcodes:
            EFFECTS[opcode] = emitter
        return emitter

    return register


def allow(i: Instruction, *allowed: str | set[str]) -> None:
    known: set[str] = set()
    for item in allowed:
        known |= {item} if isinstance(item, str) else item
    if not set(i.modifiers) <= known:
        raise Unsupported


# ---- loads and stores ----


def _space(i: Instruction, w: Writer, operand: Operand) -> str:
    """Name of the memory operation for the instruction's state space."""
    named = next((m for m in i.modifiers if m in _SPACES), None)
    if named is None:
        assert isinstance(operand, Memory)
        named = w.space_of(operand)
    names = {None: "generic", "shared": "shared", "shared::cta": "shared", "shared::cluster": "cluster",
             "global": "global", "param": "param", "param::entry": "param"}  # fmt: skip
    if named not in names:
        raise Unsupported
    return names[named]


def _vector_shape(i: Instruction) -> tuple[str, int]:
    kind = i.modifiers[-1]
    count = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    if kind not in TYPE_BYTES or TYPE_BYTES[kind] > 8:
        raise Unsupported
    return kind, count


@emits("ld")
def _ld(i: Instruction, w: Writer) -> Effect:
    allow(i, _SPACES, _HINTS, {"v2", "v4", "v8"}, set(TYPE_BYTES))
    kind, count = _vector_shape(i)
    space = _space(i, w, i.operands[1])
    pointer = w.pointer(i.operands[1])
    size = TYPE_BYTES[kind]
    destination = i.operands[0]
    elements = destination.elements if isinstance(destination, Vector) else (destination,)
    if len(elements) != count:
        raise Unsupported
    calls = []
    for n, element in enumerate(elements):
        at = f"{pointer} + {n * size}" if n else pointer
        call = f"load_{space}(FRAGMENT, {i.index}, {at}, {size})"
        if isinstance(element, Register) and TYPE_BYTES[element.type] > size:
            bits = 8 * TYPE_BYTES[element.type]
            call = f"sign_extend({call}, {8 * size}, {bits})" if kind[0] == "s" else call
            call = f"widen({call})" if bits == 64 and kind[0] != "s" else call
        calls.append(call)
    return Effect(calls[0] if count == 1 else f"({', '.join(calls)})", elements)


@emits("st")
def _st(i: Instruction, w: Writer) -> Effect:
    allow(i, _SPACES, _HINTS, {"v2", "v4", "v8"}, set(TYPE_BYTES))
    kind, count = _vector_shape(i)
    space = _space(i, w, i.operands[0])
    if space == "param":
        raise Unsupported
    pointer = w.pointer(i.operands[0])
    source = i.operands[1]
    elements = source.elements if isinstance(source, Vector) else (source,)
    size = TYPE_BYTES[kind]
    calls = [
        f"store_{space}(FRAGMENT, {i.index}, {pointer}{f' + {n * size}' if n else ''}, {size}, {w.read(e, kind)})"
        for n, e in enumerate(elements)
    ]
    return Effect(f"({', '.join(calls)})" if count > 1 else calls[0])


@emits("atom", "red")
def _atom(i: Instruction, w: Writer) -> Effect:
    operation = next(m for m in i.modifiers if m in ATOMIC_OPERATIONS)
    kind = i.modifiers[-1]
    allow(i, {operation, kind, "global", "shared", "shared::cta"}, _HINTS)
    signed_order = kind[0] == "s" and operation in ("min", "max")
    if kind not in TYPE_BYTES or kind[0] not in "bus" or signed_order or kind.startswith("bf"):
        raise Unsupported
    space = next((m for m in i.modifiers if m in ("global", "shared", "shared::cta")), "global")
    first = 1 if i.opcode == "atom" else 0
    values = [w.read(o, kind) for o in i.operands[first + 1 :]] + ["0"]
    arguments = f"{space.split('::')[0]!r}, {operation!r}, {w.pointer(i.operands[first])}, {TYPE_BYTES[kind]}"
    call = f"atomic(FRAGMENT, {i.index}, {arguments}, {values[0]}, {values[1]})"
    return Effect(call, i.operands[:1] if first else ())


@emits("stmatrix")
def _stmatrix(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    source = i.operands[1]
    elements = source.elements if isinstance(source, Vector) else (source,)
    if not i.has(f"x{len(elements)}"):
        raise Unsupported
    values = ", ".join(w.read(e, "b32") for e in elements)
    return Effect(f"store_matrix(FRAGMENT, {i.index}, {w.pointer(i.operands[0])}, ({values},), {i.has('trans')})")


@emits("ldmatrix")
def _ldmatrix(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    destination = i.operands[0]
    elements = destination.elements if isinstance(destination, Vector) else (destination,)
    call = f"load_matrix(FRAGMENT, {i.index}, {w.pointer(i.operands[1])}, {len(elements)}, {i.has('trans')})"
    return Effect(f"{call}[0]" if len(elements) == 1 else call, elements)


@emits("mapa")
def _mapa(i: Instruction, w: Writer) -> Effect:
    kind = i.modifiers[-1]
    if kind != "u32":
        raise Unsupported
    allow(i, "shared::cluster", "u32")
    return Effect(f"map_to_rank({w.read(i.operands[1], 'u32')}, {w.read(i.operands[2], 'u32')})", i.operands[:1])


@emits("getctarank")
def _getctarank(i: Instruction, w: Writer) -> Effect:
    allow(i, "shared::cluster", "u32")
    return Effect(f"{w.read(i.operands[1], 'u32')} >> 24", i.operands[:1])


# ---- between lanes ----


@emits("shfl")
def _shfl(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync", "idx", "up", "down", "bfly", "b32")
    mode = i.modifiers[1]
    value, b, c, mask = (w.read(o, "b32") for o in i.operands[1:])
    call = f"shuffle(FRAGMENT, {i.index}, {mode!r}, {value}, {b}, {c}, {mask})"
    destination = i.operands[0]
    if isinstance(destination, Dual):
        return Effect(call, (destination.first, destination.second))
    return Effect(f"{call}[0]", (destination,))


@emits("vote")
def _vote(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync", "all", "any", "uni", "ballot", "pred", "b32")
    predicate, mask = w.read(i.operands[1], "pred"), w.read(i.operands[2], "b32")
    return Effect(f"vote(FRAGMENT, {i.index}, {i.modifiers[1]!r}, {predicate}, {mask})", i.operands[:1])


@emits("redux")
def _redux(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync", "add", "min", "max", "and", "or", "xor", "s32", "u32", "b32")
    value, mask = w.read(i.operands[1], "b32"), w.read(i.operands[2], "b32")
    signed = i.modifiers[-1] == "s32"
    return Effect(f"reduce(FRAGMENT, {i.index}, {i.modifiers[1]!r}, {signed}, {value}, {mask})", i.operands[:1])


@emits("activemask")
def _activemask(i: Instruction, w: Writer) -> Effect:
    return Effect("FRAGMENT.mask", i.operands[:1])


# ---- barriers ----


@emits("elect")
def _elect(i: Instruction, w: Writer) -> Effect:
    allow(i, "sync")
    destination = i.operands[0]
    call = f"elect(FRAGMENT, {i.index}, {w.read(i.operands[1], 'b32')})"
    if isinstance(destination, Dual):
        return Effect(call, (destination.first, destination.second))
    raise Unsupported


_MBARRIER_SCOPES = {
    "release",
    "relaxed",
    "acquire",
    "cta",
    "cluster",
    "shared",
    "shared::cta",
    "shared::cluster",
    "b64",
}


@emits("mbarrier")
def _mbarrier(i: Instruction, w: Writer) -> Effect:
    verb = i.modifiers[0]
    allow(i, verb, "expect_tx", "parity", "noComplete", _MBARRIER_SCOPES)
    cluster = i.has("shared::cluster")
    if not cluster and not (i.has("shared") or i.has("shared::cta")):
        raise Unsupported
    o = i.operands
    if verb == "init":
        return Effect(f"mbarrier_init(FRAGMENT, {i.index}, {w.pointer(o[0])}, {w.read(o[1], 'u32')})")
    if verb == "inval":
        return Effect(f"mbarrier_inval(FRAGMENT, {i.index}, {w.pointer(o[0])})")
    if verb in ("expect_tx", "complete_tx"):
        name = "mbarrier_expect" if verb == "expect_tx" else "mbarrier_complete"
        return Effect(f"{name}(FRAGMENT, {i.index}, {w.pointer(o[0])}, {w.read(o[1], 'u32')}, {cluster})")
    if verb in ("arrive", "arrive_drop"):
        results = [] if isinstance(o[0], Memory) else [o[0]]
        address, *count = o[len(results) :]
        amount = w.read(count[0], "u32") if count else "1"
        if i.modifiers[1] == "expect_tx":
            if verb == "arrive_drop":
                raise Unsupported
            return Effect(
                f"mbarrier_arrive_expect(FRAGMENT, {i.index}, {w.pointer(address)}, {amount}, {cluster})", results
            )
        drop = verb == "arrive_drop"
        return Effect(
            f"mbarrier_arrive(FRAGMENT, {i.index}, {w.pointer(address)}, {amount}, {cluster}, {drop})", results
        )
    if verb in ("try_wait", "test_wait") and not cluster:
        by_state = not i.has("parity")
        operand = w.read(o[2], "b64" if by_state else "u32")
        arguments = f"{w.pointer(o[1])}, {operand}, {by_state}, {verb == 'test_wait'}"
        return Effect(f"mbarrier_wait(FRAGMENT, {i.index}, {arguments})", o[:1], blocking=True)
    raise Unsupported


@emits("bar", "barrier")
def _bar(i: Instruction, w: Writer) -> Effect:
    if i.modifiers[0] == "warp":
        allow(i, "warp", "sync")
        return Effect(f"warp_sync(FRAGMENT, {i.index}, {w.read(i.operands[0], 'b32')})")
    if i.modifiers[0] == "cluster":
        allow(i, "cluster", "arrive", "wait", "release", "relaxed", "acquire", "aligned")
        verb = i.modifiers[1]
        return Effect(f"cluster_{verb}(FRAGMENT, {i.index}, {i.has('aligned')})", blocking=verb == "wait")
    allow(i, "cta", "sync", "arrive", "aligned")
    aligned = i.opcode == "bar" or i.has("aligned")
    verb = "arrive" if i.has("arrive") else "sync"
    count = w.read(i.operands[1], "u32") if len(i.operands) > 1 else "None"
    call = f"bar_{verb}(FRAGMENT, {i.index}, {w.read(i.operands[0], 'u32')}, {count}, {aligned})"
    return Effect(call, blocking=verb == "sync")


@emits("fence", "membar", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard", "applypriority")
def _no_effect(i: Instruction, w: Writer) -> Effect | None:
    """Ordering and hints: execution is sequentially consistent already, so nothing is left to do."""
    machine_note = i.opcode in ("fence", "membar")
    return Effect(f"fence(FRAGMENT, {i.index})") if machine_note else None


@emits("setmaxnreg")
def _setmaxnreg(i: Instruction, w: Writer) -> Effect:
    allow(i, "inc", "dec", "sync", "aligned", "u32")
    count = i.operands[0]
    if not isinstance(count, Immediate) or count.value % 8 or not 24 <= count.value <= 256:
        raise Unsupported
    return Effect(f"set_max_registers(FRAGMENT, {i.index}, {count.value}, {i.has('inc')})", blocking=True)


# ---- bulk copies ----


@emits("cp")
def _cp(i: Instruction, w: Writer) -> Effect | None:
    if i.modifiers[:3] == ("async", "bulk", "commit_group"):
        return Effect(f"commit_group(FRAGMENT, {i.index})")
    if i.modifiers[:3] == ("async", "bulk", "wait_group"):
        allowed = i.operands[0]
        assert isinstance(allowed, Immediate)
        return Effect(f"wait_group(FRAGMENT, {i.index}, {allowed.value}, {i.has('read')})", blocking=True)
    if i.modifiers[:3] != ("async", "bulk", "tensor"):
        raise Unsupported
    rank = i.modifiers[3]
    if rank not in ("1d", "2d", "3d", "4d", "5d"):
        raise Unsupported
    common = {"async", "bulk", "tensor", rank, "global", "tile", "L2::cache_hint"}
    if i.has("bulk_group"):
        allow(i, common, "shared::cta", "bulk_group")
        target, source = i.operands[0], i.operands[1]
        arguments = f"{_map(target, w)}, {_coordinates(target, w)}, {w.pointer(source)}"
        return Effect(f"tma_store(FRAGMENT, {i.index}, {arguments})")
    allow(
        i, common, "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes", "multicast::cluster",
        "cta_group::1", "cta_group::2",
    )  # fmt: skip
    if not i.has("mbarrier::complete_tx::bytes"):
        raise Unsupported
    destination, source, barrier, *rest = i.operands
    mask = w.read(rest[0], "b16") if i.has("multicast::cluster") else "None"
    group = 2 if i.has("cta_group::2") else 1
    arguments = f"{w.pointer(destination)}, {_map(source, w)}, {_coordinates(source, w)}, {w.pointer(barrier)}"
    return Effect(f"tma_load(FRAGMENT, {i.index}, {arguments}, {mask}, {group})")


def _map(operand: Operand, w: Writer) -> str:
    assert isinstance(operand, Memory)
    pointer = w.pointer(operand)
    return f"PARAM_WINDOW + {pointer}" if w.space_of(operand) == "param" else pointer


def _coordinates(operand: Operand, w: Writer) -> str:
    assert isinstance(operand, Memory) and operand.coordinates
    return f"({', '.join(w.read(c, 's32') for c in operand.coordinates)},)"
