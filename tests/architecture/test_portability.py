"""The sources use nothing that only one system has, but in the files that say what else to do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NAMES = [path.relative_to(ROOT / "src").as_posix() for path in SOURCES]
PLATFORM_ONLY = {
    *(
        "fcntl",
        "grp",
        "posix",
        "pty",
        "pwd",
        "resource",
        "spwd",
        "syslog",
        "termios",
        "tty",
    ),
    *("msvcrt", "nt", "winreg", "_winapi", "winsound", "crypt", "nis", "ossaudiodev"),
}
# Attributes that Windows or macOS lack, or where they do something else (os.kill).
POSIX_ONLY = {
    "os": {
        *("O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "kill", "killpg"),
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "setsid", "uname"),
        *("mkfifo", "mknod", "chown", "lchown", "sched_getaffinity", "sysconf", "pathconf"),
        *("statvfs", "sendfile", "posix_fadvise", "memfd_create", "umask", "nice", "sync"),
        *("symlink", "wait", "waitpid", "getloadavg", "ttyname", "pread", "pwrite"),
    },
    "signal": {"SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "alarm", "setitimer"},
    "time": {"tzset", "clock_gettime"},
}
# Where such a thing is used and what happens without it is written, and tested.
ALLOWED = {
    "smidgen/runtime/memory.py": {"sysconf"},
    "smidgen/runtime/system/process.py": {"kill", "sched_getaffinity"},
    "smidgen/runtime/writing/writable.py": {"pathconf"},
}
OPEN_NO_TEXT = {"os", "gzip", "tarfile", "pillow", "rewrite"}
ALLOWED_PATHS = {"smidgen/runtime/memory.py", "smidgen/runtime/system/process.py"}


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_nothing_is_used_that_only_one_system_has(path):
    name = path.relative_to(ROOT / "src").as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not find_imports(tree) & PLATFORM_ONLY
    assert find_attributes(tree) <= ALLOWED.get(name, set())
    if name not in ALLOWED_PATHS:
        assert not find_system_paths(tree)


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_every_text_has_an_encoding(path):
    """The default is the locale's: UTF-8 here, something else on another machine."""
    assert not find_unencoded(ast.parse(path.read_text(encoding="utf-8")))


def find_imports(tree) -> set[str]:
    """The packages that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def find_attributes(tree) -> set[str]:
    """The attributes of `os` and others that not every system has."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in POSIX_ONLY.get(node.value.id, ()):
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names = {name.name for name in node.names}
            found |= names & POSIX_ONLY.get(node.module or "", set())
    return found


def find_system_paths(tree) -> list[str]:
    """Paths that only some systems have, in text that is no docstring."""
    starts = ("/proc", "/sys/", "/dev/", "/tmp", "/etc", "/var/", "/usr/", "C:\\")
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(starts)
    ]


def find_unencoded(tree) -> list[int]:
    """Lines that read or write text in whatever encoding the locale has."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        named = {keyword.arg for keyword in node.keywords}
        place = {"read_text": 0, "write_text": 1}
        if isinstance(node.func, ast.Attribute) and node.func.attr in place:
            given = len(node.args) > place[node.func.attr] or "encoding" in named
            if not given:
                lines.append(node.lineno)
        elif is_text_open(node) and "encoding" not in named:
            lines.append(node.lineno)
    return lines


def is_text_open(call) -> bool:
    """Whether a call opens a file as text: `open(path, "r")` or `path.open()`."""
    if isinstance(call.func, ast.Name) and call.func.id == "open":
        mode = call.args[1:2]
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "open":
        owner = call.func.value
        if isinstance(owner, ast.Name) and owner.id in OPEN_NO_TEXT:
            return False
        mode = call.args[:1]
    else:
        return False
    mode = [*mode, *(word.value for word in call.keywords if word.arg == "mode")]
    return not any(isinstance(m, ast.Constant) and "b" in str(m.value) for m in mode)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import fcntl", ({"fcntl"}, set(), [], [])),
        ("from fcntl import flock", ({"fcntl"}, set(), [], [])),
        ("os.kill(1, 0)", (set(), {"kill"}, [], [])),
        ("from os import fork", ({"os"}, {"fork"}, [], [])),
        ("Path('/proc/meminfo')", (set(), set(), ["/proc/meminfo"], [])),
        ("path.read_text()", (set(), set(), [], [1])),
        ("path.write_text('a')", (set(), set(), [], [1])),
        ("open(path, 'r')", (set(), set(), [], [1])),
        ("path.open()", (set(), set(), [], [1])),
        ("path.open('rb'); open(path, mode='wb')", (set(), set(), [], [])),
        ("path.read_text('utf-8'); open(p, encoding='utf-8')", (set(), set(), [], [])),
    ],
)
def test_the_rules_find_what_they_forbid(code, found):
    tree = ast.parse(code)
    rules = (find_imports, find_attributes, find_system_paths, find_unencoded)
    assert tuple(rule(tree) for rule in rules) == found


def test_what_touches_the_system_is_imported_without_what_linux_has():
    """Blocked here as they are missing there, in a process of its own."""
    code = """
import os, sys
from importlib import import_module
from pathlib import Path
root = Path(sys.argv[1])
modules = [path.relative_to(root).with_suffix("").parts for path in root.rglob("*.py")]
modules = sorted(".".join(p for p in parts if p != "__init__") for parts in modules)
rooms = ("smidgen.runtime", "smidgen.posterior", "smidgen_studies.engine")
modules = [m for m in modules if m.startswith(rooms) and "ray_cluster" not in m]
for name in modules:
    import_module(name)
# Other libraries have found what they need; ours are imported once more without it.
for name in [name for name in sys.modules if name.startswith("smidgen")]:
    del sys.modules[name]
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("O_CLOEXEC", "O_NONBLOCK", "uname", "fork", "sched_getaffinity", "pathconf"):
    delattr(os, name)
for name in modules:
    import_module(name)
print(len(modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "src")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) > 60
