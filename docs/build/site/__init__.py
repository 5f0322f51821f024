"""The documentation site: `python -m docs.build.site` writes it to `build/site`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
