import pytest

from smidgen.serving.hosts import is_local, require_known_host
from smidgen.serving.refusals import Refusal


def test_which_addresses_are_local():
    assert all(map(is_local, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.0.1", "")))
    assert not is_local("127.evil.example")


@pytest.mark.parametrize(
    "header",
    ["localhost", "LocalHost:1", "127.0.0.1:8000", "127.0.0.2", "[::1]", "[::1]:8000"]
    + ["Box.local:80", "192.168.0.7:8000", "[fe80::1]:8000"],
)
def test_names_of_this_machine_and_those_that_were_named_are_taken(header):
    require_known_host(header, ("box.local", "192.168.0.7", "[fe80::1]"))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        ":8000",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
    ]
    + ["127.evil.example", "evil.example:localhost", "[::2]", "a" * 5000],
)
def test_all_others_are_refused(header):
    with pytest.raises(
        Refusal, match=r"^Host must be one of 127\.0\.0\.1, localhost"
    ) as no:
        require_known_host(header, ())
    assert no.value.status == 421
    assert len(str(no.value)) < 250
