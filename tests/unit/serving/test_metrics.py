import math
import re

from smidgen.serving.metrics import Histogram, Metrics


def read(text):
    """The numbers of a page of metrics, by name and labels; every line must have its form."""
    numbers, described = {}, set()
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, _ = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            described.add(name)
            continue
        match = re.fullmatch(r'(\w+)(\{(?:\w+="(?:[^"\\]|\\.)*",?)*\})? (\S+)', line)
        assert match, line
        name = re.sub(r"_(bucket|sum|count)$", "", match[1])
        assert {match[1], name} & described
        numbers[match[1] + (match[2] or "")] = float(match[3])
    return numbers


def test_a_histogram_counts_every_value_below_each_bound():
    histogram = Histogram([1, 2, 4])
    for value in (0.5, 1, 1.5, 4, 9):
        histogram.add(value)
    assert histogram.write("h") == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2"} 3',
        'h_bucket{le="4"} 4',
        'h_bucket{le="+Inf"} 5',
        "h_sum 16",
        "h_count 5",
    ]


def test_all_counts_are_written_and_names_are_escaped():
    metrics = Metrics({"folder": 'a "b"\\\nc'}, lambda: 7)
    metrics.count_request("/predict", 200)
    metrics.count_request("/predict", 200)
    metrics.count_request("other", 404)
    metrics.count_answers(0.03, 5, abstained=2, strange=1)
    metrics.count_batch(5)
    text = metrics.write()
    assert r'smidgen_info{folder="a \"b\"\\\nc"} 1' in text
    assert text.endswith("\n")
    numbers = read(text)
    assert numbers['smidgen_requests_total{route="/predict",status="200"}'] == 2
    assert numbers['smidgen_requests_total{route="other",status="404"}'] == 1
    assert numbers["smidgen_rows_total"] == 5
    assert numbers["smidgen_abstained_total"] == 2
    assert numbers["smidgen_strange_total"] == 1
    assert numbers['smidgen_request_seconds_bucket{le="0.025"}'] == 0
    assert numbers['smidgen_request_seconds_bucket{le="0.05"}'] == 1
    assert math.isclose(numbers["smidgen_request_seconds_sum"], 0.03)
    assert numbers['smidgen_batch_rows_bucket{le="8"}'] == 1
    assert numbers["smidgen_waiting_rows"] == 7
