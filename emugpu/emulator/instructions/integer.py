"""Integer and logic instructions (PTX ISA 9.7.1, 9.7.2, 9.7.8). Those that floats have too are in `arithmetic`."""

from __future__ import annotations

from emugpu.emulator.instructions import values
from emugpu.emulator.instructions.table import (
    Assign,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    bits_of,
    calculated,
    computed,
    immediate,
    instruction,
    kind_of,
    mask,
    micro,
    micro_of,
    narrowed,
    only,
    only_form,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Dual, Immediate, Instruction, Sink


@instruction("and", "or", "xor", operands=3)
def _logic(i: Instruction, w: Translator) -> Assign:
    only(i)
    kind = kind_of(i)
    return Assign(micro_of(i, f"{i.opcode}.{row_bits(kind)}", kind))


@instruction("not", operands=2)
def _not(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    destination, source = i.operands
    if kind == "pred":
        return Assign(micro("not.pred", destination, kind, source))
    return Assign(micro(f"xor.{row_bits(kind)}", destination, kind, source, mask(kind)))


@instruction("shl", "shr", operands=3)
def _shift(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    destination, value, amount = i.operands
    bits, is_signed = bits_of(kind), i.opcode == "shr" and kind[0] == "s"
    if isinstance(amount, Immediate):
        amount = Immediate(min(amount.value & values.M32, bits))  # which leaves nothing, or the sign
    sources = ((value, kind), (amount, "u32"))
    if is_signed and bits < 32:
        return Assign(calculated(values.shift_right_signed, destination, sources, bits))
    name = f"{i.opcode}.{'s' if is_signed else ''}{row_bits(kind)}"
    return Assign(*narrowed([Micro(name, destination, sources)], kind))


@instruction("shf", operands=4)
def _funnel(i: Instruction, w: Translator) -> Assign:
    only(i, "l", "r", "clamp", "wrap")
    name = f"shf.{'l' if i.has('l') else 'r'}.{'wrap' if i.has('wrap') else 'clamp'}"
    return Assign(micro_of(i, name, "b32"))


@instruction("lop3", operands=range(5, 7))
def _lop3(i: Instruction, w: Translator) -> Assign:
    only_form(i, "b32", "or.b32", "and.b32")
    if len(i.operands) != (5 if i.modifiers == ("b32",) else 6):
        raise Unsupported
    to, a, b, c, table, *other = i.operands
    sources = tuple((source, "b32") for source in (a, b, c))
    if not other:
        return Assign(Micro("lop3.b32", to, sources, imm=immediate(table) & 255))
    if not isinstance(to, Dual):
        raise Unsupported
    result, test = Temporary(), Temporary(number=1)
    found = [
        Micro("lop3.b32", result, sources, imm=immediate(table) & 255),
        micro("setp.ne.u32", test, "b32", result, 0),
        micro(f"{i.modifiers[0]}.32", to.second, "pred", test, *other),
        micro("mov.32", to.first, "b32", result),
    ]
    return Assign(*tuple(m for m in found if not isinstance(m.destination, Sink)))


@instruction("prmt", operands=4)
def _prmt(i: Instruction, w: Translator) -> Assign:
    """Emits prmt. The mode comes after the type."""
    mode = i.modifiers[1] if len(i.modifiers) == 2 else ""
    if i.modifiers[0] != "b32" or len(i.modifiers) > 2 or (mode and mode not in values.PERMUTATIONS):
        raise Unsupported
    return Assign(computed(i, values.prmt, "b32", mode) if mode else micro_of(i, "prmt.b32", "b32"))


@instruction("bfe", operands=4)
def _bfe(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    if kind in ("u32", "b32"):
        return Assign(micro_of(i, "bfe.u32", "u32"))
    return Assign(computed(i, values.bit_field_extract, (kind, "u32", "u32"), bits_of(kind), kind[0] == "s"))


@instruction("bfi", operands=5)
def _bfi(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    destination, field, value, position, length = i.operands
    bits = bits_of(kind)
    if not isinstance(position, Immediate) or not isinstance(length, Immediate):
        return Assign(computed(i, values.bit_field_insert, (kind, kind, "u32", "u32"), bits))
    at, count = position.value & 255, length.value & 255
    place, between = ((1 << count) - 1) << at & mask(kind), Temporary(bits == 64)
    return Assign(
        Micro(f"shl.{bits}", between, ((field, kind), (Immediate(at), "u32"))),
        micro(f"and.{bits}", between, kind, between, place),
        micro(f"and.{bits}", destination, kind, value, mask(kind) & ~place),
        micro(f"or.{bits}", destination, kind, between, destination),
    )


@instruction("popc", "clz", "brev", operands=2)
def _count(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    if bits_of(kind) >= 32:
        return Assign(micro_of(i, f"{i.opcode}.{bits_of(kind)}", kind))
    function = {"popc": values.popcount, "clz": values.count_leading_zeros, "brev": values.bit_reverse}[i.opcode]
    return Assign(computed(i, function, kind, bits_of(kind)))


def bit_mask(position: Value, width: Value, clamp: bool) -> Value:
    """Computes ``bmsk``: ones from a position on (PTX ISA 9.7.1.24). clamp: bits past the end are cut off."""

    def scalar(a: int, b: int) -> int:
        start, count = (min(a, 32), b) if clamp else (a & 31, b & 31)
        end = min(start + count, 32)
        return ((1 << end) - 1) & ~((1 << start) - 1)

    return values.lanewise(32, scalar, position, width)


@instruction("bmsk", operands=3)
def _bmsk(i: Instruction, w: Translator) -> Assign:
    only_form(i, "clamp.b32", "wrap.b32")
    return Assign(computed(i, bit_mask, "u32", i.has("clamp")))


# ---- rare instructions, lane by lane ----

_FORMS_24 = ("lo.u32", "lo.s32", "hi.u32", "hi.s32")


def multiply_24(a: Value, b: Value, is_signed: bool, high: bool) -> Value:
    """Computes ``mul24``: the lower or upper 32 of the 48 bits of the product of the low 24 bits (PTX ISA 9.7.1.5)."""

    def scalar(x: int, y: int) -> int:
        x, y = x & 0xFFFFFF, y & 0xFFFFFF
        if is_signed:
            x, y = values.signed(x, 24), values.signed(y, 24)
        return (x * y >> (16 if high else 0)) & values.M32

    return values.lanewise(32, scalar, a, b)


@instruction("mul24", operands=3)
@instruction("mad24", operands=4)
def _mul24(i: Instruction, w: Translator) -> Assign:
    only_form(i, *_FORMS_24, *(("hi.sat.s32",) if i.opcode == "mad24" else ()))
    destination, a, b, *c = i.operands
    product = Temporary() if c else destination
    found = [calculated(multiply_24, product, ((a, "u32"), (b, "u32")), kind_of(i) == "s32", i.has("hi"))]
    if i.has("sat"):
        found.append(calculated(values.add_saturated, destination, ((product, "u32"), (c[0], "u32")), False))
    elif c:
        found.append(micro("add.32", destination, "u32", product, *c))
    return Assign(*found)


def sum_of_absolute_difference(a: Value, b: Value, c: Value, bits: int, is_signed: bool) -> Value:
    def scalar(x: int, y: int, z: int) -> int:
        if is_signed:
            x, y = values.signed(x, bits), values.signed(y, bits)
        return (z + abs(x - y)) & ((1 << bits) - 1)

    return values.lanewise(bits, scalar, a, b, c)


@instruction("sad", operands=4)
def _sad(i: Instruction, w: Translator) -> Assign:
    only_form(i, "u16", "u32", "u64", "s16", "s32", "s64")
    kind = kind_of(i)
    return Assign(computed(i, sum_of_absolute_difference, kind, bits_of(kind), kind[0] == "s"))


def find_leading(value: Value, bits: int, is_signed: bool, shift_amount: bool) -> Value:
    """Computes ``bfind``: the highest set bit (for a negative number, clear bit), or all ones (PTX ISA 9.7.1.17)."""

    def scalar(v: int) -> int:
        if is_signed and v >> (bits - 1):
            v ^= (1 << bits) - 1
        if not v:
            return values.M32
        return bits - v.bit_length() if shift_amount else v.bit_length() - 1

    return values.lanewise(32, scalar, value)


@instruction("bfind", operands=2)
def _bfind(i: Instruction, w: Translator) -> Assign:
    kinds = ("u32", "u64", "s32", "s64")
    only_form(i, *kinds, *(f"shiftamt.{kind}" for kind in kinds))
    kind = kind_of(i)
    return Assign(computed(i, find_leading, kind, bits_of(kind), kind[0] == "s", i.has("shiftamt")))


def find_nth_set(mask: Value, base: Value, offset: Value) -> Value:
    """Computes ``fns``: the n-th set bit from a base, upward or downward (PTX ISA 9.7.1.18)."""

    def scalar(m: int, start: int, n: int) -> int:
        steps = values.signed(n, 32)
        if steps == 0:
            return start if start < 32 and m >> start & 1 else values.M32
        places = range(start, 32) if steps > 0 else range(start, -1, -1) if start < 32 else range(0)
        found = [p for p in places if m >> p & 1]
        return found[abs(steps) - 1] if len(found) >= abs(steps) else values.M32

    return values.lanewise(32, scalar, mask, base, offset)


@instruction("fns", operands=4)
def _fns(i: Instruction, w: Translator) -> Assign:
    only_form(i, "b32")
    return Assign(computed(i, find_nth_set, "b32"))


def logical_not(value: Value, bits: int) -> Value:
    return values.lanewise(bits, lambda v: int(v == 0), value)


@instruction("cnot", operands=2)
def _cnot(i: Instruction, w: Translator) -> Assign:
    only_form(i, "b16", "b32", "b64")
    kind = kind_of(i)
    return Assign(computed(i, logical_not, kind, bits_of(kind)))


def extend(value: Value, width: Value, is_signed: bool, clamp: bool) -> Value:
    """Computes ``szext``: the low bits, sign- or zero-extended (PTX ISA 9.7.1.22)."""

    def scalar(v: int, n: int) -> int:
        n = min(n, 32) if clamp else n & 31
        low = v & ((1 << n) - 1)
        return values.signed(low, n) & values.M32 if is_signed and n else low

    return values.lanewise(32, scalar, value, width)


@instruction("szext", operands=3)
def _szext(i: Instruction, w: Translator) -> Assign:
    only_form(i, "clamp.u32", "clamp.s32", "wrap.u32", "wrap.s32")
    return Assign(computed(i, extend, "u32", kind_of(i) == "s32", i.has("clamp")))


def dot_product(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, halves: str) -> Value:
    """Computes ``dp4a``, or ``dp2a`` of a's 16-bit halves and b's lower or upper bytes (PTX ISA 9.7.1.25, 9.7.1.26)."""

    def scalar(x: int, y: int, z: int) -> int:
        width = 16 if halves else 8
        count, start = 32 // width, 16 if halves == "hi" else 0
        total = z
        for n in range(count):
            left = x >> width * n & ((1 << width) - 1)
            right = y >> (start + 8 * n) & 0xFF
            left = values.signed(left, width) if a_signed else left
            total += left * (values.signed(right, 8) if b_signed else right)
        return total & values.M32

    return values.lanewise(32, scalar, a, b, c)


@instruction("dp4a", "dp2a", operands=4)
def _dot_product(i: Instruction, w: Translator) -> Assign:
    halves = ("lo.", "hi.") if i.opcode == "dp2a" else ("",)
    only_form(i, *(f"{h}{a}.{b}" for h in halves for a in ("u32", "s32") for b in ("u32", "s32")))
    a_kind, b_kind = i.modifiers[-2:]
    if i.opcode == "dp4a":
        return Assign(micro_of(i, f"dp4a.{a_kind}.{b_kind}", "b32"))
    return Assign(computed(i, dot_product, "b32", a_kind == "s32", b_kind == "s32", i.modifiers[0]))
