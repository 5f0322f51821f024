"""Files that no code reads, but releases and contributors do: workflows, citation, templates."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import smidgen

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
# Made on another branch than these files; the workflow names it already.
PROMISED = {"docs"}


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def list_steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def find_pythons():
    """The versions of Python that the package says it runs on."""
    matches = map(VERSION.match, SETTINGS["project"]["classifiers"])
    return [match[1] for match in matches if match]


def find_targets():
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    return {line.partition(":")[0] for line in lines if re.match(r"^[a-z]+:", line)}


def find_pinned(name):
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    lines = text.splitlines()
    (version,) = [each.partition("==")[2] for each in lines if each.startswith(f"{name}==")]
    return version


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_is_there(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if "steps" in job:
            assert job["timeout-minutes"] <= 120
        else:
            assert (ROOT / job["uses"]).exists()
    for step in list_steps(workflow):
        assert "uses" in step or "run" in step
        if "uses" in step:
            action, _, version = step["uses"].partition("@")
            major = re.fullmatch(r"v\d+", version)
            assert major or (action.startswith("pypa/") and version == "release/v1")
        words = step.get("run", "").split()
        for before, target in zip(words, words[1:], strict=False):
            if before == "make":
                assert target in find_targets() | PROMISED
        for word in words:
            if word.startswith("tests/"):
                assert (ROOT / word).exists(), word


def test_tests_run_on_every_python_that_is_named():
    jobs = read(".github/workflows/tests.yml")["jobs"]
    pythons = find_pythons()
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons
    least = SETTINGS["project"]["requires-python"].removeprefix(">=")
    assert pythons[0] == least
    systems = jobs["smoke"]["strategy"]["matrix"]["system"]
    assert {each.partition("-")[0] for each in systems} == {"macos", "windows"}
    for job in jobs.values():
        for step in job["steps"]:
            version = step.get("with", {}).get("python-version")
            assert version is None or version in (*pythons, "${{ matrix.python }}")


def test_a_release_is_made_of_a_tag_and_published_without_a_token():
    workflow = read(".github/workflows/release.yml")
    # YAML 1.1 reads the key `on` as a truth value.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["needs"] == ["test", "build"]
    assert workflow["jobs"]["test"] == {"uses": "./.github/workflows/tests.yml"}
    assert "workflow_call" in read(".github/workflows/tests.yml")[True]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    uses = [step["uses"] for step in publish["steps"]]
    assert uses[-1] == "pypa/gh-action-pypi-publish@release/v1"
    commands = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    assert "make dist PYTHON=python" in commands
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndist:")[2]
    recipe = lines.partition("\n\n")[0]
    for part in ("-m build", "twine check --strict", "try_wheel.py"):
        assert part in recipe


def test_what_is_pinned_is_what_the_package_may_use():
    Requirement = pytest.importorskip("packaging.requirements").Requirement
    project = SETTINGS["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for lines in extras for line in lines)]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    for need in map(Requirement, lines):
        if need.name != "smidgen" and f"\n{need.name}==" in pinned:
            assert need.specifier.contains(find_pinned(need.name.lower())), need
    assert any("<" in line for line in lines if line.startswith("uvicorn"))


def test_the_version_is_written_once():
    assert SETTINGS["project"]["dynamic"] == ["version"]
    assert SETTINGS["tool"]["hatch"]["version"]["path"] == "src/smidgen/__init__.py"
    source = (ROOT / "src/smidgen/__init__.py").read_text(encoding="utf-8")
    assert source.count(f'"{smidgen.__version__}"') == 1


def test_the_citation_is_complete_and_of_this_version():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == smidgen.__version__
    assert citation["license"] == SETTINGS["project"]["license"]
    assert {"title", "message", "authors", "type"} <= citation.keys()
    papers = {
        (tuple(each["family-names"] for each in paper["authors"]), paper["year"])
        for paper in citation["references"]
    }
    assert papers == {
        (("Kampen", "Als", "Andersen"), 2024),
        (("Li", "Miao", "Qiu", "Zhang"), 2024),
        (("Kim", "Hospedales"), 2023),
    }
    for paper in citation["references"]:
        assert paper["title"]
        assert paper["type"] == "conference-paper"


def test_hooks_use_the_version_of_ruff_that_ci_uses():
    repos = {each["repo"]: each for each in read(".pre-commit-config.yaml")["repos"]}
    ruff = repos["https://github.com/astral-sh/ruff-pre-commit"]
    assert ruff["rev"] == f"v{find_pinned('ruff')}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_forms_are_forms(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for each in form["body"]:
        part = each["attributes"]
        assert part.get("label") or part.get("value")


def test_stored_formats_have_the_numbers_that_the_docs_say():
    """docs/versions.md lists every schema number of the sources."""
    text = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    listed = {
        name.strip(): int(number)
        for row in re.findall(r"^\| ([a-z][^|]+) \| (\d+) \|", text, re.MULTILINE)
        for name, number in [(each, row[1]) for each in row[0].split(",")]
    }
    homes = {
        "posterior (folder)": "posterior/store.py",
        "subset": "weights/subset.py",
        "delta": "weights/delta.py",
        "record": "runtime/record.py",
        "rules": "decide/rules.py",
        "task note": "integrations/reading/task_note.py",
        "plain network": "integrations/plain_model.py",
        "base note": "integrations/sharing/base_note.py",
    }
    found = {}
    sources = ROOT / "src" / "smidgen"
    number = re.compile(r"^\w*_SCHEMA = (\d+)$", re.MULTILINE)
    for name, home in homes.items():
        (schema,) = number.findall((sources / home).read_text(encoding="utf-8"))
        found[name] = int(schema)
    assert found == {name: listed.get(name) for name in homes}
    places = {
        path.relative_to(sources).as_posix()
        for path in sources.rglob("*.py")
        if number.search(path.read_text(encoding="utf-8"))
    }
    assert places == set(homes.values())


def test_classifiers_name_the_systems_that_ci_runs():
    systems = {
        each.partition(" :: ")[2]
        for each in SETTINGS["project"]["classifiers"]
        if each.startswith("Operating System")
    }
    assert systems == {"MacOS", "Microsoft :: Windows", "POSIX :: Linux"}
