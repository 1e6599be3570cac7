"""Register values with undefined bits.

Compilers emit code that reads undefined bits: the half of a pair that LLVM leaves undefined, the lanes that a guard
masks off, memory that nothing has written. That is no error until such a bit decides something. So they are values: a
`Poison` stands in the register file instead of a number or an array. It knows which bits of which lanes are undefined
and where they come from, and moves and arithmetic propagate it. No other code accepts it as a number: an instruction
that needs one (an address, a branch, an atomic) raises a Fault that names the origin, unless the bits are
defined in all lanes that execute the instruction.

Bitwise operators and moves are exact to the bit. A sum or product of integers is undefined from its lowest undefined
bit upwards. A part of a packed result is undefined if one of the parts from which it is computed has an undefined bit.
An element of a product of matrices is undefined if its row of A, its column of B or its element of C has an undefined
bit. Any other result computed from an undefined bit of a lane is wholly undefined in that lane.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from emugpu.emulator.errors import Fault

Value = Any
_LANES = 32
_WEIGHTS = (1 << np.arange(_LANES)).astype(np.uint64)


def lanes_text(mask: int) -> str:
    """Returns "lane 5" or "lanes 0x000000f0"."""
    return f"lane {mask.bit_length() - 1}" if mask.bit_count() == 1 else f"lanes 0x{mask:08x}"


class Poison(NDArrayOperatorsMixin):
    """value, undefined: 32 lanes of one dtype, with the bits and the mask of undefined bits. origin: completes the
    message "uses ...". rule: the rule that a use breaks.
    """

    __slots__ = ("origin", "rule", "undefined", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, undefined: Any, origin: str, rule: str = "undefined") -> None:
        self.value, self.undefined, self.origin, self.rule = value, undefined, origin, rule

    # ---- propagation ----

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__" or named:
            return getattr(ufunc, method)(*(_used(x) for x in inputs), **named)
        values, masks = [_value(x) for x in inputs], [_undefined(x) for x in inputs]
        result = np.asarray(ufunc(*values))
        match ufunc.__name__:
            case "bitwise_and" | "bitwise_or":
                a, b, x, y = (np.asarray(v).astype(result.dtype) for v in (*values, *masks))
                if ufunc.__name__ == "bitwise_or":
                    a, b = ~a, ~b
                # A bit is defined if the other operand alone decides it.
                undefined = (x & (b | y)) | (y & (a | x))
            case "bitwise_xor":
                undefined = masks[0] | masks[1]
            case "invert":
                undefined = masks[0]
            case "left_shift" | "right_shift" if not isinstance(inputs[1], Poison):
                undefined = ufunc(masks[0], values[1])
            case "add" | "subtract" | "multiply" if result.dtype.kind == "u":
                undefined = upwards(*masks)
            case _:
                undefined = _everywhere(result, inputs)
        return self._like(result, undefined)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and len(args) == 3:
            return choose(*args)
        return function(*(_used(x) for x in args), **{name: _used(x) for name, x in kwargs.items()})

    def _like(self, value: Any, undefined: Any) -> Value:
        return made(value, undefined, self.origin, self.rule)

    def astype(self, dtype: Any, copy: bool = True) -> Value:
        return self._like(self.value.astype(dtype), self.undefined.astype(dtype))

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def itemsize(self) -> int:
        return int(self.value.itemsize)

    def of_lane(self, lane: int) -> Value:
        """Returns the value for a fragment of this lane alone."""
        if not self.undefined[lane]:
            return self.value.item(lane)
        if (self.undefined == self.undefined[lane]).all() and (self.value == self.value[lane]).all():
            return self
        return Poison(np.full(_LANES, self.value[lane]), np.full(_LANES, self.undefined[lane]), self.origin, self.rule)

    # ---- uses that need defined bits ----

    def undefined_lanes(self) -> int:
        """Returns the mask of lanes with undefined bits."""
        return int((self.undefined != 0).astype(np.uint64) @ _WEIGHTS)

    def used(self) -> Any:
        """Returns the value as an array. Raises Fault if an executing lane has undefined bits."""
        missing = self.undefined_lanes() & _executing_lanes()
        if missing:
            raise Fault(f"uses {self.origin} in {lanes_text(missing)}", self.rule)
        return self.value

    def __getitem__(self, lanes: Any) -> Any:
        undefined = np.zeros(_LANES, np.bool_)
        undefined[lanes] = self.undefined[lanes] != 0
        if undefined.any():
            raise Fault(f"uses {self.origin} in {lanes_text(int(undefined @ _WEIGHTS))}", self.rule)
        return self.value[lanes]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.used(), dtype)

    def __getattr__(self, name: str) -> Any:
        """Returns any other attribute of the array."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.used(), name)

    def __bool__(self) -> bool:
        return bool(self.used())

    def __int__(self) -> int:
        return int(self.used())

    def __index__(self) -> int:
        return int(self.used())

    def __iter__(self) -> Any:
        return iter(self.used())

    def __len__(self) -> int:
        return _LANES


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Poison) else x


