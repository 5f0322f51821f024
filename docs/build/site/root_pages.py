"""Pages that are written from files beside docs/: changelog, requirements and their like."""

from __future__ import annotations

import re
import tomllib

from docs.build.site import ROOT
from docs.build.site.addresses import lead_links

import smidgen

_COPIED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_WHICH = "## Which method when"
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*(.*)")


def write_root_pages() -> dict[str, str]:
    """Write the pages.

    Returns:
        Markdown by address.
    """
    pages = {}
    for file, page in _COPIED.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        pages[page] = lead_links(text, file, page)
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    pages["license.md"] = f"# License\n\n```text\n{licence.strip()}\n```\n"
    pages["which-method.md"] = _write_which_method()
    pages["requirements.md"] = _write_requirements()
    return pages


def _write_which_method() -> str:
    """The README's section, so that there is only one such table."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = _WHICH[1:] + readme.split(_WHICH)[1].split("\n## ")[0].rstrip() + "\n"
    return lead_links(section, "README.md", "which-method.md")


def _write_requirements() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    )
    exact = {_normalise(name): version for name, version in pins.items()}
    lines = [
        "# Requirements",
        "",
        f"smidgen {smidgen.__version__} needs Python {project['requires-python']}. Written from "
        "`pyproject.toml` (what is allowed) and `constraints.txt` (what every test ran with).",
        "",
        "| part | package | allowed | tested |",
        "|---|---|---|---|",
    ]
    parts = {"core": project["dependencies"], **project["optional-dependencies"]}
    for part, requirements in parts.items():
        for requirement in requirements:
            found = _REQUIREMENT.fullmatch(requirement)
            assert found is not None
            if found[1] != "smidgen":
                tested = exact.get(_normalise(found[1]), "")
                shown = part if part == "core" else f"`{part}`"
                lines.append(f"| {shown} | {found[1]} | {found[2]} | {tested} |")
    lines += [
        "",
        "`pip install -c constraints.txt` installs the tested versions. What a version of smidgen "
        "itself promises: [versions](versions.md).",
    ]
    return "\n".join(lines) + "\n"


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
