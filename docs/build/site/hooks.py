"""What mkdocs does besides: generated pages, equations, links, and search without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docs.build.site import ROOT
from docs.build.site.addresses import lead_links
from docs.build.site.api import write_reference
from docs.build.site.commands import write_commands
from docs.build.site.gallery import list_files, write_cards
from docs.build.site.mathematics import pack_font, replace_equations
from docs.build.site.root_pages import write_root_pages
from docs.build.site.tutorials import list_tutorials, name_page, write_scripts
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# Material loads this from the network where pages are opened as files; ours is in the site.
_SHIM = "https://unpkg.com/iframe-worker/shim"
_OUR_SHIM = "assets/search-in-files.js"
_CARDS = "<!-- cards -->"
_GENERATED: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the generated pages, and put those of open sections into the navigation."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    _GENERATED.clear()
    _GENERATED.update(write_root_pages())
    _GENERATED.update(write_reference(pages))
    _GENERATED.update(write_scripts())
    _GENERATED["every-option.md"] = write_commands()
    tutorials = [name_page(file) for file in list_tutorials()]
    api = sorted(page for page in _GENERATED if page.startswith("api/"))
    api.sort(key=_order_page)
    found = {"Tutorials": tutorials, "API": api}
    config.nav = [entry for part in config.nav or [] if (entry := _fill(part, found))]
    return config


def _order_page(page: str) -> tuple[bool, bool, str]:
    """The reference's first page, the rooms with `smidgen` itself before them, the rest."""
    stem = page.removesuffix(".md")
    return stem != "api/index", stem == "api/deeper", stem


def _fill(part: Any, found: dict[str, list[str]]) -> Any:
    """Fill an open section; one that stays empty is left out."""
    if not isinstance(part, dict):
        return part
    ((title, inside),) = part.items()
    if inside == "*":
        return {title: _title_pages(found[title])} if found[title] else None
    if isinstance(inside, list):
        return {title: [each for one in inside if (each := _fill(one, found))]}
    return part


def _title_pages(pages: list[str]) -> list[Any]:
    """Pages of the API are titled by their module; others by their headings."""
    return [
        {page.removeprefix("api/").removesuffix(".md"): page}
        if page.startswith("api/smidgen")
        else page
        for page in pages
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the gallery and the font of equations."""
    for page, text in _GENERATED.items():
        files.append(File.generated(config, page, content=text))
    for path in list_files():
        name = f"gallery/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "assets/equations.woff", content=pack_font()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to pages, and set equations."""
    address = page.file.src_uri
    if address not in _GENERATED:
        markdown = lead_links(markdown, f"docs/{address}", address)
    if _CARDS in markdown:
        markdown = markdown.replace(_CARDS, write_cards())
    return replace_equations(markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the search's helper from the site."""
    depth = page.file.dest_uri.count("/")
    return output.replace(_SHIM, "../" * depth + _OUR_SHIM)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same on the page for addresses that are not there."""
    return output_content.replace(_SHIM, _OUR_SHIM)
