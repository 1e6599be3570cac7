"""Which target has which instructions. ptxas refuses the others, and so does the emulator.

Source: the "Target ISA Notes" of PTX ISA 9.7.9.27 (cp.async.bulk.tensor), 9.7.13.17 (clusterlaunchcontrol),
9.7.15 (wgmma), 9.7.16 (tcgen05) and 9.7.19.5 (setmaxnreg). Targets ending in "a" run on that GPU only.
"""

from __future__ import annotations

from ..errors import PtxSyntaxError
from .ast import Instruction, ParsedModule

_TENSOR_MEMORY = ("sm_100a", "sm_100f", "sm_101a", "sm_101f", "sm_103a", "sm_103f", "sm_110a", "sm_110f")
_CONSUMER = ("sm_120a", "sm_120f", "sm_121a", "sm_121f")
_TARGETS = {
    "wgmma": ("sm_90a",),
    "tcgen05": _TENSOR_MEMORY,
    ".cta_group": _TENSOR_MEMORY,
    "setmaxnreg": ("sm_90a", *_TENSOR_MEMORY, *_CONSUMER),
}


def _feature(instruction: Instruction) -> str | None:
    """The feature of `_TARGETS` an instruction needs, if any."""
    if instruction.opcode in _TARGETS:
        return instruction.opcode
    if any(modifier.startswith("cta_group") for modifier in instruction.modifiers):
        return ".cta_group"
    return None


def check_target(module: ParsedModule) -> None:
    """Raise PtxSyntaxError for the first instruction that the module's ``.target`` does not have."""
    target = module.target.split(",")[0].strip()
    for kernel in module.kernels.values():
        for instruction in kernel.instructions:
            feature = _feature(instruction)
            if feature is not None and target not in _TARGETS[feature]:
                raise PtxSyntaxError(
                    f"PTX line {instruction.line}: {instruction.text[:80]}\n"
                    f"  {feature} does not exist on the module's target {target}; "
                    f"it needs {', '.join(_TARGETS[feature])}"
                )
