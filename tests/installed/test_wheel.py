"""The wheel and the sdist hold what they should, and work without the repository.

The wheel is installed into a folder of its own, and runs with the packages of this environment.
`make dist` does the same in an empty one (`try_wheel.py`), which takes minutes.
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import smidgen
from tests.installed import try_wheel

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LARGEST_FILE, LARGEST_SDIST, LARGEST_WHEEL = 2_000_000, 10_000_000, 2_000_000
# What is built from and tested with, and what must not leave this machine.
NEEDED = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("Makefile", "constraints.txt", "requirements-model.txt", "SECURITY.md"),
    *("tests/conftest.py", "tests/data/sst2.npz", "tests/installed/quick_start.py"),
    *("docs/index.md", "bench/__main__.py", "results/demo.json", "CITATION.cff"),
    *(".github/workflows/release.yml", ".pre-commit-config.yaml"),
}
UNWANTED = (".venv", "__pycache__", ".git/", "runs/", ".cache", ".egg-info", "build/dist")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(wheel)], check=True)
    return folder


def run(installed, home, *words, check=True):
    """Run Python where the repository is neither the folder nor on the path."""
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_wheel_has_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == ours
    assert {Path(name).suffix for name in names} == {
        *(".py", ".j2", ".css", ".html", ".js", ".toml", ".typed", ".json"),
    }
    assert wheel.stat().st_size < LARGEST_WHEEL


def test_the_version_has_one_source(built, wheel):
    assert "version" in SETTINGS["project"]["dynamic"]
    assert "version" not in SETTINGS["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(archive.read(name))
    assert about["Version"] == smidgen.__version__
    assert wheel.name == f"smidgen-{smidgen.__version__}-py3-none-any.whl"
    assert (built / f"smidgen-{smidgen.__version__}.tar.gz").is_file()
    assert about["Requires-Python"] == ">=3.11"
    assert set(about.get_all("Provides-Extra")) == set(
        SETTINGS["project"]["optional-dependencies"]
    )


def test_the_sdist_has_what_builds_and_tests_it(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        sizes = {
            member.name.partition("/")[2]: member.size
            for member in archive.getmembers()
            if member.isfile()
        }
    assert sizes.keys() >= NEEDED
    assert not [name for name in sizes if any(part in name for part in UNWANTED)]
    assert max(sizes.values()) < LARGEST_FILE
    assert path.stat().st_size < LARGEST_SDIST


def test_twine_finds_nothing_wrong(built):
    if (
        shutil.which("twine") is None
        and not (Path(sys.executable).parent / "twine").is_file()
    ):
        pytest.skip("no twine here")
    files = [str(path) for path in sorted(built.iterdir())]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    subprocess.run(command, check=True, capture_output=True)


def test_the_quick_start_runs_from_the_wheel(installed, tmp_path):
    script = try_wheel.HERE / "quick_start.py"
    code = script.read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line]) <= 10
    found = run(installed, tmp_path, "-c", f"{code}\nprint(smidgen.__file__)")
    assert Path(found.stdout.strip()).is_relative_to(installed)
    assert (tmp_path / "posterior" / "posterior.safetensors").is_file()


def test_package_data_are_found(installed, tmp_path):
    run(installed, tmp_path, "-c", try_wheel.REPORT)
    assert (tmp_path / "page.html").stat().st_size > 10_000
    command = "from smidgen.cli import main; main()"
    listed = run(installed, tmp_path, "-c", command, "study", "list").stdout
    shipped = sorted(
        path.stem for path in (SOURCE / "smidgen_studies" / "shipped").glob("*.toml")
    )
    assert [name for name in shipped if f"{name} " not in listed] == []
    shown = run(installed, tmp_path, "-c", command, "study", "show", "uci").stdout
    shipped_file = SOURCE / "smidgen_studies" / "shipped" / "uci.toml"
    assert shown == shipped_file.read_text(encoding="utf-8")
    typed = "import smidgen, pathlib; print(pathlib.Path(smidgen.__file__).parent)"
    folder = Path(run(installed, tmp_path, "-c", typed).stdout.strip())
    assert (folder / "py.typed").is_file()
    assert "--quick" in run(installed, tmp_path, "-c", command, "demo", "--help").stdout


def test_without_the_command_lines_packages_one_sentence_says_what_to_install(
    installed, tmp_path
):
    code = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("typer", "rich") else real(name, *a)
from smidgen.cli import main
main(["--help"])
"""
    done = run(installed, tmp_path, "-c", code, check=False)
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr == (
        "smidgen: the command line needs typer, which is not installed. Install it with "
        'pip install "smidgen[cli]".\n'
    )


@pytest.mark.slow
@pytest.mark.skipif(
    "SMIDGEN_TRY_WHEEL" not in os.environ,
    reason="takes minutes and gigabytes; make dist does it, or set SMIDGEN_TRY_WHEEL=1",
)
def test_a_stranger_can_install_it(wheel):
    command = [sys.executable, try_wheel.__file__, str(wheel)]
    subprocess.run([*command, "-c", str(ROOT / "constraints.txt")], check=True)
