import json
import os
import random

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BertForSequenceClassification,
    BertModel,
    GPT2ForSequenceClassification,
)
from transformers.utils import logging

from smidgen.errors import ArgumentError, DataError, StoreError
from smidgen.integrations.huggingface import load_classifier, make_text_loader, save_model
from smidgen.integrations.skeleton import load_skeleton
from smidgen.integrations.text import TextTable
from tests.support.tiny import bert_config, gpt2_config, saved

PAIRED = TextTable(("a b", "c"), pairs=("d", "a a a"), labels=(0, 1))
TABLE = TextTable(("a", "b a", "c c c", "d"), labels=(0, 1, 1, 0))


@pytest.fixture
def encoder(tmp_path):
    return saved(tmp_path / "encoder", BertModel(bert_config()))


@pytest.fixture
def classifier(tmp_path):
    names = {0: "bad", 1: "so", 2: "good"}
    config = bert_config(id2label=names, label2id={v: k for k, v in names.items()})
    return saved(tmp_path / "classifier", BertForSequenceClassification(config))


@pytest.fixture
def gpt2(tmp_path):
    config = gpt2_config(bos_token_id=3, eos_token_id=3)
    model = GPT2ForSequenceClassification(config)
    return saved(tmp_path / "gpt2", model, bert=False)


def test_a_trained_classifier_comes_as_it_was(classifier, capfd):
    model, tokenizer = load_classifier(classifier)
    stored = BertForSequenceClassification.from_pretrained(classifier).state_dict()
    capfd.readouterr()
    load_classifier(str(classifier), labels=3)
    assert capfd.readouterr() == ("", "")
    assert model.state_dict().keys() == stored.keys()
    assert all(torch.equal(model.state_dict()[key], stored[key]) for key in stored)
    assert not model.training
    assert model.config.id2label == {0: "bad", 1: "so", 2: "good"}
    assert tokenizer("a d")["input_ids"] == [2, 4, 7, 3]


def test_the_seed_makes_the_new_head_and_nothing_else(encoder):
    heads, encoders = [], []
    for seed in (0, 0, 1):
        torch.manual_seed(len(heads))
        before = torch.get_rng_state()
        model, _ = load_classifier(encoder, labels=5, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        heads.append(model.classifier.weight.detach())
        encoders.append(model.bert.pooler.dense.weight.detach())
    assert heads[0].shape == (5, 8)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(encoders[0], encoders[2])


def test_an_encoder_is_no_trained_classifier(encoder):
    with pytest.raises(ArgumentError, match="without classifier.bias.*Fine-tune it first"):
        load_classifier(encoder)


def test_a_trained_head_keeps_its_size(classifier):
    with pytest.raises(ArgumentError, match=r"trained head .* shape \(3,\), got 2"):
        load_classifier(classifier, labels=2)
    with pytest.raises(ArgumentError, match="labels must be at least 1, got 0"):
        load_classifier(classifier, labels=0)


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "a/b/c", "../absent-model"])
def test_a_missing_folder(name):
    with pytest.raises(ArgumentError, match=f"folder that exists, got '{name}'"):
        load_classifier(name)


def test_an_unreachable_hub(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ArgumentError, match="hub, got 'nobody/nothing'") as caught:
        load_classifier("nobody/nothing")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(ArgumentError, match=r"without a config\.json. Give a folder made"):
        load_classifier(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match="model, which is one"):
        load_classifier(tmp_path)


