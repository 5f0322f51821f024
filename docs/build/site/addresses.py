"""Links between the repository's pages, as GitHub reads them, led to pages of the site."""

from __future__ import annotations

import posixpath
import re

# What stands beside docs/ in the repository, by its page.
OUTSIDE = {
    "README.md": "index.md",
    "README.md#which-method-when": "which-method.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
    "constraints.txt": "requirements.md",
}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)


def lead_links(markdown: str, home: str, page: str) -> str:
    """Lead the links of a page to pages of the site.

    Args:
        markdown: The page's source.
        home: Where it stands in the repository, such as `docs/run.md`.
        page: Its address in the site, such as `run.md`.

    Returns:
        The source, with every relative link as the site needs it.
    """
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def lead(found: re.Match[str]) -> str:
        return found[1] + _find_address(found[2], home, page) + found[3]

    markdown = _LINK.sub(lead, _FENCE.sub(keep, markdown))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], markdown)


def _find_address(target: str, home: str, page: str) -> str:
    if target.startswith(("http://", "https://", "#", "mailto:")):
        return target
    path, _, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
    whole = f"{place}#{anchor}"
    if whole in OUTSIDE:
        address, anchor = OUTSIDE[whole], ""
    elif place in OUTSIDE:
        address = OUTSIDE[place]
    else:
        address = place.removeprefix("docs/")
    short = posixpath.relpath(address, posixpath.dirname(page) or ".")
    return f"{short}#{anchor}" if anchor else short
