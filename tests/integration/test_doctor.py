"""`smidgen doctor` says what is there, and what brings the rest; it tells no secrets."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import smidgen
from smidgen.cli import main
from smidgen.cli.doctor import findings
from smidgen.cli.doctor.findings import look_around
from smidgen.runtime.system import requirements
from smidgen.runtime.system.requirements import CORE, Requirement

ROOT = Path(__file__).parents[2]
TOKEN = "hf_this_is_a_secret"


def named(found=None):
    return {each.name: each for each in (look_around() if found is None else found)}


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in findings._OFFLINE:
        monkeypatch.delenv(name, raising=False)


def run(capsys, *words, code=0):
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words])
    assert (left.value.code or 0) == code
    return capsys.readouterr().out


def test_a_healthy_machine_is_called_so(capsys):
    printed = run(capsys)
    assert "Everything that smidgen needs is here." in printed
    for word in (smidgen.__version__, torch.__version__, "bf16", "cores", "hub"):
        assert word in printed
    assert TOKEN not in printed


def test_the_json_says_the_same_and_nothing_else(capsys, tmp_path):
    told = json.loads(run(capsys, "--json", "-"))
    assert told["healthy"] is True
    assert told["smidgen"] == smidgen.__version__
    areas = {each["area"] for each in told["findings"]}
    assert areas == {"versions", "extras", "devices", "machine", "terminal", "caches"}
    assert TOKEN not in json.dumps(told)
    path = tmp_path / "told.json"
    run(capsys, "--json", str(path))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written.keys() == told.keys()
    with pytest.raises(SystemExit):
        main(["doctor", "--json", str(path)])
    assert "exists already" in capsys.readouterr().err


def test_what_is_missing_has_the_one_command_that_brings_it(monkeypatch):
    real = requirements.metadata.version

    def version(name):
        if name in ("peft", "ray"):
            raise requirements.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(requirements.metadata, "version", version)
    found = named()
    assert "peft missing" in found["hf"].value
    for extra in ("hf", "ray"):
        assert found[extra].state == "note"
        assert found[extra].remedy == f'pip install "smidgen[{extra}]"'
    assert found["cli"].state == "ok"


def test_what_is_needed_and_too_old_or_gone_is_broken(monkeypatch, capsys):
    real = requirements.metadata.version
    old = {"torch": "2.3.1+cpu", "transformers": "4.49"}

    def version(name):
        if name == "scipy":
            raise requirements.metadata.PackageNotFoundError(name)
        return old.get(name) or real(name)

    monkeypatch.setattr(requirements.metadata, "version", version)
    found = named()
    assert found["torch"].value == "2.3.1+cpu < 2.4"
    assert found["torch"].remedy == 'pip install "torch>=2.4"'
    assert found["scipy"].value == "missing"
    assert "transformers 4.49 (too old)" in found["hf"].value
    assert {found[name].state for name in ("torch", "scipy", "hf")} == {"broken"}
    printed = run(capsys, code=1)
    assert "Broken: scipy, torch, hf." in printed


def test_a_torch_that_cannot_be_imported_is_no_traceback():
    code = """
import sys
sys.modules["torch"] = None
from smidgen.cli import main
main(["doctor"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert not done.stderr
    assert "cannot be imported" in done.stdout
    assert "Broken: torch." in done.stdout


def test_a_cache_that_takes_nothing_is_broken_and_offline_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = named()
    assert found["smidgen"].state == "broken"
    assert found["smidgen"].remedy == "Set SMIDGEN_CACHE to another folder"
    assert found["Hugging Face Hub"].value == "offline by HF_HUB_OFFLINE"
    # Looking leaves nothing behind.
    assert not (tmp_path / "hub").exists()


def test_homes_are_not_spelled_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    monkeypatch.delenv("SMIDGEN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME", raising=False)
    found = named(findings._look_at_caches(True))
    assert found["smidgen"].value.startswith("~/.cache/smidgen, ")
    assert found["models"].value.startswith("~/.cache/huggingface/hub, ")
    assert findings._shorten(str(tmp_path / "someone else")) == str(
        tmp_path / "someone else"
    )


def test_devices_are_those_torch_sees(monkeypatch):
    assert "built without" in named()["cuda"].value
    about = type("About", (), {"name": "A card", "total_memory": 24e9})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found = named(findings._look_at_devices(torch))
    assert found["cuda:0"].value == "A card, 24.0 GB, bf16"
    assert "fp64" in found["mps"].value
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    has = "avx512_bf16" in flags or "amx_bf16" in flags
    assert found["cpu"].value.endswith(", bf16") is has


def test_the_terminal_says_what_it_can_show(monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    found = named(findings._look_at_terminal())["encoding"]
    assert found.state == "note"
    assert "PYTHONUTF8=1" in found.remedy


def test_requirements_are_those_of_pyproject():
    """Read as packaging reads them, from the file that the metadata are made of."""
    packaging = pytest.importorskip("packaging.requirements")
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = table["optional-dependencies"]

    def lines():
        yield from table["dependencies"]
        for extra, needs in extras.items():
            for need in needs:
                line, _, when = need.partition(";")
                both = f"({when}) and " if when else ""
                yield f"{line}; {both}extra == '{extra}'"

    requires = list(lines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requirements.metadata, "requires", lambda package: requires)
        read = requirements.read_requirements()
    assert set(read) == {CORE, *extras}
    for name, needs in ((CORE, table["dependencies"]), *extras.items()):
        own = []
        for line in needs:
            need = packaging.Requirement(line)
            if need.name == "smidgen" or not (
                need.marker is None or need.marker.evaluate()
            ):
                continue
            # A bound of another kind would not be understood.
            least = [each.version for each in need.specifier if each.operator == ">="]
            assert len(least) == 1
            own.append(Requirement(need.name, least[0]))
        assert set(own) <= set(read[name])
    assert set(read["demo"]) == set(read["hf"]) | set(read["cli"]) | set(read["report"])
    assert set(read["demo"]) < set(read["serve"])


@pytest.mark.parametrize(
    ("found", "least", "outdated"),
    [("2.13.0+cpu", "2.4", False), ("2.3.9", "2.4", True), ("4.0", "4", False),
     ("3", "3.0.1", True), ("2.0.0rc1", "2.0", False), (None, "1", False)],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(monkeypatch, found, least, outdated):
    need = Requirement("package", least)
    vars(need)["installed"] = found
    assert need.is_outdated is outdated
    assert need.is_met is (found is not None and not outdated)