def _used(x: Any) -> Any:
    return x.used() if isinstance(x, Poison) else x


def _undefined(x: Any) -> Any:
    return x.undefined if isinstance(x, Poison) else False if isinstance(x, bool) else 0


def _everywhere(result: Any, inputs: Any) -> Any:
    """Returns a mask with all bits set in the lanes where an input has an undefined bit."""
    lanes = np.zeros(_LANES, np.bool_)
    for x in inputs:
        if isinstance(x, Poison):
            lanes |= x.undefined != 0
    dtype = np.asarray(result).dtype
    if dtype == np.bool_:
        return lanes
    if dtype.hasobject:
        return np.where(lanes, (1 << 128) - 1, 0)
    return np.where(lanes, np.array(-1).astype(dtype), np.array(0, dtype))


def _executing_lanes() -> int:
    """Returns the mask of the fragment for which code runs: the variable `f` of the innermost frame that has one."""
    frame = inspect.currentframe()
    while frame is not None:
        mask = getattr(frame.f_locals.get("f"), "mask", None)
        if isinstance(mask, int):
            return mask
        frame = frame.f_back
    return (1 << _LANES) - 1


def made(value: Any, undefined: Any, origin: str, rule: str = "undefined") -> Value:
    """Returns a register value: a `Poison` if it has undefined bits, else an array, or a scalar if it is one."""
    undefined = np.asarray(undefined)
    if undefined.any():
        dtype = np.asarray(value).dtype
        value, undefined = (np.broadcast_to(x, (_LANES,)).astype(dtype) for x in (value, undefined))
        return Poison(value, undefined, origin, rule)
    if not isinstance(value, np.ndarray) or not value.ndim:
        return value.item() if isinstance(value, np.generic | np.ndarray) else value
    return value


def unwritten(name: str, dtype: Any) -> Poison:
    """Returns the value of a register before anything is written to it."""
    everything = 1 if dtype is np.bool_ else (1 << 128) - 1 if dtype is object else -1
    undefined = np.full(_LANES, everything, object if dtype is object else np.int64).astype(dtype)
    kind = "predicate" if dtype is np.bool_ else "register"
    return Poison(np.zeros(_LANES, dtype), undefined, f"{kind} {name}, which was never written")


def choose(predicate: Value, yes: Value, no: Value, dtype: Any = None) -> Value:
    """Returns the result of ``selp`` or a guarded write. An undefined predicate is harmless if both sides agree."""
    if dtype is None:
        dtype = next(v.dtype for v in (yes, no, predicate) if isinstance(v, Poison))
    a, b, x, y = (np.asarray(part(v)).astype(dtype) for part in (_value, _undefined) for v in (yes, no))
    decides = _value(predicate)
    value, undefined = np.where(decides, a, b), np.where(decides, x, y)
    if isinstance(predicate, Poison):
        undefined = np.where(predicate.undefined, (a ^ b) | x | y, undefined)
    origin = next(v for v in (predicate, yes, no) if isinstance(v, Poison))
    return origin._like(value, undefined)


