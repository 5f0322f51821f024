"""Build the site into build/site, or show it while writing: `python -m docs.build.site`.

Nothing is fetched, neither here nor by the pages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from docs.build.site import ROOT
from docs.build.site.links import find_faults

SITE = ROOT / "build" / "site"
# Material's note that it ends in 2027; the versions in constraints.txt go on working.
_QUIET = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}


def run_mkdocs(*words: str) -> int:
    """Run mkdocs in the repository, which must be on Python's path for the hooks."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **_QUIET,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    command = [sys.executable, "-m", "mkdocs", *words]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def build(folder: Path, *, pages: bool) -> int:
    """Build the site and check it.

    Args:
        folder: Where it goes.
        pages: Whether to bring the report pages of the gallery up to date before.

    Returns:
        An exit code: 0 if the site is there and nothing is wrong with it.
    """
    if pages:
        module = "docs.build.site.report_pages"
        subprocess.run([sys.executable, "-m", module], cwd=ROOT, check=True)
    code = run_mkdocs("build", "--strict", "--quiet", "--site-dir", str(folder))
    faults = [] if code else find_faults(folder)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not code and not faults:
        print(f"wrote {folder}: open {folder / 'index.html'}")
    return code or bool(faults)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="show it, and follow changes")
    parser.add_argument("--without-pages", action="store_true", help="leave reports be")
    parser.add_argument("--out", type=Path, default=SITE, help="another folder")
    chosen = parser.parse_args()
    if chosen.serve:
        raise SystemExit(run_mkdocs("serve"))
    raise SystemExit(build(chosen.out, pages=not chosen.without_pages))
