"""Runs a probe on the emulated GPU."""

from __future__ import annotations

from harness.emulator import Device, Module
from metrology.probes.probe import Argument, Case, Map, Outputs, Pointer, Probe, Struct


def run(probe: Probe) -> Outputs:
    """The outputs of the cases that are kept. Raises harness.emulator.EmulatorError if the emulator stops one."""
    module = Module.from_text(probe.ptx)
    outputs: Outputs = {}
    for case in probe.kept_cases:
        device = Device(accumulation=probe.accumulation)
        addresses = {name: device.upload(content, name) for name, content in case.buffers.items()}
        device.launch(
            module,
            probe.entry,
            grid=case.grid,
            cluster=case.cluster,
            block=case.block,
            dynamic_smem=case.shared,
            arguments=[_argument(argument, addresses) for argument in case.arguments],
        )
        outputs[case.name] = {name: _download(device, addresses[name], case, name) for name in case.outputs}
    return outputs


def _argument(argument: Argument, addresses: dict[str, int]) -> object:
    if isinstance(argument, Pointer):
        return addresses[argument.buffer]
    if isinstance(argument, Struct):
        return tuple(_argument(field, addresses) for field in argument.fields)
    return argument.at(addresses[argument.buffer]) if isinstance(argument, Map) else argument


def _download(device: Device, address: int, case: Case, name: str):
    content = case.buffers[name]
    return device.download(address, content.dtype, content.shape)
