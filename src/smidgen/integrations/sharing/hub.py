"""Folders on the Hugging Face Hub: only files that smidgen reads go there, or come from there.

No pickle is fetched, nothing is run, and no link may leave the cache of its repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError, StoreError, how_to_install, reason
from smidgen.runtime.reading import refuse_outside

SHARED = (
    *("task.json", "record.json", "report.html", "README.md"),
    *("config.json", "posterior.safetensors", "rules.json"),
    *("delta.safetensors", "subset.safetensors"),
    *("posterior/*.json", "posterior/*.safetensors", "posterior/*.md"),
    *("model/*.json", "model/*.safetensors", "model/*.txt", "model/*.model"),
)
"""Every file that a shared folder may have, as patterns of its path."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""How a repository on the Hub is named: who owns it, and what it is called."""


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
    folder: Path, name: str, *, private: bool | None, revision: str | None, message: str
) -> str:
    """Put a folder into a repository on the Hub, in place of what smidgen had there.

    Args:
        folder: The folder; only files that match `SHARED` go.
        name: The repository, which is made if it is missing.
        private: Whether a new one is private; None for the account's default.
        revision: The branch, which is made if it is missing; main by default.
        message: What the commit says.

    Returns:
        The address of the commit.
    """
    hub = _import_hub()
    with _explaining(name, revision, "written"):
        api = hub.HfApi()
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
    ready = (folder / "task.json").is_file() and (
        folder / "posterior/config.json"
    ).is_file()
    posterior = (folder / "posterior.safetensors").is_file()
    files = ("delta.safetensors", "subset.safetensors")
    return ready or posterior or any((folder / file).is_file() for file in files)


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


@contextmanager
def _explaining(
    name: str, revision: str | None, act: str, lead: str = ""
) -> Iterator[None]:
    """Turn the Hub's errors into one sentence with a next step."""
    check_hub_name(name)
    errors = import_module("huggingface_hub.errors")
    at = "" if revision is None else f" at {revision!r}"
    try:
        yield
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