def merged(parts: list[tuple[Any, Value]], dtype: Any) -> Value:
    """Merges the values of several fragments, each in its own lanes. At least one of them is poison."""
    value, undefined = np.zeros(_LANES, dtype), np.zeros(_LANES, dtype)
    for f, held in parts:
        lanes = f.lane_index
        for out, of in ((value, _value), (undefined, _undefined)):
            items = of(held)
            out[lanes] = items[lanes] if isinstance(items, np.ndarray) else items
    origin = next(v for _, v in parts if isinstance(v, Poison))
    return origin._like(value, undefined)


# ---- functions that compute registers from registers ----


def moves(data: int) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Marks a function if each bit of its result is constant or a copy of one bit of its first ``data`` arguments."""

    def mark(function: Callable[..., Value]) -> Callable[..., Value]:
        function.moves = data  # type: ignore[attr-defined]
        return function

    return mark


def of_operators(function: Callable[..., Value]) -> Callable[..., Value]:
    """Marks a function that accepts poison, because it consists of operators and of functions that accept poison."""
    function.of_operators = True  # type: ignore[attr-defined]
    return function


Masks = Any


def spreads(rule: Callable[..., Masks]) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Marks a function with the rule of its undefined bits. The rule takes the same arguments, with the mask of
    undefined bits in the place of each number (0 if there is none), and returns the mask of the result.
    """

    def mark(function: Callable[..., Value]) -> Callable[..., Value]:
        function.spreads = rule  # type: ignore[attr-defined]
        return function

    return mark


def upwards(*masks: Masks) -> Masks:
    """Returns a mask of all bits from the lowest bit of the masks on."""
    together = any_of(*masks)
    return np.where(together != 0, ~((together & (~together + 1)) - 1), 0).astype(together.dtype)


def in_parts(bits: int, *masks: Masks) -> Masks:
    """Returns a mask of the parts, each of so many bits, that have a bit in one of the masks."""
    together = any_of(*masks)
    result = np.zeros_like(together)
    for low in range(0, 8 * together.itemsize, bits):
        part = together.dtype.type(((1 << bits) - 1) << low)
        result |= np.where(together & part, part, 0).astype(together.dtype)
    return result


def joined(bits: int, high: Masks, low: Masks) -> Masks:
    """Returns the mask of a packed result: the upper part is computed from one value, and the lower from another."""
    parts = [np.where(np.asarray(m) != 0, (1 << bits) - 1, 0) << n for m, n in ((high, bits), (low, 0))]
    return (parts[0] | parts[1]).astype(np.uint32)


def any_of(*masks: Masks) -> Masks:
    arrays = [m for m in masks if isinstance(m, np.ndarray)]
    return np.bitwise_or.reduce(np.broadcast_arrays(*arrays))


@cache
def carrying(function: Callable[..., Value]) -> Callable[..., Value]:
    """Wraps a function that does not know poison, so that its operands may be poison."""
    if hasattr(function, "of_operators"):
        return function

    @wraps(function)
    def carry(*arguments: Value) -> Value:
        if Poison in map(type, arguments):
            return _carried(function, arguments)
        return function(*arguments)

    carry.__name__ = f"carry_{function.__name__}"
    return carry


def _carried(function: Callable[..., Value], arguments: tuple[Value, ...]) -> Value:
    values = [_value(a) for a in arguments]
    data = getattr(function, "moves", 0)
    poisons = [a for a in arguments if isinstance(a, Poison)]
    result = function(*values)
    rule = getattr(function, "spreads", None)
    if rule is not None:
        masks = (
            a.undefined.astype(np.promote_types(a.dtype, np.asarray(result).dtype)) if isinstance(a, Poison)
            else a if isinstance(a, str | bool) else 0
            for a in arguments
        )  # fmt: skip
        return poisons[0]._like(result, np.asarray(rule(*masks)))
    if data and not any(isinstance(a, Poison) for a in arguments[data:]):
        undefined = function(*(_undefined(a) for a in arguments[:data]), *values[data:])
        return poisons[0]._like(result, undefined)
    if isinstance(result, tuple):
        return tuple(poisons[0]._like(r, _everywhere(r, poisons)) for r in result)
    return poisons[0]._like(result, _everywhere(result, poisons))
