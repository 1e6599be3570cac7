"""Launches one kernel on tensors of PyTorch: each thread of a warp copies a word. The argument says what is wrong."""

import sys

import driver_client as driver
import torch
from ptx_programs import STORE_R1, source

COPY = """
ld.param.u64 %rd2, [from];
mul.wide.u32 %rd3, %r0, 4;
add.s64 %rd3, %rd2, %rd3;
ld.global.b32 %r1, [%rd3];
"""


def main(case):
    driver.start()
    (kernel,) = driver.load(source(COPY + STORE_R1 + "ret;", target="sm_90a", parameters=["u64 from"]), "kernel")
    given = torch.arange(32, dtype=torch.int32, device="cuda")
    out = torch.empty(32, dtype=torch.int32, device="cuda")
    if case == "short":
        out = torch.empty(31, dtype=torch.int32, device="cuda")
    elif case == "unwritten":
        given = torch.empty(32, dtype=torch.int32, device="cuda")
    elif case == "half-written":
        given = torch.empty(32, 2, dtype=torch.int32, device="cuda")
        given[:, 0] = 5
        given[:20, 1] = 6
        given[21:, 1] = 6
        given = given.view(-1)[32:]
    elif case == "written":
        given = torch.empty(32, 2, dtype=torch.int32, device="cuda")
        given[:, 0] = 5
        given[:, 1] = 6
        given = given.view(-1)[32:]
    address = given.data_ptr()
    if case == "freed":
        del given
    elif case == "cpu":
        address = torch.arange(32, dtype=torch.int32).data_ptr()
    elif case == "pinned":
        given = given.cpu().pin_memory()
        address = given.data_ptr()
    driver.launch(kernel, 1, 32, out.data_ptr(), address)
    torch.cuda.synchronize()
    if case in ("right", "written", "pinned"):
        assert torch.equal(out.cpu(), given.cpu()), out
        assert torch.equal((out + 1).cpu(), given.cpu() + 1)


if __name__ == "__main__":
    main(sys.argv[1])
