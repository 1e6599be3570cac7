"""What is read from a GPU by NVML, and that a GPU without it is no reason to lose a timing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from emugpu.errors import CannotRun
from harness.run import telemetry

UUID = "1d2c3b4a-0000-0000-0000-000000000000"


class NVMLError(Exception):
    pass


def nvml(**functions) -> SimpleNamespace:
    """NVML of one GPU, as nvidia-ml-py has it."""

    def handle(uuid: bytes) -> str:
        if uuid != f"GPU-{UUID}".encode():
            raise NVMLError("Not Found")
        return "handle"

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetClockInfo": lambda _, clock: {"SM": 1500, "MEM": 2619}[clock],
        "nvmlDeviceGetPowerUsage": lambda _: 690_500,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 12_345,
        "nvmlDeviceGetTemperature": lambda *_: 61,
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
    }
    constants = {"NVML_CLOCK_SM": "SM", "NVML_CLOCK_MEM": "MEM", "NVML_TEMPERATURE_GPU": 0, "NVMLError": NVMLError}
    return SimpleNamespace(**constants, **(answers | functions))


def test_figures_have_the_units_that_records_have(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    gpu = telemetry.Sensors(UUID)
    assert (gpu.megahertz(), gpu.watts(), gpu.joules(), gpu.celsius()) == (1500, 690.5, 12.345, 61)
    assert gpu.read() == {
        "sm_clock_mhz": 1500, "memory_clock_mhz": 2619, "power_w": 690.5, "power_limit_w": 700.0, "temperature_c": 61,
        "driver": "580.1",
    }  # fmt: skip


def refuse(*_):
    raise NVMLError("Not Supported")


@pytest.mark.parametrize(
    ("found", "uuid", "said"),
    [
        (None, UUID, "clock, power and energy need nvidia-ml-py: pip install '.[torch]'"),
        (nvml(nvmlInit=refuse), UUID, f"NVML cannot read GPU {UUID}: Not Supported"),
        (nvml(), "other", "NVML cannot read GPU other: Not Found"),
        (nvml(nvmlDeviceGetTotalEnergyConsumption=refuse), UUID, f"NVML cannot read GPU {UUID}: Not Supported"),
        (nvml(nvmlDeviceGetEnforcedPowerLimit=refuse), UUID, f"NVML cannot read GPU {UUID}: Not Supported"),
    ],
    ids=["not installed", "no driver", "another GPU", "no energy", "no limit"],
)
def test_what_cannot_be_read_is_said_before_anything_is_timed(monkeypatch, found, uuid, said):
    monkeypatch.setitem(sys.modules, "pynvml", found)
    with pytest.raises(CannotRun) as problem:
        telemetry.Sensors(uuid)
    assert str(problem.value) == said
