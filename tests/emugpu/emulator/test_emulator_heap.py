"""malloc and free of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Device, Fault
from emugpu.emulator.memory.global_memory import GlobalMemory

DECLARED = """
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.extern .func free (.param .b64 pointer);
"""


def malloc(nbytes: str, to: str) -> str:
    return f"""{{ .param .b64 bytes; st.param.b64 [bytes], {nbytes}; .param .b64 got;
    call.uni (got), malloc, (bytes); ld.param.b64 {to}, [got]; }}"""


def free(pointer: str) -> str:
    return f"{{ .param .b64 given; st.param.b64 [given], {pointer}; call.uni free, (given); }}"


FILL = malloc("64", "%rd5") + "st.global.u32 [%rd5+4], %r0; ld.global.u32 %r1, [%rd5+4];" + STORE_R1


def run(body: str, memory: GlobalMemory | None = None, threads: int = 32):
    device = Device(memory=memory or GlobalMemory())
    return launch(body, threads=threads, words=64, module_scope=DECLARED, device=device)


def test_every_thread_has_memory_of_its_own():
    memory = GlobalMemory()
    assert (run(FILL + free("%rd5") + "ret;", memory).words(32) == np.arange(32)).all()
    assert len(memory.allocations) == 1  # the output


def test_what_is_left_over_stays_for_the_next_launch():
    memory = GlobalMemory()
    run(FILL + "ret;", memory)
    assert sum(block.data.size for block in memory.allocations) == 256 + 32 * 64


def test_a_full_heap_gives_null():
    body = malloc("5000000", "%rd5") + "setp.eq.u64 %p1, %rd5, 0; selp.u32 %r1, 1, 0, %p1;" + STORE_R1 + "ret;"
    assert run(body, threads=2).words(2).tolist() == [0, 1]


@pytest.mark.parametrize("pointer", ["%rd0", "%rd6"])
def test_only_what_malloc_gave_is_freed(pointer):
    body = malloc("64", "%rd5") + "add.u64 %rd6, %rd5, 8;" + free(pointer) + "ret;"
    with pytest.raises(Fault, match="which malloc did not return") as error:
        run(body, threads=1)
    assert error.value.rule == "address"


def test_null_may_be_freed_and_what_was_freed_is_gone():
    assert run("mov.u64 %rd5, 0;" + free("%rd5") + "mov.u32 %r1, 3;" + STORE_R1 + "ret;").words(1)[0] == 3
    with pytest.raises(Fault, match="outside every allocation"):
        run(malloc("64", "%rd5") + free("%rd5") + "st.global.u32 [%rd5], %r0; ret;", threads=1)
