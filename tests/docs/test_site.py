"""The documentation site: what it is made of, and every link of what is built."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import markdown
import pytest
from docs.build.site import ROOT
from docs.build.site.addresses import lead_links
from docs.build.site.api import list_public, list_rooms, list_used, write_reference
from docs.build.site.commands import list_commands, write_commands
from docs.build.site.links import find_faults, read_page
from docs.build.site.mathematics import convert_equation, find_equations, replace_equations
from docs.build.site.tutorials import convert_script

DOCS = sorted((ROOT / "docs").rglob("*.md"))
ROOMS = list_rooms()


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.module)
def test_every_public_name_has_an_entry_and_a_docstring(room):
    module = importlib.import_module(room.module)
    page = write_reference([])[room.page]
    rooms = {each.module for each in ROOMS}
    for name in module.__all__:
        value = getattr(module, name)
        if getattr(value, "__name__", "") in rooms:
            continue
        marks = [each for each in room.entries if each.name == name]
        assert len(marks) == 1, f"{room.module}.{name} has no entry"
        assert f"::: {marks[0].path}\n" in page
        home = importlib.import_module(marks[0].home)
        assert getattr(home, name) is value
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{room.module}.{name} says nothing"


def test_every_module_with_public_names_has_a_page():
    sources = (ROOT / "src" / "smidgen").rglob("*.py")
    listed = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for path in sources
        if "__all__ = " in path.read_text(encoding="utf-8")
    }
    programs = {name for name in listed if name.startswith("smidgen.cli")}
    assert listed - programs == {room.module for room in ROOMS}
    assert all(list_public(name) for name in listed)


def test_names_that_pages_import_are_there():
    for entry in list_used(DOCS):
        value = getattr(importlib.import_module(entry.home), entry.name)
        assert (value.__doc__ or "").strip(), f"{entry.path} says nothing"


def test_every_command_and_option_is_on_the_page():
    page = write_commands()
    commands = list_commands()
    assert {"run", "predict", "study run"} <= set(commands)
    sections = re.split(r"^## smidgen ", page, flags=re.MULTILINE)[1:]
    assert len(sections) == len(commands)
    for section, (name, command) in zip(sections, commands.items(), strict=True):
        assert section.startswith(f"{name} {{")
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                assert max(parameter.opts, key=len) in section


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_every_equation_is_understood(page):
    for latex in find_equations(page.read_text(encoding="utf-8")):
        element = convert_equation(" ".join(latex.split()), display=True)
        assert element.startswith("<math")
        assert element.count("<mrow>") == element.count("</mrow>")


def test_an_equation_that_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="does not know"):
        convert_equation(r"\begin{aligned} a &= b \end{aligned}", display=True)


def test_code_is_no_equation():
    page = "```python\nx = '$`y`$'\n```\n\n$`y`$\n"
    replaced = replace_equations(page)
    assert "x = '$`y`$'" in replaced
    assert replaced.count("<math") == 1


def test_an_equation_that_begins_a_line_stays_in_its_paragraph():
    page = markdown.markdown(
        replace_equations("The rate is\n$`e^{-a}`$, and no\nmore."),
        extensions=["md_in_html"],
    )
    assert page.count("<p>") == 1
    assert page.endswith("</math></span>, and no\nmore.</p>")


def test_links_beside_the_docs_lead_to_pages():
    text = "[a](../README.md#which-method-when) [b](../../CHANGELOG.md) [c](laplace.md#x)"
    led = lead_links(text, "docs/methods/swag.md", "methods/swag.md")
    assert "[b](../changelog.md)" in led
    assert "[c](laplace.md#x)" in led
    led = lead_links("[a](../README.md#which-method-when)", "docs/index.md", "index.md")
    assert led == "[a](which-method.md)"


def test_a_script_becomes_a_page():
    page = convert_script(
        '"""A title.\n\nWhat it is about.\n"""\nimport os\n\n'
        "# %% [markdown]\n# ## Part\n# Words.\n\n# %%\nprint(os.name)\n"
    )
    assert page.startswith("# A title\n\nWhat it is about.")
    assert "## Part\nWords." in page
    assert "```python\nprint(os.name)\n```" in page


def test_faults_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<p id="here"></p>', encoding="utf-8")
    (tmp_path / "page.html").write_text(
        '<a href="other.html#here">1</a><a href="other.html#gone">2</a><a href="no.html">3</a>'
        '<img src="no.png"><script src="https://cdn.example/x.js"></script>'
        '<a href="http://insecure.example">4</a>',
        encoding="utf-8",
    )
    faults = "\n".join(find_faults(tmp_path))
    for part in (
        "#gone",
        "no.html",
        "no.png",
        "cdn.example",
        "insecure",
        "alternative text",
    ):
        assert part in faults
    assert "#here" not in faults
    assert len(faults.splitlines()) == 6


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [
        sys.executable,
        "-m",
        "docs.build.site",
        "--without-pages",
        "--out",
        str(folder),
    ]
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere(site):
    assert find_faults(site) == []
    assert len(list(site.rglob("*.html"))) > 60


@pytest.mark.slow
def test_every_public_name_can_be_linked_to(site):
    for room in ROOMS:
        page = read_page(site / room.page.replace(".md", ".html"))
        for entry in room.entries:
            assert f"{room.module}.{entry.name}" in page.anchors


@pytest.mark.slow
def test_nothing_is_fetched_and_the_search_has_its_index(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "search-in-files.js" in text
    assert "fonts.googleapis" not in text
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "posterior" in index
