"""Reads clocks, power, energy and temperature of a GPU from NVML (package nvidia-ml-py)."""

from __future__ import annotations

from typing import Any

from emugpu.errors import CannotRun


class Sensors:
    """The sensors of the GPU with this UUID, as PyTorch names it. Raises CannotRun without NVML, or if that lacks one
    of the readings, as the energy of some GPUs.
    """

    def __init__(self, uuid: str) -> None:
        try:
            import pynvml
        except ImportError:
            raise CannotRun("clock, power and energy need nvidia-ml-py: pip install '.[torch]'") from None
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}".encode())
            self.read(), self.joules()  # what fails must fail here, not amid the timing
        except pynvml.NVMLError as error:
            raise CannotRun(f"NVML cannot read GPU {uuid}: {error}") from None

    def megahertz(self) -> float:
        """Returns the clock of the SMs."""
        return float(self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))

    def watts(self) -> float:
        return float(self.nvml.nvmlDeviceGetPowerUsage(self.handle)) / 1000

    def joules(self) -> float:
        """Returns the energy since the driver was loaded."""
        return float(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1000

    def celsius(self) -> float:
        return float(self.nvml.nvmlDeviceGetTemperature(self.handle, self.nvml.NVML_TEMPERATURE_GPU))

    def read(self) -> dict[str, Any]:
        """Returns SM and memory clock in MHz, power in W, temperature in C and the driver."""
        driver = self.nvml.nvmlSystemGetDriverVersion()
        return {
            "sm_clock_mhz": self.megahertz(),
            "memory_clock_mhz": self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_MEM),
            "power_w": self.watts(),
            "power_limit_w": self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1000,
            "temperature_c": self.celsius(),
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
        }
