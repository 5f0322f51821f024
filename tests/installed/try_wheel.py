"""Install a wheel as a stranger would, and use it where the repository is not.

    python tests/installed/try_wheel.py dist/smidgen-0.1.0-py3-none-any.whl

An empty environment gets the wheel alone, runs the quick start in an empty folder, then gets
the extras `cli` and `report` by the command that smidgen itself names, and runs commands. This
file imports nothing but Python's own library, so that any Python can run it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
REPORT = """
import smidgen, torch
batches = [(torch.randn(50, 4), torch.randint(2, (50,))) for _ in range(4)]
model = torch.nn.Linear(4, 2)
posterior = smidgen.fit.laplace(model, batches, smidgen.select.last_layer(model))
smidgen.compare(model, posterior, batches).report("page.html")
page = open("page.html", encoding="utf-8").read()
assert "<style>" in page and "</html>" in page
"""
WHERE = """
import smidgen, smidgen_studies, sys
for package in (smidgen, smidgen_studies):
    assert package.__file__.startswith(sys.prefix), package.__file__
assert not [path for path in sys.path if path.startswith(sys.argv[1])], sys.path
print("smidgen", smidgen.__version__)
"""


class Stranger:
    """An environment of its own, used from a folder that holds nothing."""

    def __init__(self, place: Path, constraints: Path | None) -> None:
        self.home = place / "an empty folder"
        self.home.mkdir()
        self.constraints = ["-c", str(constraints)] if constraints else []
        venv.create(place / "venv", with_pip=True)
        self.bin = place / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        kept = {
            n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "SMIDG"))
        }
        self.environment = kept | {"XDG_CACHE_HOME": str(place / "cache")}

    def run(self, program: str, *words: str, code: int = 0) -> str:
        """Run a program of the environment; it must end with this code."""
        done = subprocess.run(
            [str(self.bin / program), *words],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode != code:
            sys.exit(f"{program} {words} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def install(self, *what: str) -> None:
        """Install with pip, pinned to what the tests use if constraints are given."""
        started = time.monotonic()
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self.run("python", *words, *self.constraints, *what)
        print(f"  installed {' '.join(what)} in {time.monotonic() - started:.0f} s")

    def require(self, text: str, printed: str) -> None:
        """Refuse an output without a text."""
        if text not in printed:
            sys.exit(f"{text!r} is not in:\n{printed}")


def try_core(stranger: Stranger, wheel: Path) -> None:
    """Install the wheel alone; the command line says what it needs."""
    stranger.install(str(wheel))
    print(" ", stranger.run("python", "-c", WHERE, str(REPOSITORY)).strip())
    quick_start = (HERE / "quick_start.py").read_text(encoding="utf-8")
    stranger.run("python", "-c", quick_start)
    if not (stranger.home / "posterior" / "config.json").is_file():
        sys.exit("the quick start saved no posterior")
    print("  the quick start runs with the core alone")
    said = stranger.run("smidgen", "--help", code=1)
    stranger.require('pip install "smidgen[cli]"', said)


def try_commands(stranger: Stranger) -> None:
    """Install extras by the command that smidgen names, and run commands."""
    stranger.install("smidgen[cli]")
    for words, text in (
        (["--help"], "From a file of texts"),
        (["--version"], "0."),
        (["doctor"], 'pip install "smidgen[report]"'),
        (["study", "list"], "uci"),
        (["study", "show", "uci"], "[profiles"),
    ):
        stranger.require(text, stranger.run("smidgen", *words))
    said = stranger.run("smidgen", "demo", code=1)
    stranger.require('pip install "smidgen[demo]"', said)
    print("  smidgen --help, --version, doctor, study list, study show, demo (refused)")
    stranger.install("smidgen[report]")
    stranger.run("python", "-c", REPORT)
    print("  a report page is written with its templates")


def main() -> None:
    """Try the wheel that was named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-c", "--constraints", type=Path)
    words = parser.parse_args()
    constraints = words.constraints and words.constraints.resolve(strict=True)
    with TemporaryDirectory(prefix="smidgen-") as folder:
        print(f"Trying {words.wheel.name} with Python {sys.version.split()[0]} in {folder}")
        stranger = Stranger(Path(folder).resolve(), constraints)
        try_core(stranger, words.wheel.resolve(strict=True))
        try_commands(stranger)
    print(f"{words.wheel.name} works where the repository is not.")


if __name__ == "__main__":
    main()
