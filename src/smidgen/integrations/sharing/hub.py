"""Folders on the Hugging Face Hub: only files that smidgen reads go there, or come from there.

No pickle is fetched, nothing is run, and no link may leave the cache of its repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError, StoreError, how_to_install, reason
from smidgen.runtime.reading import refuse_outside

SINGLE_FILES = {
    "smidgen-delta": "delta.safetensors",
    "smidgen-subset": "subset.safetensors",
}
"""What a delta and a subset are called in a repository, by the key of their header."""
SHARED = (
    *("task.json", "record.json", "report.html", "README.md"),
    *("config.json", "posterior.safetensors", "rules.json"),
    *SINGLE_FILES.values(),
    *("posterior/*.json", "posterior/*.safetensors", "posterior/*.md"),
    *("model/*.json", "model/*.safetensors", "model/*.txt", "model/*.model"),
)
"""Every file that a shared folder may have, as patterns of its path."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""How a repository on the Hub is named: who owns it, and what it is called."""
_PATIENCE = 10.0  # seconds for the first answer
_MADE_BY_HUB = frozenset((".gitattributes", "README.md"))


class _Unreachable(Exception):
    """The Hub does not answer at all."""


def fetch_repository(name: str, *, revision: str | None = None) -> Path:
    """Fetch a repository's folder from the Hub, or find it in the cache.

    Args:
        name: The repository, "user/name".
        revision: A commit, a tag or a branch; the main branch by default.

    Returns:
        The folder in the cache, of one commit.

    Raises:
        ArgumentError: If there is no such repository or version, or it may not be read.
        StoreError: If it holds nothing of smidgen's.
    """
    hub = _import_hub()
    with _explaining(name, revision, "read", f"there is no folder {name!r} here, and "):
        folder = Path(
            hub.snapshot_download(name, revision=revision, allow_patterns=list(SHARED))
        )
    if not is_shared_folder(folder):
        raise StoreError(
            f"{name} on the Hub holds nothing that smidgen saved: neither task.json with a "
            "posterior, nor a posterior, a delta or a subset. Give another repository."
        )
    for path in folder.rglob("*"):
        try:
            refuse_outside(path, folder)
        except StoreError as error:
            raise StoreError(
                f"{path} cannot be read: {error}. Delete {folder} and load again."
            ) from error
    return folder


def push_folder(
    folder: Path,
    name: str,
    *,
    private: bool | None,
    revision: str | None,
    message: str,
    overwrite: bool = False,
) -> str:
    """Put a folder into a repository on the Hub, in place of what smidgen had there.

    Args:
        folder: The folder; only files that match `SHARED` go.
        name: The repository, which is made if it is missing.
        private: Whether a new one is private; None for the account's default.
        revision: The branch, which is made if it is missing; main by default.
        message: What the commit says.
        overwrite: Write into a repository that holds other files, in place of those of
            the same names.

    Returns:
        The address of the commit.

    Raises:
        StoreError: If the repository holds files, and nothing of smidgen's.
    """
    hub = _import_hub()
    with _explaining(name, revision, "written"):
        api = hub.HfApi()
        _require_reachable(hub, api.endpoint)
        if not overwrite:
            _refuse_foreign(name, _list_there(api, name, revision))
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=message,
            allow_patterns=list(SHARED),
            # A rule or an adapter that was there before would be taken for ours.
            delete_patterns=list(SHARED),
        )
    return str(commit.commit_url)


def is_shared_folder(folder: Path) -> bool:
    """Tell whether a folder holds what smidgen saves."""
    return _is_shared(lambda file: (folder / file).is_file())


def _is_shared(has: Callable[[str], bool]) -> bool:
    ready = has("task.json") and has("posterior/config.json")
    return ready or any(map(has, ("posterior.safetensors", *SINGLE_FILES.values())))


