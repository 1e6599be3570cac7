"""The rules for the barriers and buffers that a kernel declares."""
from ..common.kernel import MOST_DECLARED, Kernel
from ..common.word import Word
from .config_error import ConfigError

comptime MOST_COUNTED = (1 << 20) - 1
"""The most arrivals, and the most bytes, that a phase of an mbarrier can expect (PTX ISA 9.7.13.15.2)."""


def taken_names() -> List[Word]:
    """Returns the names of the barriers and the parts of shared memory in any launch plan (plan_json.mojo)."""
    var barriers: List[Word] = ["full", "empty", "accumulator", "accumulator full", "accumulator empty"]
    barriers += ["answer full", "answer empty"]
    var parts: List[Word] = ["A stages", "B stages", "C tile", "A scale stages", "B scale stages"]
    parts += ["partial sums", "barriers"]
    return barriers + parts^


def check_declared(kernel: Kernel) raises ConfigError:
    """Checks the declarations of a kernel."""
    var owner = kernel.capabilities.name
    if kernel.barrier_count > MOST_DECLARED or kernel.buffer_count > MOST_DECLARED:
        var counts = String(t"{kernel.barrier_count} barriers and {kernel.buffer_count} buffers")
        var rule = String(t"a kernel has at most {MOST_DECLARED} of each")
        raise ConfigError("declaration", t"{owner} declares {counts}: {rule}")
    var names = taken_names()
    for i in range(kernel.barrier_count):
        var one = kernel.barriers[i]
        var rule: String
        if one.count < 1:
            rule = String(t"has a count of {one.count}: it must be at least 1")
        elif one.arrivals < 1 or one.arrivals > MOST_COUNTED:
            rule = String(t"expects {one.arrivals} arrivals: they must be 1 to {MOST_COUNTED}")
        elif one.bytes < 0 or one.bytes > MOST_COUNTED:
            rule = String(t"expects {one.bytes} bytes: they must be 0 to {MOST_COUNTED}")
        else:
            rule = name_rule(one.name, names)
        if rule.byte_length() > 0:
            raise ConfigError("declaration", t"the barrier '{one.name}' of {owner} {rule}")
        names.append(one.name)
    for i in range(kernel.buffer_count):
        var one = kernel.buffers[i]
        var rule = name_rule(one.name, names)
        if one.bytes < 1:
            rule = String(t"has {one.bytes} bytes: it must have at least 1")
        if rule.byte_length() > 0:
            raise ConfigError("declaration", t"the buffer '{one.name}' of {owner} {rule}")
        names.append(one.name)


def name_rule(name: Word, names: List[Word]) -> String:
    """Returns the rule that a name breaks, or nothing."""
    if name == "":
        return "has no name: give it one"
    return "has a name that is taken: give it another" if name in names else ""
