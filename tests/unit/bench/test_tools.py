"""What the benchmarks measure with does what it says."""

from __future__ import annotations

from bench.__main__ import BENCHES
from bench.cost import warm
from bench.cost.growth import _slopes
from bench.cost.lora import GOALS, _plan_llama
from bench.measuring import interleaved, median_ratio, peak_above, start_peak


def test_sides_take_turns_and_warm_rounds_do_not_count():
    turns = []
    sides = {name: lambda name=name: turns.append(name) for name in "ab"}
    clock = iter(range(100))
    times = interleaved(sides, rounds=2, warm=1, clock=lambda: next(clock))
    assert turns == list("ababab")
    assert times == {"a": [1, 1], "b": [1, 1]}


def test_a_ratio_is_of_the_same_round():
    assert median_ratio([2.0, 30.0, 6.0], [1.0, 10.0, 2.0]) == 3.0


def test_a_peak_counts_memory_that_was_given_back():
    start = start_peak()
    block = bytearray(b"x" * 2**26)
    del block
    assert 2**26 <= peak_above(start) < 2**28


def test_slopes_are_powers_of_the_sizes_that_count():
    sizes = {n: {"fit": 3.0 * n**2, "limit": float(n)} for n in (10, 100, 1000)}
    sizes[1] = {"fit": 1e6, "limit": 1e6}
    assert _slopes(sizes, 10) == {"fit": 2.0, "limit": 1.0}


def test_adapters_of_a_large_model_are_planned_small():
    planned = _plan_llama()
    # 32 layers, two adapters each of 8 × 4096 and 4096 × 8.
    assert planned["weights"] == 32 * 2 * 2 * 8 * 4096
    assert planned["stored bytes"] < GOALS["Llama-2-7B, stored bytes"]


def test_every_bench_of_cost_is_registered():
    names = {"limit", "growth", "classes", "lora", "startup", "warm"}
    assert names <= set(BENCHES)


def test_turns_are_compared_round_by_round():
    found = warm.summarise_turns([0.001, 0.010, 0.002], [0.003, 0.011, 0.003])
    assert found["forward, ms"] == 2.0
    assert found["predict, ms"] == 3.0
    assert found[warm.RATIO] == 1.5
    assert found[warm.MORE] == 1.0


def test_one_image_is_measured_beside_its_forward_pass(monkeypatch):
    monkeypatch.setitem(warm.ROUNDS, warm.PICTURE, 3)
    monkeypatch.setitem(warm.WARM, warm.PICTURE, 1)
    found = warm._one_image()
    assert set(found) == {warm.LAST, warm.STREAM}
    assert set(warm.TARGETS[warm.PICTURE]) <= set(found[warm.LAST])
    assert found[warm.LAST]["predict, ms"] > 0
