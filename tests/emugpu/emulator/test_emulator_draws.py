"""The random numbers of random schedules: their stream, and how they are distributed."""

from __future__ import annotations

from collections import Counter

from emugpu.emulator.machine.draws import GAMMA, Draws, mixed, priority, share


def test_the_stream_is_that_of_splitmix64():
    """The first numbers of the seed 1234567, as Rosetta Code publishes them (Pseudo-random numbers/Splitmix64)."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    draws = Draws(1234567)
    assert [draws.draw() for _ in published] == [number >> 32 for number in published]
    assert [mixed(1234567 + n * GAMMA) for n in (1, 2, 3, 4)] == published


def test_a_stream_goes_on_at_any_place():
    draws, other = Draws(3), Draws(3)
    numbers = [draws.draw() for _ in range(1000)]
    for place in (700, 10, 999, 255, 256, 257, 0):
        other.drawn = place
        assert other.draw() == numbers[place] and other.drawn == place + 1


def test_numbers_are_uniform_and_those_of_other_seeds_are_others():
    counts = Counter(draws.below(7) for draws in map(Draws, range(100)) for _ in range(70))
    assert set(counts) == set(range(7)) and all(900 < count < 1100 for count in counts.values())
    assert len({Draws(seed).draw() for seed in range(1000)}) == 1000
    draws = Draws(0)
    assert not any(draws.draw() < share(0) for _ in range(100)) and all(draws.draw() < share(1) for _ in range(100))


def test_half_of_all_priorities_stay_in_each_epoch():
    draws = Draws(5)
    everybody = [draws.root(who) for who in range(1000)]
    now = [priority(one, 0) for one in everybody]
    assert len(set(now)) == 1000
    for epoch in range(1, 5):
        before, now = now, [priority(one, epoch) for one in everybody]
        assert 430 < sum(a == b for a, b in zip(before, now, strict=True)) < 570
    assert draws.root(1) != Draws(6).root(1) and mixed(1) != mixed(2)
