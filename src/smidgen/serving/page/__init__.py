"""The page to try rows on in a browser: one file, which loads nothing from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib import resources

from smidgen.serving.form import RowForm


class Page:
    """The page of what is served, with the headers that let it run its own script only.

    Args:
        form: What a row is.
        about: What the server says of itself.
        rules: A sentence for each rule.
    """

    def __init__(
        self, form: RowForm, about: Mapping[str, str], rules: Sequence[str]
    ) -> None:
        said = {"form": form.to_json(), "about": dict(about), "rules": list(rules)}
        # Nothing in it may end the element that holds it.
        told = json.dumps(said).replace("<", "\\u003c")
        style, script = _read("page.css"), _read("page.js")
        self.text = (
            _read("page.html")
            .replace("{{title}}", escape(about.get("folder", "")))
            .replace("{{style}}", style)
            .replace("{{script}}", script)
            .replace("{{told}}", told)
        )
        allowed = (
            "default-src 'none'",
            f"style-src {_name_source(style)}",
            f"script-src {_name_source(script)}",
            "connect-src 'self'",
            "img-src blob: data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
        self.headers = {"Content-Security-Policy": "; ".join(allowed)}


@cache
def _read(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _name_source(text: str) -> str:
    """Name an inline element by its digest, as a content security policy does."""
    digest = base64.b64encode(sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
