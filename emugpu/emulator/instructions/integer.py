"""Integer and logic instructions (PTX ISA 9.7.1, 9.7.2, 9.7.8). Those that floats have too are in `arithmetic`."""

from __future__ import annotations

from collections.abc import Sequence

from emugpu.emulator.instructions import values
from emugpu.emulator.instructions.compare import truth
from emugpu.emulator.instructions.table import (
    Assign,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    assign,
    bits_of,
    call,
    immediate,
    instruction,
    kind_of,
    mask,
    micro,
    micro_of,
    narrowed,
    only,
    only_form,
    read_sources,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Dual, Immediate, Instruction, Operand, Sink


@instruction("and", "or", "xor", operands=3)
def _logic(i: Instruction, w: Translator) -> Assign:
    only(i)
    kind = kind_of(i)
    a, b = w.read(i.operands[1], kind), w.read(i.operands[2], kind)
    sign = {"and": "&", "or": "|", "xor": "^"}[i.opcode]
    return assign(i, f"{a} {sign} {b}", micro_of(i, f"{i.opcode}.{row_bits(kind)}", kind))


@instruction("not", operands=2)
def _not(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    flip = "True" if kind == "pred" else str(mask(kind))
    destination, source = i.operands
    if kind == "pred":
        native = micro("not.pred", destination, kind, source)
    else:
        native = micro(f"xor.{row_bits(kind)}", destination, kind, source, mask(kind))
    return assign(i, f"{w.read(source, kind)} ^ {flip}", native)


@instruction("shl", "shr", operands=3)
def _shift(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value, amount = w.read(i.operands[1], kind), w.read(i.operands[2], "u32")
    bits = bits_of(kind)
    if i.opcode == "shr" and kind[0] == "s":
        result = call(w, values.shift_right_signed, value, amount, bits)
    elif amount.isdigit():
        by = min(int(amount), bits)  # which leaves nothing
        result = f"({value} << {by}) & {mask(kind)}" if i.opcode == "shl" else f"{value} >> {by}"
    else:
        result = call(w, values.shift_left if i.opcode == "shl" else values.shift_right, value, amount, bits)
    is_signed = i.opcode == "shr" and kind[0] == "s"
    name = f"{i.opcode}.{'s' if is_signed else ''}{row_bits(kind)}"
    native = narrowed([Micro(name, i.operands[0], ((i.operands[1], kind), (i.operands[2], "u32")))], kind)
    has_operation = not is_signed or bits >= 32
    return assign(i, result, *(native if has_operation else ()))


@instruction("shf", operands=4)
def _funnel(i: Instruction, w: Translator) -> Assign:
    only(i, "l", "r", "clamp", "wrap")
    low, high, amount = read_sources(i, w, "b32")
    name = f"shf.{'l' if i.has('l') else 'r'}.{'wrap' if i.has('wrap') else 'clamp'}"
    result = call(w, values.funnel_shift, low, high, amount, i.has("l"), i.has("wrap"))
    return assign(i, result, micro_of(i, name, "b32"))


@instruction("lop3", operands=range(5, 7))
def _lop3(i: Instruction, w: Translator) -> Assign:
    only_form(i, "b32", "or.b32", "and.b32")
    result = call(w, values.lop3, *(w.read(o, "b32") for o in i.operands[1:5]))
    if i.modifiers == ("b32",):
        if len(i.operands) != 5:
            raise Unsupported
        return assign(i, result, *_sum_of_products(i.operands[0], i.operands[1:4], immediate(i.operands[4])))
    pair = i.operands[0]
    if not isinstance(pair, Dual) or len(i.operands) != 6:
        raise Unsupported
    other = w.read(i.operands[5], "pred")
    test = f"{call(w, truth, f'({result}) != 0')} {'|' if i.has('or') else '&'} {other}"
    return Assign([(d, e) for d, e in ((pair.first, result), (pair.second, test)) if not isinstance(d, Sink)])


def _sum_of_products(destination: Operand, sources: Sequence[Operand], table: int) -> tuple[Micro, ...]:
    """Returns a bitwise function as the exclusive or of those products of its inputs that its truth table needs.

    The table may ignore an input. If such an input is undefined, so is the result; its product with 0 sees to that.
    """
    a, b, c = sources
    ab, ac, bc, abc, total = (Temporary(number=n) for n in range(5))
    products: dict[int, Operand | Temporary] = {
        0: Immediate(values.M32), 1: c, 2: b, 3: bc, 4: a, 5: ac, 6: ab, 7: abc,
    }  # fmt: skip
    needed = [n for n in products if sum(table >> row & 1 for row in range(8) if not row & ~n) & 1]
    factors = {3: (bc, b, c), 5: (ac, a, c), 6: (ab, a, b), 7: (abc, ab, c)}
    made = [n for n in factors if n in needed or (n == 6 and 7 in needed)]
    operations = [micro("and.32", to, "b32", x, y) for to, x, y in (factors[n] for n in made)]
    ignored = [x for bit, x in ((4, a), (2, b), (1, c)) if table and not any(n & bit for n in needed)]
    zeros = [Temporary(number=5 + n) for n in range(len(ignored))]
    operations += [micro("and.32", to, "b32", x, Immediate(0)) for to, x in zip(zeros, ignored, strict=True)]
    terms = [*(products[n] for n in needed), *zeros] or [Immediate(0)]
    for n, term in enumerate(terms):
        to = destination if n == len(terms) - 1 else total
        operations.append(micro("xor.32", to, "b32", total if n else Immediate(0), term))
    return tuple(operations)


@instruction("prmt", operands=4)
def _prmt(i: Instruction, w: Translator) -> Assign:
    """Emits prmt. The mode comes after the type."""
    mode = i.modifiers[1] if len(i.modifiers) == 2 else ""
    if i.modifiers[0] != "b32" or len(i.modifiers) > 2 or (mode and mode not in values.PERMUTATIONS):
        raise Unsupported
    value = call(w, values.prmt, *read_sources(i, w, "b32"), repr(mode))
    native = () if mode else (micro_of(i, "prmt.b32", "b32"),)
    return assign(i, value, *native)


@instruction("bfe", operands=4)
def _bfe(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value = w.read(i.operands[1], kind)
    position, length = w.read(i.operands[2], "u32"), w.read(i.operands[3], "u32")
    result = call(w, values.bit_field_extract, value, position, length, bits_of(kind), kind[0] == "s")
    native = (micro_of(i, "bfe.u32", "u32"),) if kind in ("u32", "b32") else ()
    return assign(i, result, *native)


@instruction("bfi", operands=5)
def _bfi(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    field, value = w.read(i.operands[1], kind), w.read(i.operands[2], kind)
    position, length = w.read(i.operands[3], "u32"), w.read(i.operands[4], "u32")
    result = call(w, values.bit_field_insert, field, value, position, length, bits_of(kind))
    return assign(i, result, *_native_insertion(i, kind))


def _native_insertion(i: Instruction, kind: str) -> tuple[Micro, ...]:
    """Returns bfi with literal position and length as micro-operations."""
    destination, field, value, position, length = i.operands
    if not isinstance(position, Immediate) or not isinstance(length, Immediate):
        return ()
    bits, at, count = bits_of(kind), position.value & 255, length.value & 255
    place, between = ((1 << count) - 1) << at & mask(kind), Temporary(bits == 64)
    return (
        Micro(f"shl.{bits}", between, ((field, kind), (Immediate(at), "u32"))),
        micro(f"and.{bits}", between, kind, between, place),
        micro(f"and.{bits}", destination, kind, value, mask(kind) & ~place),
        micro(f"or.{bits}", destination, kind, destination, between),
    )


@instruction("popc", "clz", "brev", operands=2)
def _count(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value, bits = w.read(i.operands[1], kind), bits_of(kind)
    function = {"popc": values.popcount, "clz": values.count_leading_zeros, "brev": values.bit_reverse}[i.opcode]
    native = (micro(f"{i.opcode}.{bits}", i.operands[0], kind, i.operands[1]),) if bits >= 32 else ()
    return assign(i, call(w, function, value, bits), *native)


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
    position, width = w.read(i.operands[1], "u32"), w.read(i.operands[2], "u32")
    return assign(i, call(w, bit_mask, position, width, i.has("clamp")))


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
    a, b, *c = read_sources(i, w, "u32")
    product = call(w, multiply_24, a, b, kind_of(i) == "s32", i.has("hi"))
    if i.has("sat"):
        product = call(w, values.add_saturated, product, c[0], False)
    elif c:
        product = f"({product} + {c[0]}) & {values.M32}"
    return assign(i, product)


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
    read = read_sources(i, w, kind)
    return assign(i, call(w, sum_of_absolute_difference, *read, bits_of(kind), kind[0] == "s"))


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
    arguments = (w.read(i.operands[1], kind), bits_of(kind), kind[0] == "s", i.has("shiftamt"))
    return assign(i, call(w, find_leading, *arguments))


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
    return assign(i, call(w, find_nth_set, *read_sources(i, w, "b32")))


def logical_not(value: Value, bits: int) -> Value:
    return values.lanewise(bits, lambda v: int(v == 0), value)


@instruction("cnot", operands=2)
def _cnot(i: Instruction, w: Translator) -> Assign:
    only_form(i, "b16", "b32", "b64")
    kind = kind_of(i)
    return assign(i, call(w, logical_not, w.read(i.operands[1], kind), bits_of(kind)))


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
    a, width = read_sources(i, w, "u32")
    return assign(i, call(w, extend, a, width, kind_of(i) == "s32", i.has("clamp")))


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
    half = i.modifiers[0] if i.opcode == "dp2a" else ""
    read = read_sources(i, w, "b32")
    result = call(w, dot_product, *read, a_kind == "s32", b_kind == "s32", repr(half))
    native = (micro_of(i, f"dp4a.{a_kind}.{b_kind}", "b32"),) if not half else ()
    return assign(i, result, *native)