def test_pickled_weights_are_refused_unread(classifier):
    (classifier / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match=r"without model\.safetensors"):
        load_classifier(classifier)

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(classifier / "sprung"),))

    torch.save({"classifier.weight": Trap()}, classifier / "pytorch_model.bin")
    with pytest.raises(ArgumentError, match="with pickled weights only"):
        load_classifier(classifier)
    assert not (classifier / "sprung").exists()


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    "chosen", ["adapter_model.bin", "x.safetensors.index.json", "other.safetensors", ["a"]]
)
def test_a_config_does_not_choose_another_file_of_weights(classifier, chosen, trusted):
    weights = load_file(classifier / "model.safetensors")
    torch.save(weights, classifier / "adapter_model.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "adapter_model.bin")}
    (classifier / "x.safetensors.index.json").write_text(json.dumps(index))
    outside = classifier.parent / "outside.safetensors"
    outside.write_bytes((classifier / "model.safetensors").read_bytes())
    (classifier / "other.safetensors").symlink_to(outside)
    config = json.loads((classifier / "config.json").read_text())
    config["transformers_weights"] = chosen
    (classifier / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgumentError, match="transformers_weights.*must be model.safetens"):
        load_classifier(classifier, trust_remote_code=trusted)


def test_a_pipe_among_the_shards_is_refused_and_not_waited_for(classifier):
    weights = load_file(classifier / "model.safetensors")
    (classifier / "model.safetensors").unlink()
    os.mkfifo(classifier / "shard.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shard.safetensors")}
    (classifier / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArgumentError, match="not a regular file"):
        load_classifier(classifier)


def test_code_in_the_folder_is_never_run(classifier):
    (classifier / "own.py").write_text("raise SystemExit('run')\n")
    config = json.loads((classifier / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {
        "AutoConfig": "own.Config",
        "AutoModelForSequenceClassification": "own.Model",
    }
    (classifier / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgumentError, match="asks for code of its own.*trust_remote_code"):
        load_classifier(classifier)
    with pytest.raises(ArgumentError, match="asks for code of its own"):
        load_skeleton(classifier)
    # Asked for, it runs.
    with pytest.raises(SystemExit, match="run"):
        load_classifier(classifier, trust_remote_code=True)


@pytest.mark.parametrize(
    "entry",
    [
        {"attn_implementation": "org/kernel"},
        {"_attn_implementation": "org/kernel:attention"},
        {"_attn_implementation_internal": "flash_attention_2"},
        {"attn_implementation": {"": "sdpa", "text_config": "org/kernel"}},
        {"text_config": {"experts_implementation": "org/kernel"}},
    ],
)
def test_a_kernel_that_a_config_names_is_refused(classifier, entry):
    path = classifier / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **entry}))
    with pytest.raises(ArgumentError, match="asks for the kernel .*trust_remote_code=True"):
        load_classifier(classifier)
    path.write_text(json.dumps({**config, "attn_implementation": "eager"}))
    load_classifier(classifier)


@pytest.mark.parametrize("shard", ["w.bin", "../outside.safetensors", "/etc/passwd", "a/b"])
def test_an_index_leads_to_safetensors_of_its_folder_only(classifier, shard):
    weights = classifier / "model.safetensors"
    names = list(load_file(weights))
    outside = classifier.parent / "outside.safetensors"
    weights.replace(outside)
    index = classifier / "model.safetensors.index.json"

    def name_shard(file):
        about = {"metadata": {}, "weight_map": dict.fromkeys(names, file)}
        index.write_text(json.dumps(about))

    name_shard(shard)
    with pytest.raises(ArgumentError, match="which is no safetensors file of this folder"):
        load_classifier(classifier)
    link = classifier / "link.safetensors"
    link.symlink_to(outside)
    name_shard(link.name)
    with pytest.raises(ArgumentError, match="a link that leaves its folder"):
        load_classifier(classifier)
    link.unlink()
    outside.replace(link)
    load_classifier(classifier)


