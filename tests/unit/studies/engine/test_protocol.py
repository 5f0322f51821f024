"""Records of an earlier protocol are told."""

from smidgen.runtime.record import Record
from smidgen_studies.engine.protocol import PROTOCOL, describe_stale


def _record(**config):
    return Record("cell", config, {})


def test_records_of_an_earlier_protocol_are_counted():
    records = [_record(), _record(protocol=1), _record(protocol=PROTOCOL)]
    sentence = describe_stale(records)
    assert sentence.startswith("2 of 3 records are of an earlier protocol.")
    assert "loss of every test row" in sentence


def test_of_present_records_nothing_is_said():
    assert describe_stale([_record(protocol=PROTOCOL)]) is None
    assert describe_stale([]) is None
