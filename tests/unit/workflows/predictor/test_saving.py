"""Ready folders made in Python: whole models, adapters and deltas on a named base."""

import json
import shutil
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from torch import nn

import smidgen
from smidgen.errors import ArgumentError, SmidgenError, StoreError
from smidgen.integrations.sharing.base_note import read_base_note
from smidgen.integrations.sharing.layer_stack import describe_stack
from smidgen.outputs.batches import model_outputs
from smidgen.runtime.artifact import seal
from smidgen.workflows.predictor import saving
from smidgen.workflows.predictor.given_rows import read_given_rows
from tests.support.predictors import (
    fit_text_predictor,
    load_tiny,
    make_image_predictor,
    make_images,
    make_table_predictor,
    make_texts,
)
from tests.support.tiny import bert_config, saved, saved_encoder

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
ROWS = [{"age": 30 + n, "income": n / 9 - 1} for n in range(9)]
TEXTS = make_texts(12)[0]


def list_files(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths}


POSTERIOR = {
    *("posterior/config.json", "posterior/posterior.safetensors"),
    *("posterior/README.md", "posterior/rules.json", "task.json", "README.md"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return saved_encoder(tmp_path_factory.mktemp("base") / "encoder")


@pytest.fixture(scope="module")
def text(encoder):
    return fit_text_predictor(*load_tiny(encoder))


@pytest.fixture(scope="module")
def adapted(encoder):
    """A classifier with an adapter, whose base has another new head than a fresh one."""
    model, tokenizer = load_tiny(encoder, seed=9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        model = get_peft_model(model, config).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.1)
    return fit_text_predictor(model, tokenizer)


@pytest.mark.parametrize("classes", [("low", "high"), None], ids=["classes", "number"])
def test_a_table(classes, tmp_path, unchanged):
    predictor = make_table_predictor(classes=classes)
    with unchanged(predictor.task.problem.model):
        folder = smidgen.save_predictor(predictor, tmp_path / "ready")
    model = {"model/config.json", "model/model.safetensors"}
    assert list_files(folder) == POSTERIOR | model
    loaded = smidgen.load(folder)
    assert isinstance(loaded, smidgen.Predictor)
    assert loaded(ROWS).to_dicts() == predictor(ROWS).to_dicts()
    posterior = smidgen.load(folder, predictor.task.problem.model)
    assert posterior.fingerprint == predictor.posterior.fingerprint
    # What was loaded can be saved again.
    again = smidgen.save_predictor(loaded, tmp_path / "again")
    assert smidgen.load(again)(ROWS).to_dicts() == predictor(ROWS).to_dicts()


def test_images(tmp_path):
    predictor, (images, _) = make_image_predictor(), make_images(20)
    folder = smidgen.save_predictor(predictor, tmp_path / "ready")
    assert smidgen.load(folder)(images).to_dicts() == predictor(images).to_dicts()


def test_a_whole_text_model(text, tmp_path, unchanged):
    network = text.task.problem.model
    before = dict(network.config.id2label)
    with unchanged(network):
        folder = smidgen.save_predictor(text, tmp_path / "ready")
    assert network.config.id2label == before
    assert json.loads((folder / "model/config.json").read_text())["id2label"] == {
        "0": "bad",
        "1": "good",
    }
    assert "model/model.safetensors" in list_files(folder)
    assert smidgen.load(folder)(TEXTS).to_dicts() == text(TEXTS).to_dicts()
    with pytest.raises(
        ArgumentError, match="base must be left out for a model that is stor"
    ):
        smidgen.load(folder, base=tmp_path)


def test_an_adapter_alone_with_its_base_named(adapted, encoder, tmp_path):
    folder = smidgen.save_predictor(adapted, tmp_path / "ready")
    model = {
        *("model/base.json", "model/adapter/adapter_config.json"),
        *("model/adapter/adapter_model.safetensors", "model/tensors.safetensors"),
        *("model/tokenizer.json", "model/tokenizer_config.json"),
    }
    assert list_files(folder) == POSTERIOR | model
    base, _ = read_base_note(folder / "model")
    assert base.name == str(encoder)
    stored = sum(path.stat().st_size for path in (folder / "model").rglob("*.safetensors"))
    assert stored < (encoder / "model.safetensors").stat().st_size
    assert smidgen.load(folder)(TEXTS).to_dicts() == adapted(TEXTS).to_dicts()
    elsewhere = shutil.copytree(encoder, tmp_path / "elsewhere")
    loaded = smidgen.load(folder, base=elsewhere)
    assert loaded(TEXTS).to_dicts() == adapted(TEXTS).to_dicts()


def test_another_base_is_refused(adapted, tmp_path):
    folder = smidgen.save_predictor(adapted, tmp_path / "ready")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        other = type(adapted.task.problem.model.base_model.model.bert)(bert_config())
        saved(tmp_path / "other", other)
    with pytest.raises(StoreError, match="was made on the base .* Pass that base"):
        smidgen.load(folder, base=tmp_path / "other")


def test_a_head_on_a_base(text, encoder, tmp_path):
    folder = smidgen.save_predictor(text, tmp_path / "ready", base=str(encoder))
    assert "model/model.safetensors" not in list_files(folder)
    assert smidgen.load(folder)(TEXTS).to_dicts() == text(TEXTS).to_dicts()


def make_delta(encoder, model):
    """Move the weights of one layer of a model; the delta says which."""
    subset = smidgen.select.named(model, "bert.encoder.layer.0.output.dense.weight")
    base, _ = load_tiny(encoder)
    heads = {n: p for n, p in model.named_parameters() if n.startswith("classifier.")}
    delta = smidgen.make_delta(base, subset, torch.linspace(0, 1, subset.size), heads)
    delta.apply(model)
    return delta


def test_a_delta_on_a_base(encoder, tmp_path):
    model, tokenizer = load_tiny(encoder)
    delta = make_delta(encoder, model)
    predictor = fit_text_predictor(model, tokenizer)
    folder = smidgen.save_predictor(
        predictor, tmp_path / "ready", base=str(encoder), delta=delta
    )
    assert "model/delta.safetensors" in list_files(folder)
    assert "model/tensors.safetensors" not in list_files(folder)
    assert smidgen.load(folder)(TEXTS).to_dicts() == predictor(TEXTS).to_dicts()


def test_a_model_far_from_its_base_is_stored_whole_or_not_at_all(encoder, tmp_path):
    model, tokenizer = load_tiny(encoder)
    for parameter in model.parameters():
        parameter.data.add_(0.01)
    predictor = fit_text_predictor(model, tokenizer)
    with pytest.raises(ArgumentError, match="Leave base out to store the whole model"):
        smidgen.save_predictor(predictor, tmp_path / "ready", base=str(encoder))
    assert not (tmp_path / "ready").exists()


class Own(nn.Module):
    """A network that no file can describe."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, inputs):
        return self.layers(inputs)


def test_a_network_of_ones_own_predicts_and_is_not_stored(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    batches = [(part, (part[:, 0] > 0).long()) for part in x.split(50)]
    model = Own()
    posterior = smidgen.fit.point(model, batches)
    task = smidgen.describe_table(["a", "b"], classes=["x", "y"])
    predictor = smidgen.make_predictor(posterior, model, task)
    assert len(predictor(x.numpy())) == 200
    with pytest.raises(ArgumentError, match="torch's own layers, .*, got Own as model"):
        smidgen.save_predictor(predictor, tmp_path / "ready")

    def forward(model, batch):
        return 2 * model_outputs(model, batch)

    problem = smidgen.Problem(model, forward=forward)
    predictor = smidgen.make_predictor(posterior, problem, task)
    with pytest.raises(ArgumentError, match="a Problem with a forward of its own"):
        smidgen.save_predictor(predictor, tmp_path / "ready")
    assert not list(tmp_path.iterdir())


def test_a_model_that_answers_otherwise_when_it_is_opened_is_not_stored(
    monkeypatch, tmp_path
):
    """The same weights do not make the same model."""
    predictor = make_table_predictor()
    network = predictor.task.problem.model
    shorter = nn.Sequential(OrderedDict([("0", network[0]), ("2", network[2])]))
    monkeypatch.setattr(saving, "describe_stack", lambda _: describe_stack(shorter))
    with pytest.raises(StoreError, match="the same outputs when it is opened again"):
        smidgen.save_predictor(predictor, tmp_path / "ready")
    assert not list(tmp_path.iterdir())


def test_a_text_model_with_a_forward_of_its_own_is_not_stored(encoder, tmp_path):
    model, tokenizer = load_tiny(encoder)

    class Doubled(type(model)):
        def forward(self, **inputs):
            found = super().forward(**inputs)
            found.logits = 2 * found.logits
            return found

    model.__class__ = Doubled
    predictor = fit_text_predictor(model, tokenizer)
    with pytest.raises(StoreError, match="the same outputs when it is opened again"):
        smidgen.save_predictor(predictor, tmp_path / "ready")


def test_rules_of_another_posterior_are_refused(tmp_path):
    """Their promises are of its predictions, not of those of the same model without them."""
    predictor = make_table_predictor()
    folder = smidgen.save_predictor(predictor, tmp_path / "ready")
    warm = predictor.posterior.with_temperature(2 * predictor.posterior.temperature)
    model = predictor.task.problem.model
    other = smidgen.make_predictor(warm, model, predictor.note)
    other = smidgen.save_predictor(other, tmp_path / "other")
    shutil.copy(folder / "posterior/rules.json", other / "posterior/rules.json")
    with pytest.raises(StoreError, match="with another posterior than the one beside them"):
        smidgen.load(other)


def test_a_taken_folder_is_not_overwritten(tmp_path):
    predictor = make_table_predictor()
    folder = smidgen.save_predictor(predictor, tmp_path / "ready")
    with pytest.raises(StoreError, match="exists already"):
        smidgen.save_predictor(predictor, folder)
    smidgen.save_predictor(predictor, folder, overwrite=True)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds 'thesis.txt'"):
        smidgen.save_predictor(predictor, folder, overwrite=True)


def damage(path, change=lambda text: text.replace("0", "1", 1)):
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    "file",
    [
        "task.json",
        "posterior/rules.json",
        "posterior/config.json",
        "model/base.json",
        "model/adapter/adapter_config.json",
        "model/tokenizer_config.json",
    ],
)
def test_a_damaged_file_is_refused(file, adapted, tmp_path):
    folder = smidgen.save_predictor(adapted, tmp_path / "ready")
    damage(folder / file, lambda text: text.replace('"', '"x', 1))
    with pytest.raises(SmidgenError, match=r"damaged|read|unknown|lacks|is missing"):
        smidgen.load(folder)


def test_a_file_that_is_gone_or_leads_elsewhere_is_refused(adapted, tmp_path):
    folder = smidgen.save_predictor(adapted, tmp_path / "ready")
    weights = folder / "model/adapter/adapter_model.safetensors"
    weights.rename(tmp_path / "weights")
    with pytest.raises(StoreError, match="there is no 'adapter_model.safetensors'"):
        smidgen.load(folder)
    weights.symlink_to(tmp_path / "weights")
    with pytest.raises(StoreError, match="a link that leaves its folder"):
        smidgen.load(folder)


def test_code_that_a_folder_asks_for_is_not_run(text, adapted, tmp_path):
    folder = smidgen.save_predictor(text, tmp_path / "whole")
    asked = '"auto_map": {"AutoModelForSequenceClassification": "evil.Model"}, '
    damage(folder / "model/config.json", lambda config: config.replace("{", "{" + asked, 1))
    with pytest.raises(ArgumentError, match="asks for code of its own"):
        smidgen.load(folder)
    # Whoever seals a folder anew may write anything into it.
    folder = smidgen.save_predictor(adapted, tmp_path / "adapted")
    header = json.loads((folder / "model/base.json").read_text())
    del header["digest"], header["files"]["adapter/adapter_model.safetensors"]
    (folder / "model/adapter/adapter_model.bin").write_bytes(b"\x80\x04N.")
    (folder / "model/base.json").write_text(json.dumps(seal(header)))
    with pytest.raises(StoreError, match="its adapter has no safetensors weights"):
        smidgen.load(folder)


def test_the_card_is_read_by_the_hub(adapted, encoder, tmp_path):
    predictor = make_table_predictor()
    problem, posterior = predictor.task.problem, predictor.posterior
    values = [[20 + n, (n % 7) / 3 - 1] for n in range(60)]
    labels = tuple(int((age - 40) / 10 + income > 0) for age, income in values)
    rows = replace(read_given_rows(predictor.note, values), labels=labels)
    batches = predictor.task.batch(rows)
    record = smidgen.compare(problem, posterior, batches, progress=False)
    folder = smidgen.save_predictor(predictor, tmp_path / "ready", record=record)
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "smidgen"
    assert card.data.pipeline_tag == "tabular-classification"
    metrics = {found.metric_type: found for found in card.data.eval_results}
    method = next(m for m in record.results["methods"] if m["name"] == "last-layer")
    accuracy = method["scores"]["accuracy"]
    assert metrics["accuracy"].metric_value == accuracy["value"]
    assert metrics["accuracy"].metric_args["low"] == accuracy["low"]
    for said in (
        "## Rules",
        "exchangeable",
        "60 rows",
        "Made with smidgen",
        "smidgen.load(",
    ):
        assert said in card.text
    assert {"record.json", "report.html"} <= list_files(folder)
    plain = ModelCard.load(smidgen.save_predictor(adapted, tmp_path / "b") / "README.md")
    assert plain.data.pipeline_tag == "text-classification"
    assert f"Made of `{encoder.name}`." in plain.text
    assert str(encoder) not in plain.text
    assert "Nothing was measured" in plain.text