def test_a_folder_does_not_send_elsewhere(classifier):
    weights = classifier / "model.safetensors"
    (classifier / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    with pytest.raises(ArgumentError, match="with an adapter_config.json"):
        load_classifier(classifier)
    (classifier / "adapter_config.json").unlink()
    weights.replace(classifier.parent / "elsewhere")
    weights.symlink_to(classifier.parent / "elsewhere")
    with pytest.raises(ArgumentError, match="a link that leaves its folder"):
        load_classifier(classifier)
    # The hub's cache is made of such links.
    cache = classifier.parent / "cache"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (classifier.parent / "elsewhere").replace(cache / "blobs" / "0a1b")
    weights.unlink()
    fetched = classifier.replace(cache / "snapshots" / "revision")
    (fetched / weights.name).symlink_to("../../blobs/0a1b")
    load_classifier(fetched)


def test_malformed_files_of_a_model_are_one_sentence(classifier):
    for file in ("config.json", "tokenizer_config.json", "generation_config.json"):
        before = (classifier / file).read_text() if (classifier / file).exists() else None
        for text in ("[" * 100_000, "{", '{"a": 1, "a": 2}', "[]", '{"a": ' * 70 + "1"):
            (classifier / file).write_text(text)
            with pytest.raises(
                ArgumentError, match=f"{file}.*Save the model again"
            ) as error:
                load_classifier(classifier)
            assert "\n" not in str(error.value)
        (classifier / file).unlink()
        if before is not None:
            (classifier / file).write_text(before)
    config = json.loads((classifier / "config.json").read_text())
    for change in ({"hidden_size": "abc"}, {"hidden_size": -4}, {"model_type": ["bert"]}):
        (classifier / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ArgumentError):
            load_classifier(classifier)
        with pytest.raises(ArgumentError):
            load_skeleton(classifier)


def test_damaged_weights_are_refused(classifier):
    weights = classifier / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ArgumentError, match="classifier transformers can load"):
        load_classifier(classifier)


def test_weights_of_another_model_are_refused(classifier, gpt2):
    (gpt2 / "model.safetensors").replace(classifier / "model.safetensors")
    with pytest.raises(ArgumentError, match="must hold the weights of its config.json"):
        load_classifier(classifier, labels=3)


def test_a_model_without_its_tokenizer_is_refused(classifier):
    (classifier / "tokenizer.json").unlink()
    with pytest.raises(ArgumentError, match="must hold a tokenizer"):
        load_classifier(classifier)


def test_gpt2_gets_a_pad_token_and_no_token_types(gpt2):
    model, tokenizer = load_classifier(gpt2)
    assert tokenizer.pad_token == "[SEP]"
    assert model.config.pad_token_id == tokenizer.pad_token_id == 3
    (batch,) = make_text_loader(TABLE, tokenizer, batch_size=4, max_length=8)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    together = model(**batch).logits
    for row, text in enumerate(TABLE.texts):
        alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-5)


def test_logging_is_as_before(classifier):
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.enable_progress_bar()
    try:
        load_classifier(classifier)
        with pytest.raises(ArgumentError):
            load_classifier("./absent")
        assert logging.get_verbosity() == logging.CRITICAL
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(level)
        if not bars:
            logging.disable_progress_bar()


