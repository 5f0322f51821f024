"""To the Hub and back, by a stand-in that speaks its routes, and by the layout of its cache."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, constants
from peft import LoraConfig, get_peft_model
from torch import nn

import smidgen
from smidgen.cli.app import main
from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.sharing import based_model
from smidgen.integrations.sharing.base_note import NamedBase, write_base_note
from smidgen.workflows.predictor.loading import find_shared
from tests.support.hub_server import TOKEN, run_hub, use_hub
from tests.support.predictors import (
    fit_text_predictor,
    load_tiny,
    make_table_predictor,
    make_texts,
)
from tests.support.tiny import saved_encoder

pytestmark = [
    pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning"),
    # huggingface_hub's own way to upload.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]
ROWS = [{"age": 30 + n, "income": n / 9 - 1} for n in range(5)]
PICKLE = b"\x80\x04cos\nsystem\n(S'false'\ntR."


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The stand-in, a token for it, and an empty cache."""
    with run_hub() as running:
        use_hub(monkeypatch, running.endpoint, tmp_path / "cache")
        yield running


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    predictor = make_table_predictor()
    return smidgen.save_predictor(predictor, tmp_path_factory.mktemp("made") / "ready")


def read_shared(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_ready_folder_goes_there_and_comes_back(hub, ready):
    address = smidgen.push_to_hub(ready, "user/risk", private=True, commit_message="First")
    repository = hub.repositories["user/risk"]
    assert address == f"{hub.endpoint}/user/risk/commit/{repository.branches['main']}"
    assert repository.private
    assert repository.messages[-1] == "First"
    assert repository.files().keys() == {*read_shared(ready), ".gitattributes"}
    loaded = smidgen.load("user/risk")
    assert loaded(ROWS).to_dicts() == smidgen.load(ready)(ROWS).to_dicts()
    card = ModelCard(repository.files()["README.md"].decode())
    assert card.data.library_name == "smidgen"
    assert 'smidgen.load("user/risk")' in card.text
    assert "smidgen predict user/risk --data" in card.text
    assert str(ready) not in card.text
    posterior = smidgen.load("user/risk", loaded.task.problem.model)
    assert posterior.method == "laplace"


def test_versions_are_pinned(hub, ready, tmp_path):
    smidgen.push_to_hub(ready, "user/risk")
    first = hub.repositories["user/risk"].branches["main"]
    other = smidgen.save_predictor(make_table_predictor(rules=False), tmp_path / "other")
    smidgen.push_to_hub(other, "user/risk", revision="next")
    smidgen.push_to_hub(other, "user/risk")
    # Rules that were there before are of another posterior now.
    assert "posterior/rules.json" not in hub.repositories["user/risk"].files()
    assert smidgen.load("user/risk")(ROWS)[0].set is None
    assert smidgen.load("user/risk", revision="next")(ROWS)[0].set is None
    assert smidgen.load("user/risk", revision=first)(ROWS)[0].set is not None
    with pytest.raises(
        ArgumentError, match="there is no version 'gone'. Name a commit, a tag"
    ):
        smidgen.load("user/risk", revision="gone")
    with pytest.raises(
        ArgumentError, match="revision must be left out for a folder that is h"
    ):
        smidgen.load(ready, revision="main")


def test_pickles_and_foreign_files_are_never_fetched(hub, ready):
    files = read_shared(ready)
    bad = ("pytorch_model.bin", "model/pytorch_model.bin", "model/a.pkl", "evil.py", "x.pt")
    hub.make("user/mixed", {**files, **dict.fromkeys(bad, PICKLE), "big.safetensors": b"x"})
    assert len(smidgen.load("user/mixed")(ROWS)) == 5
    assert set(hub.fetched()) == set(files)


def test_a_repository_without_smidgen_is_refused(hub):
    hub.make("user/bert", {"config.json": b"{}", "model.safetensors": b"x" * 9000})
    with pytest.raises(
        StoreError, match="user/bert on the Hub holds nothing that smidgen sav"
    ):
        smidgen.load("user/bert")
    assert hub.fetched() == ["config.json"]


def test_a_repository_of_somebody_elses_files_is_not_written(hub, ready):
    own = {
        "config.json": b"{}",
        "model.safetensors": b"x",
        "vocab.txt": b"a",
        "README.md": b"",
    }
    hub.make("user/bert", {**own, "merges.txt": b""})
    for more in ({}, {"revision": "next"}):
        with pytest.raises(
            StoreError,
            match="user/bert on the Hub must be new, empty or of smidgen's making, got one that "
            "holds config.json, merges.txt, model.safetensors and 1 more: .* overwrite=True",
        ):
            smidgen.push_to_hub(ready, "user/bert", **more)
    assert len(hub.repositories["user/bert"].commits) == 1
    assert list(hub.repositories["user/bert"].branches) == ["main"]
    smidgen.push_to_hub(ready, "user/bert", overwrite=True)
    assert "task.json" in hub.repositories["user/bert"].files()
    # Now it is smidgen's too.
    smidgen.push_to_hub(ready, "user/bert")
    hub.make("user/begun", {"README.md": b"# begun", ".gitattributes": b""})
    smidgen.push_to_hub(ready, "user/begun")


def test_rows_and_places_stay_here(hub, ready, tmp_path):
    folder = shutil.copytree(ready, tmp_path / "with")
    for name in ("record.json", "report.html", "run.json", "notes.txt"):
        (folder / name).write_text("{}")
    smidgen.push_to_hub(folder, "user/risk")
    assert hub.repositories["user/risk"].files().keys() == {
        *read_shared(ready),
        ".gitattributes",
    }
    smidgen.push_to_hub(folder, "user/risk", report=True)
    shared = hub.repositories["user/risk"].files().keys() - read_shared(ready).keys()
    assert shared == {".gitattributes", "record.json", "report.html"}
    # Written without the report again, it is gone.
    smidgen.push_to_hub(folder, "user/risk")
    assert "record.json" not in hub.repositories["user/risk"].files()


def test_a_link_out_of_the_folder_is_not_followed(hub, ready, tmp_path):
    folder = shutil.copytree(ready, tmp_path / "linked")
    (tmp_path / "secret.json").write_text("{}")
    (folder / "posterior" / "secret.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(StoreError, match="secret.json is a link that leaves its folder"):
        smidgen.push_to_hub(folder, "user/risk")
    assert not hub.repositories


def test_without_a_token(hub, ready, monkeypatch):
    smidgen.push_to_hub(ready, "user/risk", private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(
        ArgumentError, match="on the Hub cannot be written: .*Log in with 'hf"
    ):
        smidgen.push_to_hub(ready, "user/other")
    with pytest.raises(
        ArgumentError, match="user/risk .* takes a token that may do so. Log in"
    ):
        smidgen.load("user/risk")
    with pytest.raises(ArgumentError, match="there is no such repository. Check the name"):
        smidgen.load("user/missing")


@pytest.mark.parametrize(
    "name", ["risk", "a/b/c", "user/ri sk", "user/..", "-/x", "a/b--c"]
)
def test_names_that_are_none(name, ready):
    with pytest.raises(ArgumentError, match="must be named as user/name on the Hub, got"):
        smidgen.push_to_hub(ready, name)


def test_what_is_not_a_folder_of_ours_is_not_pushed(hub, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(
        StoreError, match="must be a folder with a posterior that smidgen sav"
    ):
        smidgen.push_to_hub(tmp_path, "user/x")
    with pytest.raises(StoreError, match="must be the file of a delta or a subset"):
        smidgen.push_to_hub(tmp_path / "model.safetensors", "user/x")
    assert not hub.asked


def go_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_offline_what_is_cached_is_loaded(hub, ready, monkeypatch):
    smidgen.push_to_hub(ready, "user/risk")
    expected = smidgen.load("user/risk")(ROWS).to_dicts()
    go_offline(monkeypatch)
    count = len(hub.asked)
    assert smidgen.load("user/risk")(ROWS).to_dicts() == expected
    assert len(hub.asked) == count
    with pytest.raises(
        ArgumentError, match="it is not in the cache, and the Hub cannot be re"
    ):
        smidgen.load("user/absent")


def write_cache(cache, name, files, commit="a" * 40):
    """What snapshot_download leaves: blobs, and links to them by commit."""
    home = cache / f"models--{name.replace('/', '--')}"
    for number, (path, content) in enumerate(files.items()):
        blob, link = home / "blobs" / f"{number:040x}", home / "snapshots" / commit / path
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    return home


def test_a_prepared_cache_is_read_and_may_not_lead_elsewhere(ready, tmp_path, monkeypatch):
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    go_offline(monkeypatch)
    files = {**read_shared(ready), "pytorch_model.bin": PICKLE}
    home = write_cache(tmp_path / "cache", "user/risk", files)
    assert find_shared(Path("user/risk")) == home / "snapshots" / ("a" * 40)
    assert len(smidgen.load("user/risk")(ROWS)) == 5
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    link = home / "snapshots" / ("a" * 40) / "posterior" / "rules.json"
    link.unlink()
    link.symlink_to(secret)
    with pytest.raises(StoreError, match="it is a link that leaves its folder"):
        smidgen.load("user/risk")


def test_the_environment_of_the_shell_is_used(ready, tmp_path):
    """All of it as users do, in a process of its own: push, load, predict."""
    with run_hub() as hub:
        code = (
            "import smidgen, sys\n"
            "smidgen.push_to_hub(sys.argv[1], 'user/risk')\n"
            "print(smidgen.load('user/risk')([{'age': 60, 'income': 1}])[0].answer)\n"
        )
        known = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        more = {"HF_HUB_DISABLE_XET": "1", "PYTHONWARNINGS": "ignore"}
        run = subprocess.run(
            [sys.executable, "-c", code, str(ready)],
            env={**os.environ, **known, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "high <b>"
        assert "user/risk" in hub.repositories


def test_an_adapter_takes_its_base_from_the_hub(hub, tmp_path, monkeypatch):
    encoder = saved_encoder(tmp_path / "encoder")
    commit = hub.make("maker/base", {**read_shared(encoder), "pytorch_model.bin": PICKLE})
    model, tokenizer = load_tiny("maker/base")
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = get_peft_model(model, config).eval()
    predictor = fit_text_predictor(model, tokenizer)
    folder = smidgen.save_predictor(predictor, tmp_path / "ready", base="maker/base")
    smidgen.push_to_hub(folder, "user/reviews")
    assert not any("pytorch_model" in file for file in hub.fetched())
    card = ModelCard(hub.repositories["user/reviews"].files()["README.md"].decode())
    assert card.data.base_model == "maker/base"
    assert commit in card.text
    texts, _ = make_texts(5)
    expected = predictor(texts).to_dicts()
    # The base has moved on; the folder names the commit that it was made of.
    hub.make("maker/base", {"config.json": b"{}"})
    assert smidgen.load("user/reviews")(texts).to_dicts() == expected
    go_offline(monkeypatch)
    assert smidgen.load("user/reviews")(texts).to_dicts() == expected
    # One that names a folder of this machine opens nowhere else.
    local = smidgen.save_predictor(predictor, tmp_path / "local", base=str(encoder))
    with pytest.raises(
        StoreError, match="its base must be a model on the Hub with its commit"
    ):
        smidgen.push_to_hub(local, "user/local")


@pytest.mark.parametrize(
    ("name", "revision"),
    [
        ("//evil.example/share/x", None),
        ("/home/user/private", None),
        ("maker/base", None),
        ("maker/base", "main"),
        ("../elsewhere", "a" * 40),
    ],
)
def test_a_shared_folder_names_no_place_of_this_machine(
    name, revision, hub, ready, tmp_path, monkeypatch
):
    folder = shutil.copytree(ready, tmp_path / "with")
    write_base_note(NamedBase(name, revision, "f" * 64, 2, ()), folder / "model")
    hub.make("user/risk", read_shared(folder))
    monkeypatch.setattr(based_model, "find_model_folder", pytest.fail)
    with pytest.raises(
        StoreError, match="its base must be a model on the Hub with its com"
    ):
        smidgen.load("user/risk")


@pytest.mark.parametrize(
    "name", ["//evil.example/share/x", r"\\evil.example\share", r"\\/evil"]
)
def test_a_base_on_another_machine_is_not_asked_for(name, ready, tmp_path, monkeypatch):
    write_base_note(NamedBase(name, None, "f" * 64, 2, ()), tmp_path)
    monkeypatch.setattr(based_model, "find_model_folder", pytest.fail)
    with pytest.raises(StoreError, match="its base is a folder of another machine"):
        based_model.load_based_model(tmp_path)


def test_posteriors_and_deltas_are_repositories_of_their_own(hub, tmp_path):
    predictor = make_table_predictor()
    network = predictor.task.problem.model
    posterior = smidgen.save(predictor.posterior, tmp_path / "posterior")
    smidgen.push_to_hub(posterior, "user/posterior", base="maker/base")
    loaded = smidgen.load("user/posterior", network)
    assert loaded.fingerprint == predictor.posterior.fingerprint
    card = ModelCard(hub.repositories["user/posterior"].files()["README.md"].decode())
    assert card.data.base_model == "maker/base"
    subset = smidgen.select.named(network, "0.*")
    delta = smidgen.make_delta(network, subset, torch.ones(subset.size), {})
    path = smidgen.save(delta, tmp_path / "moved.safetensors")
    smidgen.push_to_hub(path, "user/delta", base="maker/base")
    found = smidgen.load("user/delta")
    assert isinstance(found, smidgen.Delta)
    assert torch.equal(found.difference, delta.difference)
    smidgen.push_to_hub(smidgen.save(subset, tmp_path / "s.safetensors"), "user/subset")
    assert smidgen.load("user/subset") == subset


def test_a_folder_without_a_posterior_says_what_to_do(ready, tmp_path):
    folder = shutil.copytree(ready, tmp_path / "lacking")
    shutil.rmtree(folder / "posterior")
    with pytest.raises(StoreError, match="has a model and no posterior.*'smidgen pack'"):
        smidgen.load(folder)
    with pytest.raises(
        ArgumentError, match="device must be left out where no predictor is l"
    ):
        smidgen.load(ready, nn.Linear(2, 2), device="cpu")


def run(*words):
    with pytest.raises(SystemExit) as leaving:
        main([*map(str, words), "--quiet"])
    return leaving.value.code


def test_the_commands(hub, ready, tmp_path, capsys):
    assert run("push", ready, "user/risk", "--private", "--json", tmp_path / "p.json") == 0
    assert json.loads((tmp_path / "p.json").read_text())["name"] == "user/risk"
    rows = tmp_path / "rows.csv"
    rows.write_text("age,income\n60,1\n20,-1\n")
    answers = tmp_path / "answers.json"
    assert run("predict", "user/risk", "--data", rows, "--json", answers) == 0
    found = json.loads(answers.read_text())["predictions"]
    expected = smidgen.load(ready)([{"age": 60, "income": 1}, {"age": 20, "income": -1}])
    assert [one["answer"] for one in found] == [one.answer for one in expected]
    hub.make("user/bert", {"model.safetensors": b"x"})
    assert run("push", ready, "user/bert") == 1
    assert run("push", ready, "user/bert", "--overwrite") == 0
    capsys.readouterr()
    assert run("push", ready, "risk") == 1
    assert "must be named as user/name" in capsys.readouterr().err


def test_without_a_network_one_sentence_says_so_at_once(
    ready, tmp_path, monkeypatch, caplog
):
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    start = time.monotonic()
    with pytest.raises(
        ArgumentError, match=r"user/risk on the Hub .* cannot be reached"
    ) as no:
        smidgen.push_to_hub(ready, "user/risk")
    assert str(no.value).endswith("Go online, and try again.")
    assert time.monotonic() - start < 10
    assert not caplog.records
