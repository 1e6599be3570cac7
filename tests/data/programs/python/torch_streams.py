"""For each pair of arguments two launches in different streams, of which the second reads what the first has written.

The arguments are what is between them, and the stream of the first launch ("a in default": with another current one).
"""

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
HOST = torch.arange(32, dtype=torch.int32)
BETWEEN = {
    "nothing": lambda x: None,
    "to": lambda x: HOST.to("cuda"),
    "copy_": lambda x: x.copy_(HOST),
    "copy_ of pinned memory": lambda x: x.copy_(HOST.pin_memory()),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0].item(),
    "equal": lambda x: torch.equal(x, x),
    "a mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: torch.repeat_interleave(x, torch.ones_like(x)),
    "repeats of a known sum": lambda x: torch.repeat_interleave(x, torch.ones_like(x), output_size=32),
    "an index": lambda x: x[torch.arange(3, device="cuda")],
    "an index of the cpu": lambda x: x[torch.arange(3)],
    "a store by an index of the cpu": lambda x: x.__setitem__(torch.arange(3), 5),
    "a store to the cpu by an index": lambda x: torch.zeros(32).__setitem__(x, 5),
    "on the device": lambda x: x.clone().copy_(x),
    "non_blocking to": lambda x: HOST.to("cuda", non_blocking=True),
    "non_blocking copy_ of pinned memory": lambda x: x.copy_(HOST.pin_memory(), non_blocking=True),
    "non_blocking to the cpu": lambda x: x.to("cpu", non_blocking=True),
    "non_blocking copy_ to pageable memory": lambda x: torch.empty_like(HOST).copy_(x, non_blocking=True),
}


def main(cases):
    driver.start()
    (kernel,) = driver.load(source(COPY + STORE_R1 + "ret;", target="sm_90a", parameters=["u64 from"]), "kernel")
    given, other = (torch.zeros(32, dtype=torch.int32, device="cuda") for _ in range(2))
    streams = {name: torch.cuda.Stream() for name in ("a", "b")} | {"default": torch.cuda.current_stream()}
    for between, first in cases:
        passed, out = (torch.zeros(32, dtype=torch.int32, device="cuda") for _ in range(2))
        stream, _, current = first.partition(" in ")
        driver.launch(kernel, 1, 32, passed.data_ptr(), given.data_ptr(), stream=streams[stream].cuda_stream)
        with torch.cuda.stream(streams[current or stream]):
            BETWEEN[between](other)
        driver.launch(kernel, 1, 32, out.data_ptr(), passed.data_ptr(), stream=streams["b"].cuda_stream)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