def test_batches_are_padded_to_their_longest_and_in_order(classifier):
    _, tokenizer = load_classifier(classifier)
    first, second = make_text_loader(TABLE, tokenizer, batch_size=2, max_length=16)
    assert type(first) is dict
    assert first["input_ids"].tolist() == [[2, 4, 3, 0], [2, 5, 4, 3]]
    assert first["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert first["token_type_ids"].tolist() == [[0] * 4] * 2
    assert first["labels"].tolist() == [0, 1]
    assert second["input_ids"].tolist() == [[2, 6, 6, 6, 3], [2, 7, 3, 0, 0]]
    assert second["labels"].dtype == torch.int64


def test_pairs_are_joined_and_cut(classifier):
    _, tokenizer = load_classifier(classifier)
    (batch,) = make_text_loader(PAIRED, tokenizer, batch_size=2, max_length=6)
    assert batch["input_ids"].tolist() == [[2, 4, 5, 3, 7, 3], [2, 6, 3, 4, 4, 3]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]


def test_labels_may_be_targets_or_absent(classifier):
    _, tokenizer = load_classifier(classifier)
    table = TextTable(("a", "b"), labels=(0.5, 2.0))
    (batch,) = make_text_loader(table, tokenizer, batch_size=2, max_length=8)
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [0.5, 2.0]
    (batch,) = make_text_loader(
        TextTable(("a", "b")), tokenizer, batch_size=2, max_length=8
    )
    assert "labels" not in batch


@pytest.mark.parametrize("shuffle", [False, True])
def test_orders_come_from_the_seed_and_not_from_the_global_generator(classifier, shuffle):
    _, tokenizer = load_classifier(classifier)
    table = TextTable(("a",) * 50, labels=tuple(range(50)))

    def order(seed):
        loader = make_text_loader(
            table, tokenizer, batch_size=7, max_length=8, shuffle=shuffle, seed=seed
        )
        return [
            [label for batch in loader for label in batch["labels"].tolist()]
            for _ in range(2)
        ]

    before = torch.get_rng_state()
    first, again, other = order(0), order(0), order(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again
    assert sorted(first[0]) == sorted(first[1]) == list(range(50))
    if shuffle:
        assert len({tuple(o) for o in [*first, *other]}) == 4
    else:
        assert first == other == [list(range(50))] * 2


def test_impossible_batches_are_refused(classifier):
    _, tokenizer = load_classifier(classifier)
    with pytest.raises(ArgumentError, match="batch_size must be at least 1, got 0"):
        make_text_loader(TABLE, tokenizer, batch_size=0, max_length=8)
    with pytest.raises(ArgumentError, match="max_length must be from 3 to 16.*got 17"):
        make_text_loader(TABLE, tokenizer, batch_size=1, max_length=17)
    with pytest.raises(ArgumentError, match="max_length must be from 4 to 16.*got 3"):
        make_text_loader(PAIRED, tokenizer, batch_size=1, max_length=3)
    with pytest.raises(DataError, match="at least one text"):
        make_text_loader(TextTable(()), tokenizer, batch_size=1, max_length=8)


def test_a_saved_model_comes_back(encoder, tmp_path, capfd):
    model, tokenizer = load_classifier(encoder, labels=2, seed=3)
    folder = tmp_path / "deep" / "model"
    assert save_model(model, tokenizer, folder) == folder
    assert capfd.readouterr() == ("", "")
    assert os.listdir(folder.parent) == ["model"]
    assert not list(folder.glob("*.bin"))
    back, words = load_classifier(folder)
    for key, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)
    assert words("a b") == tokenizer("a b")


def test_saving_replaces_only_what_it_may(encoder, tmp_path):
    model, tokenizer = load_classifier(encoder, labels=2)
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(model, tokenizer, folder)
    with pytest.raises(StoreError, match="exists already and is not empty"):
        save_model(model, tokenizer, folder)
    save_model(model, tokenizer, folder, overwrite=True)
    load_classifier(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds 'notes.txt'"):
        save_model(model, tokenizer, folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    with pytest.raises(StoreError, match="holds 'thesis.txt'"):
        save_model(model, tokenizer, precious, overwrite=True)
    with pytest.raises(StoreError, match="must be a folder, or not exist"):
        save_model(model, tokenizer, precious / "thesis.txt", overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years"


def test_a_failed_save_leaves_the_old_model(encoder, tmp_path, monkeypatch):
    model, tokenizer = load_classifier(encoder, labels=2)
    folder = save_model(model, tokenizer, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(tokenizer, "save_pretrained", fail)
    with pytest.raises(StoreError, match="model cannot be written: disk full"):
        save_model(model, tokenizer, folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == ["encoder", "model"]


def test_shuffled_batches_hold_every_row_once_and_like_lengths_together(classifier):
    _, tokenizer = load_classifier(classifier)
    generator = random.Random(0)
    words = ["a", "b", "c"]
    texts = tuple(
        " ".join(generator.choices(words, k=generator.randint(1, 13))) for _ in range(130)
    )
    table = TextTable(texts, labels=tuple(range(130)))
    loader = make_text_loader(
        table, tokenizer, batch_size=8, max_length=16, shuffle=True, seed=1
    )
    batches = list(loader)
    assert len(loader) == len(batches) == 17
    seen = [int(label) for batch in batches for label in batch["labels"]]
    assert sorted(seen) == list(range(130))
    assert seen != list(range(130))
    padded = sum(batch["attention_mask"].numel() for batch in batches)
    kept = sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert padded < 1.15 * kept
    again = [int(label) for batch in loader for label in batch["labels"]]
    assert again != seen
