"""The GPUs that the emulated driver shows: the H200's figures are recorded ones, the others name where they differ."""

import json
import tomllib
from pathlib import Path

import pytest

from emugpu.driver.gpu_model import DRIVER, FOLDER, NUMBERS, gpu_model, gpu_names
from emugpu.emulator.machine import grid
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from harness.compile.catalog import ARCHITECTURES

FACTS = json.loads((Path(__file__).parents[2] / "data/hardware/h200_device_facts.json").read_text())


def test_the_h200_is_as_recorded_but_for_what_the_emulated_driver_has_not():
    own = tomllib.loads((FOLDER / f"{DRIVER}.toml").read_text())["attributes"]
    model = gpu_model("h200")
    recorded = {int(number): value for number, value in FACTS["attributes"].items()}
    differing = {number for number, value in recorded.items() if model.attributes[number] != value}
    assert differing <= {NUMBERS[name] for name in own}
    assert set(model.attributes) == set(recorded) == set(range(1, len(NUMBERS) + 1))
    assert (model.name, model.memory_bytes) == (FACTS["name"], FACTS["total_memory"])
    assert [model.stack_bytes, model.printf_bytes, model.heap_bytes] == [FACTS["limits"][n] for n in "012"]


SMS = {"b200": 148, "b300": 148, "h100": 132, "h200": 132, "rtx5090": 170, "spark": 48}
SHARED = {"b200": 228, "b300": 228, "h100": 228, "h200": 228, "rtx5090": 100, "spark": 100}


@pytest.mark.parametrize("name", gpu_names())
def test_models_fit_the_emulator(name):
    model = gpu_model(name.upper())
    limits = grid.sm_limits(model.target)
    assert model.target == f"sm_{model.capability[0]}{model.capability[1]}a"
    assert (
        model["multiprocessor_count"] == SMS[name] == grid.residency(model.target, 1, limits.shared * 3 // 4, 128, None)
    )
    assert model["max_shared_memory_per_multiprocessor"] == limits.shared == SHARED[name] * 1024
    assert model["max_shared_memory_per_block_optin"] == limits.shared - RESERVED_SHARED
    if model.target in ARCHITECTURES:
        assert model["max_shared_memory_per_block_optin"] == ARCHITECTURES[model.target].shared_memory
    assert model["reserved_shared_memory_per_block"] == RESERVED_SHARED
    assert model["max_threads_per_multiprocessor"] == limits.threads
    assert model["max_blocks_per_multiprocessor"] == limits.ctas
    assert model["max_registers_per_multiprocessor"] == grid.SM_REGISTERS


def test_an_unknown_gpu():
    with pytest.raises(ValueError, match="GPU 'rtx': must be one of b200, b300, h100, h200, rtx5090, spark"):
        gpu_model("rtx")
