"""Where the work is done: devices that are here, are not, and one that is pretended."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import BertModel

from smidgen.errors import ArgumentError
from smidgen.integrations.devices import find_device
from smidgen.integrations.huggingface import load_classifier, load_with_head
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.run import resources_for
from smidgen_studies.engine.study import Resources, read_study, shipped_studies
from smidgen_studies.engine.workers.base import Workspace, do_cell
from smidgen_studies.engine.workers.local import LocalEngine, room_for
from smidgen_studies.kinds import KINDS, find_kind
from tests.integration.test_cli import rows, run
from tests.support import study_kinds
from tests.support.inline_engine import InlineEngine
from tests.support.pretended_device import NAME, can_be_pretended
from tests.support.tiny import bert_config, saved, saved_encoder
from tests.support.tolerances import SINGLE
from tests.unit.studies.engine.test_run import written

# No machine has as many.
ABSENT = "cuda:99"


def make_world(root):
    """Data, and encoders with dropout and without: its draws differ between devices."""
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        saved(root / "encoder", BertModel(bert_config(**plain)))
    saved_encoder(root / "dropped")
    for seed, (name, count) in enumerate([("train", 120), ("val", 64), ("test", 60)]):
        lines = [f"{text}\t{('bad', 'good')[label]}" for text, label in rows(count, seed)]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    source = np.random.default_rng(0)
    images = source.normal(size=(120, 1, 8, 8)).astype("float32")
    np.savez(root / "images.npz", x=images, y=source.integers(0, 3, 120))
    return root


def test_auto_is_the_processor_where_there_is_no_gpu():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_device("auto") == torch.device(expected)
    assert find_device("cpu") == find_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", [ABSENT, "meta", "nonsense", "xla"])
def test_a_device_that_is_not_here_is_refused(name):
    said = f"--device must be auto or a torch device of this machine, got '{name}' "
    with pytest.raises(ArgumentError, match="Leave it out, or use cpu") as refused:
        find_device(name, "--device")
    assert str(refused.value).startswith(said)


def test_loaders_put_the_model_on_the_device(tmp_path):
    folder = saved(tmp_path / "encoder", BertModel(bert_config()))
    for load in (load_classifier, load_with_head):
        with pytest.raises(ArgumentError, match=r"device must be .*'cuda:99'"):
            load(folder, labels=2, device=ABSENT)
        # Before the model is looked for: that may take long.
        with pytest.raises(ArgumentError, match="device must be"):
            load(tmp_path / "nowhere", labels=2, device=ABSENT)
    found, _ = load_classifier(folder, labels=2, device="auto")
    assert found.device == find_device("auto")
    assert load_classifier(folder, labels=2)[0].device.type == "cpu"


@pytest.mark.parametrize(
    "command",
    ["finetune", "bayestune", "fit", "predict", "evaluate", "ramp", "train-sparse"],
)
def test_commands_refuse_a_device_that_is_not_here(command, tmp_path, capsys):
    model = () if command == "train-sparse" else ("model",)
    posterior = ("posterior",) if command in ("predict", "evaluate") else ()
    data = {"predict": ["data"], "evaluate": ["test"], "train-sparse": ["train"]}
    data |= {"ramp": ["train", "val", "test"]}
    files = [w for n in data.get(command, ["train", "val"]) for w in (f"--{n}", __file__)]
    out = () if posterior else ("--out", tmp_path / "out")
    assert run(command, *model, *posterior, *files, *out, "--device", ABSENT) == 1
    assert "--device must be auto or a torch device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_study_has_a_device_and_its_records_say_which(tmp_path, capsys):
    path = written(tmp_path)
    cell = read_study(str(path)).cells[0]
    assert read_study(str(path)).resources.device == "auto"
    assert not do_cell(cell, Workspace(tmp_path / "here", device="auto")).error
    config = Ledger(tmp_path / "here").record(cell).config
    assert config["device"] == str(find_device("auto"))
    assert ABSENT in do_cell(cell, Workspace(tmp_path / "there", device=ABSENT)).error
    with pytest.raises(ArgumentError, match=f"--device must be .*{ABSENT}"):
        LocalEngine(Workspace(tmp_path), Resources(device=ABSENT))
    assert (
        LocalEngine(Workspace(tmp_path), Resources(device="cpu")).workspace.device == "cpu"
    )
    path.write_text(path.read_text() + f'[resources]\ndevice = "{ABSENT}"\n')
    out = ("--out", tmp_path / "run")
    assert run("study", "run", path, *out, "--workers", 1) == 1
    assert f"got '{ABSENT}'" in capsys.readouterr().err
    assert run("study", "run", path, *out, "--workers", 1, "--device", "cpu") == 0


def test_cells_that_stay_on_the_processor_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(study_kinds, "ON_PROCESSOR", True, raising=False)
    cell = read_study(str(written(tmp_path))).cells[0]
    jobs = []
    monkeypatch.setattr(study_kinds, "run", lambda job: jobs.append(job) or {})
    # Nobody looks for a device that the cell would not use.
    assert not do_cell(cell, Workspace(tmp_path / "out", device=ABSENT)).error
    assert [job.device for job in jobs] == ["cpu"]
    assert Ledger(tmp_path / "out").record(cell).config["device"] == "cpu"


def test_only_models_of_text_leave_the_processor():
    staying = {name for name in KINDS if hasattr(find_kind(name), "ON_PROCESSOR")}
    tables = {"uci-map", "uci-laplace", "uci-swag"}
    images = {"sparse-training", "decisions-images", "label-efficiency"}
    assert staying == {"constant", *images, *tables}


@pytest.mark.parametrize("name", shipped_studies())
def test_a_gpu_leaves_room_for_as_many_cells_of_tables_as_ever(name, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setenv("SMIDGEN_MEMORY", "1e12")
    study = read_study(name)
    needed = resources_for(study.cells, study.resources)
    staying = name in ("uci", "bridges", "ssvi", "labels")
    assert needed.device == ("cpu" if staying else "auto")
    assert room_for(needed) == (8 // needed.threads if staying else 1)


def test_a_run_asks_only_for_the_device_that_its_cells_use(tmp_path, monkeypatch):
    path, asked = written(tmp_path), []

    def engine(place, resources, workers):
        asked.append(resources.device)
        return InlineEngine(place)

    monkeypatch.setattr("smidgen_studies.engine.workers.local.LocalEngine", engine)
    words = ("study", "run", path, "--device", ABSENT)
    assert run(*words, "--out", tmp_path / "there") == 0
    monkeypatch.setattr(study_kinds, "ON_PROCESSOR", True, raising=False)
    assert run(*words, "--out", tmp_path / "here") == 0
    assert asked == [ABSENT, "cpu"]


def test_ray_gives_a_cell_a_gpu_only_if_one_is_used():
    pytest.importorskip("ray")
    from smidgen_studies.engine.workers.ray_cluster import gpus_per_cell  # noqa: PLC0415

    assert [gpus_per_cell("auto", there) for there in (0, 1, 4)] == [0, 1, 1]
    assert [gpus_per_cell("cpu", there) for there in (0, 4)] == [0, 0]
    assert gpus_per_cell("cuda", 2) == 1
    with pytest.raises(ArgumentError, match="'cuda', and it has no GPU"):
        gpus_per_cell("cuda", 0)
    with pytest.raises(ArgumentError, match="Ray says which GPU a cell has"):
        gpus_per_cell("cuda:1", 2)


MAY_DIFFER = (
    # Times, and what one is relative to another.
    "second",
    # Examples of nearly the same confidence change places with the last digit.
    "risk_coverage",
    # What products keep besides the indices follows the path, which is chosen by time.
    "derived_bytes",
)
# A scheme that searches for as long as the NLL falls, were it in the last digit.
MAY_END_ELSEWHERE = "best-budget"


# What hangs on the order of rows: last bits decide between equals.
RANKED = (
    "automation",
    "by_class",
    "decisions",
    "detection",
    "error_detection",
    "risk_coverage",
    "score_detection",
)


def numbers(found, place=""):
    """Every number that must not differ between devices, by its place."""
    if isinstance(found, dict):
        score = str(found.get("score", ""))
        if MAY_END_ELSEWHERE in found.values() or score.startswith(RANKED):
            return {}
        inside = [
            (n, v)
            for n, v in found.items()
            if not any(w in n for w in (*MAY_DIFFER, *RANKED))
        ]
    elif isinstance(found, list):
        inside = list(enumerate(found))
    else:
        return {place: found} if isinstance(found, (bool, int, float)) else {}
    return {k: v for n, each in inside for k, v in numbers(each, f"{place}/{n}").items()}


@pytest.mark.slow
@pytest.mark.skipif(not can_be_pretended(), reason="this torch takes no such device")
def test_another_device_finds_what_the_processor_finds(tmp_path):
    """Loaded models, posteriors, batches and targets meet on the device, or all fails."""
    root = make_world(tmp_path)
    told = [sys.executable, "-m", "tests.integration.other_device", str(root)]
    ended = subprocess.run(told, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads((root / "found.json").read_text())
    here, there = found["cpu"], found["other"]
    for record in there["study"].values():
        staying = hasattr(find_kind(record["config"]["kind"]), "ON_PROCESSOR")
        assert record["config"]["device"] == ("cpu" if staying else NAME)
    for name in here:
        wanted = numbers(here[name])
        assert len(wanted) > 5, name
        close = pytest.approx(wanted, rel=SINGLE["rtol"], abs=SINGLE["atol"])
        assert numbers(there[name]) == close, name
