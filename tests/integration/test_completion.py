"""The shell completes commands, options and names, at once and without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.build.completion import describe_commands, format_table

from smidgen.cli import app
from smidgen.cli.completion.table import TABLE, make_light_command, offer
from smidgen.posterior.registry import POSTERIORS
from smidgen.select import SELECTORS
from smidgen_studies.cli import _offer_studies
from smidgen_studies.engine.study import shipped_studies

HEAVY = ("torch", "numpy", "scipy", "transformers", "matplotlib")
MOST_SECONDS = 0.6  # of a processor; importing torch alone takes more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the program, and a file and a folder to complete."""
    folder = tmp_path_factory.mktemp("a shell's")
    program = folder / "bin" / "smidgen"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom smidgen.cli import main\nmain()\n", encoding="utf-8"
    )
    program.chmod(0o755)
    (folder / "finetuned").mkdir()
    (folder / "train.tsv").touch()
    return folder


def environment(folder):
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
    sources = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PATH": path, "PYTHONPATH": sources}


def run(folder, *words):
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert not done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def script(folder):
    """The file that a bash sources to complete; asked for as a user asks."""
    printed = run(folder, "bash", "-c", "smidgen --show-completion; exit")
    assert "complete -o default -F _smidgen_completion smidgen" in printed
    path = folder / "completion.sh"
    path.write_text(printed, encoding="utf-8")
    return path


def complete(folder, script, line):
    """What a bash offers after a line, in the order it offers it."""
    words = line.split(" ")
    code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    code += '_smidgen_completion smidgen; printf "%s\\n" "${COMPREPLY[@]}"'
    return run(folder, "bash", "--norc", "-c", code, "bash", str(script), *words).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("smidgen fi", ["finetune", "fit"]),
        ("smidgen do", ["doctor"]),
        ("smidgen st", ["study"]),
        ("smidgen fit model --sel", ["--select"]),
        ("smidgen fit model --method s", ["swag", "ssvi"]),
        ("smidgen fit model --select max-", [n for n in SELECTORS if n.startswith("max-")]),
        ("smidgen ramp model --schemes max-mlp,sp", ["max-mlp,sparse-kfac"]),
        ("smidgen study sh", ["show"]),
        ("smidgen study run glue-", ["glue-ramp", "glue-table2"]),
        ("smidgen study run uci --engine r", ["ray"]),
        ("smidgen study run uci --profile s", ["small"]),
        # Nothing of ours: bash then completes names of files by itself (-o default).
        ("smidgen fit fine", []),
        ("smidgen fit model --train tr", []),
    ],
)
def test_bash_completes(folder, script, line, offered):
    found = complete(folder, script, line)
    assert found == offered or set(offered) == set(found)


def test_a_real_bash_completes_files_where_we_have_nothing(folder, script):
    """Typed at a terminal, with a tab; readline adds the rest of the name."""
    pytest.importorskip("pty")
    import pty  # noqa: PLC0415

    main, shell = pty.openpty()
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=shell,
        stdout=shell,
        stderr=shell,
        cwd=folder,
        env={**environment(folder), "PS1": "> ", "TERM": "dumb", "HISTFILE": ""},
        start_new_session=True,
    )
    os.close(shell)
    keys = f"source '{script.name}'\nsmidgen fit fine\t --train tra\t--met\tswag\x01echo \n"
    os.write(main, keys.encode() + b"exit\n")
    printed = b""
    while True:
        try:
            printed += os.read(main, 4096)
        except OSError:
            break
    process.wait()
    os.close(main)
    lines = printed.decode(errors="replace").replace("\r", "").splitlines()
    assert "smidgen fit finetuned/ --train train.tsv --method swag" in [
        " ".join(line.split()) for line in lines
    ]


@pytest.mark.parametrize("name", ["zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [("smidgen fi", ["finetune", "fit"]), ("smidgen fit m --method s", ["swag", "ssvi"])],
)
def test_what_other_shells_are_told(folder, name, line, offered):
    """As their scripts ask, whether or not the shell itself is on this machine."""
    asked = {"_SMIDGEN_COMPLETE": f"complete_{name}", "_TYPER_COMPLETE_ARGS": line}
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        [folder / "bin" / "smidgen"],
        env={**environment(folder), **asked},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    printed = done.stdout
    if name == "zsh":
        assert printed.startswith("_arguments '*: :((")
        found = [part.split('"')[1] for part in printed.split("((")[1].splitlines()]
    else:
        found = [part.partition("\t")[0] for part in printed.splitlines()]
    assert found == offered


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_their_scripts_are_valid(folder, name):
    asked = {"_SMIDGEN_COMPLETE": f"source_{name}"}
    script = subprocess.run(
        [folder / "bin" / "smidgen"],
        env={**environment(folder), **asked},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    assert "_SMIDGEN_COMPLETE=complete_" in script
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    subprocess.run([name, "-n"], input=script, encoding="utf-8", check=True)


@pytest.mark.parametrize("line", ["smidgen fit m --s", "smidgen study run u", "smidgen "])
def test_completing_imports_nothing_heavy(folder, line):
    code = f"""
import os, sys, time, json
os.environ |= {{"_SMIDGEN_COMPLETE": "complete_bash", "COMP_WORDS": {line!r},
    "COMP_CWORD": "{line.count(" ")}"}}
from smidgen.cli import main
try:
    main([])
finally:
    print(json.dumps([[m for m in {HEAVY} if m in sys.modules], time.process_time()]))
"""
    seconds = []
    for _ in range(3):
        last = run(folder, sys.executable, "-c", code).splitlines()[-1]
        heavy, taken = json.loads(last)
        assert not heavy
        seconds.append(taken)
    assert min(seconds) < MOST_SECONDS


def test_the_list_is_what_the_commands_say():
    """It is made by `python -m docs.build.completion`, which `make format` calls."""
    assert TABLE.read_text(encoding="utf-8") == format_table(describe_commands())


def test_every_name_of_a_registry_is_offered():
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    values = {each["name"]: each.get("values") for each in table["fit"]}
    assert values["select"] == list(SELECTORS)
    assert values["method"] == list(POSTERIORS)
    assert _offer_studies("") == list(shipped_studies())


def test_light_commands_have_all_options_of_the_real_ones():
    for name in app._COMMANDS:
        light, real = make_light_command(name), app._load_command(name)
        for command in (light, real):
            assert command.name == name
        assert options(light) == options(real)


def options(command):
    return {
        (each.name, each.param_type_name, *each.opts, *each.secondary_opts)
        for each in command.params
        if not getattr(each, "hidden", False)
    }


def test_joined_by_commas_the_last_is_completed():
    complete = offer(["one", "two", "three"])
    assert complete("t") == ["two", "three"]
    assert complete("one,t") == ["one,two", "one,three"]
    assert complete("four") == []


def test_the_program_says_how_to_install_it(folder):
    assert "--install-completion" in run(folder, "smidgen", "--help")
    home = folder / "home"
    home.mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", "smidgen --install-completion; exit"],
        env={**environment(folder), "HOME": str(home)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "bash completion installed" in done.stdout
    assert (home / ".bash_completions" / "smidgen.sh").is_file()
    assert "smidgen.sh" in (home / ".bashrc").read_text(encoding="utf-8")
    assert not Path(home / ".zshrc").exists()


if sys.platform == "win32":
    pytestmark = pytest.mark.skip("the shells of this test are not those of Windows")