def _list_there(api: Any, name: str, revision: str | None) -> list[str]:
    """List the files of a repository's branch; none of a repository that is not there."""
    errors = import_module("huggingface_hub.errors")
    try:
        return list(api.list_repo_files(name, revision=revision))
    except errors.RepositoryNotFoundError:
        return []
    except errors.RevisionNotFoundError:
        # A new branch begins as the main one.
        return list(api.list_repo_files(name))


def _refuse_foreign(name: str, there: list[str]) -> None:
    """Refuse a repository with files that smidgen did not put there."""
    others = sorted(set(there) - _MADE_BY_HUB)
    if not others or _is_shared(there.__contains__):
        return
    shown = ", ".join(others[:3])
    more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
    raise StoreError(
        f"{name} on the Hub must be new, empty or of smidgen's making, got one that holds "
        f"{shown}{more}: pushing would replace or delete some. Give another name, or pass "
        "overwrite=True (--overwrite)."
    )


def is_shared_file(path: str) -> bool:
    """Tell whether a file, by its path in a folder, is one that is shared."""
    return any(fnmatchcase(path, pattern) for pattern in SHARED)


def check_hub_name(name: str) -> None:
    """Refuse what is no name of a repository."""
    if not HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise ArgumentError(
            f"the repository must be named as user/name on the Hub, got {name!r}. Write it "
            "with letters, digits, '-', '_' and '.'."
        )


def _import_hub() -> Any:
    if find_spec("huggingface_hub") is None:
        raise ArgumentError(
            "the Hub needs the package 'huggingface_hub', which is not installed: "
            f"{how_to_install('hf')}."
        )
    return import_module("huggingface_hub")


def _require_reachable(hub: Any, endpoint: str) -> None:
    """Ask the Hub once, since its own client asks for half a minute where no network is."""
    errors = import_module("huggingface_hub.errors")
    try:
        hub.get_session().head(endpoint, timeout=_PATIENCE)
    except errors.OfflineModeIsEnabled:
        raise
    except (errors.HTTPError, OSError) as error:
        raise _Unreachable(
            f"the Hub ({endpoint}) cannot be reached ({reason(error)}). Go online, and try again."
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence what the Hub's client says of each time that it tries again."""
    logs = import_module("huggingface_hub.utils.logging")
    level = logs.get_verbosity()
    logs.set_verbosity_error()
    try:
        yield
    finally:
        logs.set_verbosity(level)


@contextmanager
def _explaining(
    name: str, revision: str | None, act: str, lead: str = ""
) -> Iterator[None]:
    """Turn the Hub's errors into one sentence with a next step."""
    check_hub_name(name)
    errors = import_module("huggingface_hub.errors")
    at = "" if revision is None else f" at {revision!r}"
    try:
        with _quietly():
            yield
    except _Unreachable as error:
        raise ArgumentError(
            f"{lead}{name}{at} on the Hub cannot be {act}: {error}"
        ) from error
    except (errors.HTTPError, OSError, ValueError, RuntimeError) as error:
        # An upload in parts says which part failed, and why only in its cause.
        inner = error.__cause__ if type(error) is RuntimeError else error
        said = _explain(errors, inner or error, revision)
        raise ArgumentError(
            f"{lead}{name}{at} on the Hub cannot be {act}: {said}"
        ) from error


def _explain(errors: Any, error: BaseException, revision: str | None) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    log_in = "Log in with 'hf auth login', or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"there is no version {revision!r}. Name a commit, a tag or a branch."
    if isinstance(error, errors.GatedRepoError):
        return f"its owner lets in those who ask. Ask on its page. {log_in}."
    if status == 401:
        return f"it takes a token that may do so. {log_in}, or check the name."
    if status == 403:
        return f"this token may not do that. {log_in} with one that may write there."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "there is no such repository. Check the name; if it is private, log in first."
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return (
            "it is not in the cache, and the Hub cannot be reached. Go online, or copy its "
            "folder here."
        )
    return f"{reason(error)}. Try again later."
