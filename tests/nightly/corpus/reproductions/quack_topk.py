"""The indexes of `quack.topk` 0.6.5 where a negative number is among the largest (docs/found.md).

An index lies in the low bits of its number, inverted unless the number is negative. The kernel asks the sign of another
number: of `topk_vals[i]`, which the thread has merged, where it should be `topk_vals_split[i]`, which it decodes.
"""

from __future__ import annotations

import torch
from quack.topk import topk

ROWS, N, K = 8, 256, 128


def main() -> None:
    torch.manual_seed(1)
    x = torch.randn(ROWS, N, dtype=torch.bfloat16).cuda()
    values, indexes = topk(x, K)
    wrong = torch.gather(x, 1, indexes.long()) != values
    print(f"{int(wrong.sum())} indexes are wrong, and {int((values < 0).sum())} values negative")
    assert not wrong.any()


main()
