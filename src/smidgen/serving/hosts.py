"""By which names a server may be asked: a page elsewhere can point its own at this machine."""

from __future__ import annotations

from ipaddress import ip_address

from smidgen.serving.refusals import Refusal

_SHOWN = 80


def is_local(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def require_known_host(header: str | None, allowed: tuple[str, ...]) -> None:
    """Refuse a request that was sent to another name than this server's.

    A browser lets a page ask the name it came from. Whoever owns that name may let it mean
    127.0.0.1 a moment later; what cannot be changed so is the name that the browser sends.

    Args:
        header: The header Host, if there is one.
        allowed: Names that are answered besides those of this machine alone.

    Raises:
        Refusal: If it names anything else.
    """
    name = _strip_port(header or "").lower()
    if is_local(name) or name in (each.lower().strip("[]") for each in allowed):
        return
    names = ", ".join(("127.0.0.1", "localhost", "[::1]", *allowed))
    got = repr(header[:_SHOWN]) if header else "none"
    raise Refusal(
        421,
        f"Host must be one of {names}, got {got}. Ask one of them, or start the server with "
        "--allow-host and the name.",
    )


def _strip_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] or header if header.count(":") == 1 else header
