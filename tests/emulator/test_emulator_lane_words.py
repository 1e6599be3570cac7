"""Words of shared memory that a whole warp accesses: the straight path does what the careful one does, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, launch

from harness.emulator import Fault
from harness.emulator.memory.shared import SharedMemory, lane_words

FIRST, SIZE, WINDOW = 1024, 1024 + 512, 3 << 24
LANES = np.arange(32)

PLACES = {
    "one after another": FIRST + 4 * LANES,
    "in reverse": FIRST + 4 * LANES[::-1],
    "at one place": np.full(32, FIRST + 4),
    "up to the end": SIZE - 4 - 4 * LANES,
    "reserved": FIRST - 4 + 4 * LANES,
    "beyond the end": SIZE - 4 * LANES,
    "another CTA's": FIRST + 4 * LANES + np.where(LANES == 9, 1 << 24, 0),
    "misaligned": FIRST + 4 * LANES + (LANES == 30),
    "never written": FIRST + 4 * LANES + np.where(LANES == 17, 256, 0),
    "over an mbarrier": FIRST + 4 * LANES + np.where(LANES == 31, 236, 0),
}


def filled() -> SharedMemory:
    """All words of the program's part but number 81 hold something, and an mbarrier lies in numbers 90 and 91."""
    shared = SharedMemory(SIZE)
    shared.write(FIRST, (np.arange(SIZE - FIRST) * 7 % 251).astype(np.uint8))
    shared.poison(FIRST + 4 * 81, 4)
    shared.guard_mbarrier(FIRST + 4 * 90, "mbarrier")
    return shared


def words_at(offsets: np.ndarray):
    return lane_words((offsets + WINDOW).astype(np.uint32).tobytes(), 4, 4, WINDOW)


@pytest.mark.parametrize("place", PLACES)
def test_loads_agree_with_the_careful_path(place):
    shared, words = filled(), words_at(PLACES[place])
    try:
        expected = shared.gather(PLACES[place], 4)
    except (Fault, IndexError):
        assert words is None or shared.gather_words(words) is None
    else:
        assert (shared.gather_words(words) == expected).all()


@pytest.mark.parametrize("place", PLACES)
def test_stores_agree_with_the_careful_path(place):
    straight, careful, words = filled(), filled(), words_at(PLACES[place])
    values = (1000 + LANES).astype(np.uint32)
    stored = words is not None and straight.scatter_words(words, values)
    try:
        careful.scatter(PLACES[place], 4, values)
    except (Fault, IndexError):
        assert not stored
    else:
        assert stored
    assert (straight.data == careful.data).all() and (straight.valid == careful.valid).all()


def test_which_places_are_read_straight():
    words = {name: words_at(offsets) for name, offsets in PLACES.items()}
    straight = {name for name, found in words.items() if found and filled().gather_words(found) is not None}
    assert straight == {"one after another", "in reverse", "at one place", "up to the end", "over an mbarrier"}


LOAD = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2;
add.u32 %r3, %r3, %r4;
setp.ne.u32 %p1, %r0, 21;
@%p1 st.shared.b32 [%r3], %r0;
bar.warp.sync -1;
ld.shared.b32 %r5, [%r3];
ret;
"""


def test_a_program_that_reads_a_word_nobody_wrote_is_told_the_lane():
    with pytest.raises(Fault, match=r"(?s)was never written.*lane 21"):
        launch(LOAD, module_scope=WORDS)
