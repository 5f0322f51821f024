import pytest

from smidgen.errors import ArgumentError
from smidgen.serving.settings import ServingSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number of 1 or more, got 0"),
        ({"max_bytes": 1.5}, "max_bytes must be a whole number of 1 or more, got 1.5"),
        ({"wait": -1}, "wait must be from 0 to 1000 milliseconds, got -1"),
        ({"wait": float("nan")}, "wait must be from 0 to 1000 milliseconds, got nan"),
        ({"timeout": 0}, "timeout must be above 0 and at most 3600 seconds, got 0"),
        ({"max_waiting": 5}, r"max_waiting must be max_rows \(256\) or more, got 5"),
        ({"allow_origin": ("example.org",)}, "allow_origin must be addresses such as"),
        ({"allow_origin": ("*",)}, "allow_origin must be addresses such as"),
        (
            {"allow_origin": ("https://example.org/page",)},
            "allow_origin must be addresses such as",
        ),
        ({"allow_host": ("box.local:8000",)}, "allow_host must be names or addresses"),
        ({"allow_host": ("a:1",)}, "allow_host must be names or addresses"),
        ({"allow_host": ("*",)}, "allow_host must be names or addresses such as box.local"),
    ],
)
def test_what_cannot_be_is_refused(values, message):
    with pytest.raises(ArgumentError, match=message):
        ServingSettings(**values)


def test_origins_are_addresses():
    origins = ("https://example.org", "http://localhost:3000", "http://[::1]:3000")
    assert ServingSettings(allow_origin=origins).allow_origin == origins


def test_hosts_are_names_and_addresses():
    hosts = ("box.local", "my_box", "192.168.0.7", "[fe80::1]", "fe80::1")
    assert ServingSettings(allow_host=hosts).allow_host == hosts
    assert ServingSettings(allow_host=None).allow_host is None
