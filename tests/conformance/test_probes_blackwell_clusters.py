"""Answers of the probes of commits and of cluster launch control."""

from __future__ import annotations

from blackwell_answers import ONE_WORKER, answer

from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


def arrivals(name: str) -> dict[str, list[int]]:
    return {case: outputs["found"].tolist() for case, outputs in answer(name).items()}


def test_commits_arrive_where_they_are_sent():
    assert arrivals("commit_own") == {"once": [1, 0, 0, 0], "twice": [0, 0, 0, 2]}
    assert arrivals("commit_per_thread") == {"a whole warp": [0, 32, 0, 0]}
    for name in ("commit_multicast", "commit_multicast_pair"):
        for case, found in arrivals(name).items():
            mask = int(case.split()[-1], 2)
            assert found == [mask >> rank & 1 for rank in range(4)]
    for name in ("commit_named", "commit_named_pair"):
        for case, found in arrivals(name).items():
            assert found == [int(rank == int(case.split()[-1])) for rank in range(4)]
    for case, found in arrivals("commit_peer_bit").items():
        even = int(case.split()[-1]) & ~1
        assert found == [int(rank == even) for rank in range(4)]


def test_work_is_given_once_and_refused_once():
    for name in ("clc_queue", "clc_queue_multicast"):
        [found] = BLACKWELL[name].read(answer(name)).values()
        ran = found.pop("CTAs that ran")
        assert 0 < ran < 24 * 20 * 4
        assert list(found.values()) == [True, True, 0, True, True]
        assert list(found)[-1] == "those that ran are the first"
    for found in answer("clc_refused").values():
        assert (found["found"][:, 0, 0] == 1).all() and (found["found"][:, 0, 1] == 0).all()


def test_words_of_an_answer_are_recognised():
    """Another layout would be told."""
    outputs = answer("clc_queue")
    [case] = outputs
    other = {case: {**outputs[case], "words": outputs[case]["words"][:, [1, 0, 2, 3]]}}
    [line] = BLACKWELL["clc_queue"].explain(outputs, other)
    assert "answers have the layout of the emulator: False; the emulator: True" in line
