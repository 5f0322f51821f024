"""The layers that make the outputs, seen in a pass and wherever a last layer or head is meant."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    DebertaConfig,
    DebertaForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

import smidgen
from smidgen.curvature.output_layers import (
    guess_output_layers,
    peek,
    see_output_layers,
)
from smidgen.errors import ArgumentError, DataError, StructureError
from smidgen.fit.calibration.groups import group_labels
from smidgen.weights.affine import coverage
from smidgen.workflows.ramp.laplace import RampSettings, ramp
from tests.support.tiny import bert_config, gpt2_config

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

CLASSES = 3
SIDES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": CLASSES,
}
TEXT = {**SIDES, "vocab_size": 20, "max_position_embeddings": 20}


def tokens():
    ids = torch.randint(4, 8, (4, 5), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(5) < torch.tensor([[5], [3], [4], [5]])).long()
    labels = torch.tensor([0, 1, 2, 0])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def images():
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 1, 2])}


def vectors():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    return (x, torch.tensor([0, 1, 2, 0, 1, 2]))


class HeadFirst(nn.Module):
    """Registers its head first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, CLASSES), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class SideBySide(nn.Module):
    """Two heads of one output each and a third of the rest, then a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 1), nn.Linear(5, CLASSES - 1)
        self.body, self.idle = nn.Linear(4, 5), nn.Linear(2, 2)

    def forward(self, x):
        hidden = torch.relu_(self.body(x))
        return torch.cat([self.left(hidden), self.right(hidden)], -1)


def distilbert():
    sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
    config = DistilBertConfig(
        vocab_size=20, **sizes, max_position_embeddings=20, num_labels=CLASSES
    )
    return DistilBertForSequenceClassification(config)


def gpt2():
    config = gpt2_config(vocab_size=20, num_labels=CLASSES, pad_token_id=0)
    return GPT2ForSequenceClassification(config)


def vit():
    config = ViTConfig(**SIDES, image_size=16, patch_size=8)
    return ViTForImageClassification(config)


def lora():
    """The classifier is trained beside the adapters: PEFT keeps the original too."""
    model = BertForSequenceClassification(bert_config(num_labels=CLASSES))
    adapters = LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"])
    return get_peft_model(model, adapters)


def roberta_like(model, config):
    return lambda: model(config(**TEXT))


OUT = ("classifier.out_proj",)
MODELS = {
    "xlm-roberta": (
        roberta_like(XLMRobertaForSequenceClassification, XLMRobertaConfig),
        tokens,
        OUT,
    ),
    "camembert": (
        roberta_like(CamembertForSequenceClassification, CamembertConfig),
        tokens,
        OUT,
    ),
    "roberta": (roberta_like(RobertaForSequenceClassification, RobertaConfig), tokens, OUT),
    "electra": (roberta_like(ElectraForSequenceClassification, ElectraConfig), tokens, OUT),
    "deberta": (
        roberta_like(DebertaForSequenceClassification, DebertaConfig),
        tokens,
        ("classifier",),
    ),
    "distilbert": (distilbert, tokens, ("classifier",)),
    "bert": (
        lambda: BertForSequenceClassification(bert_config(num_labels=CLASSES)),
        tokens,
        ("classifier",),
    ),
    "gpt2": (gpt2, tokens, ("score",)),
    "vit": (vit, images, ("classifier",)),
    "lora": (lora, tokens, ("base_model.model.classifier.modules_to_save.default",)),
    "head first": (HeadFirst, vectors, ("head",)),
    "side by side": (SideBySide, vectors, ("left", "right")),
}
WRONG_BY_ORDER = {"xlm-roberta", "camembert", "head first", "side by side"}
REHEARSED = set(MODELS) - {"vit", "head first", "side by side"}


@pytest.fixture(params=MODELS)
def made(request):
    build, batch, names = MODELS[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().train()
    return request.param, model, batch(), names


def names_of(covered):
    return tuple(layer.name for layer in covered.output_layers)


def weights_of(model, names):
    return {p for p, _ in model.named_parameters() if p.rpartition(".")[0] in names}


def test_a_batch_shows_them(made, unchanged):
    name, model, batch, names = made
    with unchanged(model):
        last = smidgen.select.last_layer(model, [batch])
        covered = see_output_layers(smidgen.Problem(model), batch)
    assert names_of(covered) == names
    assert covered.seen
    assert set(last.parts) == weights_of(model, names)
    assert last.origin.selector == "last-layer"
    assert smidgen.select.choose("last-layer", model, batches=[batch]) == last
    assert (names_of(coverage(model)) == names) == (name not in WRONG_BY_ORDER)


def test_a_hugging_face_model_is_rehearsed_on_its_own_inputs(made, unchanged):
    name, model, _, names = made
    with unchanged(model):
        covered = guess_output_layers(smidgen.Problem(model))
    assert covered.seen == (name in REHEARSED)
    if covered.seen:
        assert names_of(covered) == names
        assert set(smidgen.select.last_layer(model).parts) == weights_of(model, names)


METHODS = {
    "laplace": {},
    "swag": {"settings": smidgen.fit.SwagSettings(learning_rate=0.01, steps=4, every=1)},
    "ssvi": {"settings": smidgen.fit.SsviSettings(epochs=1, every=1, num_data=6)},
    "finetune": {"settings": smidgen.fit.FinetuneSettings(epochs=1)},
}


@pytest.mark.parametrize("build", [HeadFirst, SideBySide])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("joined", [False, True])
def test_a_wrong_guess_is_refused_by_the_first_pass_over_data(build, method, joined):
    model, batch = build(), vectors()
    names = ("head",) if build is HeadFirst else ("left", "right")
    wrong, right = (smidgen.select.last_layer(model, b) for b in (None, [batch]))
    if joined:
        rest = smidgen.select.sparse_kfac(model, percent=40)
        wrong, right = rest | wrong, right | rest
    data = DataLoader([(x, y) for x, y in zip(*batch, strict=True)], 3)
    fit = getattr(smidgen.fit, method)
    said = (
        f"got one without {' and '.join(map(repr, names))}. Choose it with smidgen.select"
    )
    with pytest.raises(ArgumentError, match=said):
        fit(model, data, wrong, **METHODS[method], progress=False)
    fit(model, data, right, **METHODS[method], progress=False)
    # What was chosen by name claims nothing.
    named = smidgen.select.named(model, "body.*")
    fit(model, data, named, **METHODS[method], progress=False)


def test_many_fits_and_their_choice_are_checked_too():
    model, batch = HeadFirst(), vectors()
    subsets = {"last": smidgen.select.last_layer(model)}
    with pytest.raises(ArgumentError, match="got one without 'head'"):
        smidgen.fit.laplace_many(model, [batch], subsets, progress=False)


class Tied(nn.Module):
    """The layer that makes the outputs is the embeddings, and registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 5, bias=False)
        self.embed, self.hidden = nn.Embedding(5, 4), nn.Linear(4, 4)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.hidden(self.embed(ids))))


def test_a_tied_head_is_refused_by_name_also_where_it_is_registered_first():
    model, batch = Tied(), (torch.arange(5), torch.arange(5))
    said = "last layer cannot be chosen: 'out' makes the outputs and .* tied to"
    with pytest.raises(StructureError, match=said):
        smidgen.select.last_layer(model, [batch])
    # By order of the modules it is taken for granted, and refused by the fit.
    guessed = smidgen.select.last_layer(model)
    assert set(guessed.parts) == {"hidden.weight", "hidden.bias"}
    with pytest.raises(ArgumentError, match="got another: 'out' makes the outputs"):
        smidgen.fit.laplace(model, [batch], guessed, progress=False)
    language = GPT2LMHeadModel(gpt2_config())
    with pytest.raises(StructureError, match="'lm_head' makes the outputs .* tied to"):
        smidgen.select.last_layer(language)


class DeepHeadFirst(HeadFirst):
    """The same with one more layer below."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4)

    def forward(self, x):
        return super().forward(torch.tanh(self.enter(x)))


def test_a_head_that_is_registered_first_has_a_precision_of_its_own():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, batch = DeepHeadFirst(), (torch.randn(60, 4), torch.randint(3, (60,)))
        for parameter in model.parameters():
            # Sure of itself, and wrong: all its groups have something to answer for.
            parameter.data *= 3
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(model, [batch], subset, progress=False)
    fitted = smidgen.fit.calibrate_by_evidence(posterior, model, [batch], scope="group")
    precisions = fitted.precisions
    assert precisions["enter"] == precisions["body"] != precisions["head"]
    # What held-out data choose may be the same for all; here it is who chooses together.
    for scope in ("auto", "group"):
        labels = group_labels(
            scope, posterior, lambda: see_output_layers(smidgen.Problem(model), batch)
        )
        assert labels["enter"] == labels["body"] != labels["head"]


def test_a_plan_compares_with_the_layer_that_makes_the_outputs():
    model, batch = HeadFirst(), vectors()
    planned = smidgen.plan(model, batch=batch)
    (row,) = (row for row in planned.rows if row.subset == "last layer")
    assert row.cost.weights == 5 * CLASSES + CLASSES
    last = smidgen.select.last_layer(model, [batch])
    assert smidgen.plan(model, batch=batch, subset=last).chosen.subset == "last layer"


def test_a_ramp_takes_the_layer_that_makes_the_outputs():
    model, batch = SideBySide(), vectors()
    for schemes in (("last-layer", "full"), ("last-layer",)):
        settings = RampSettings(schemes=schemes, percents=(50,))
        # Batches of validation that can be read once only.
        found = ramp(model, [batch], iter([batch]), [batch], settings, progress=False)
        assert {name for _, name in found.chosen["last-layer"].blocks} == {"left", "right"}


def test_only_a_few_examples_run_unless_they_cannot():
    model, seen = HeadFirst(), []
    model.body.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))

    def picky(model, batch):
        if len(batch[0]) < 6:
            raise ValueError("six or more, please")
        return model(batch[0])

    see_output_layers(smidgen.Problem(model), vectors())
    assert seen == [2]
    see_output_layers(smidgen.Problem(model, forward=picky), vectors())
    assert seen == [2, 6]


def test_wrong_batches_are_refused():
    model, batch = HeadFirst(), vectors()
    for wrong in ({"x": batch[0]}, batch[0], iter([batch])):
        with pytest.raises(ArgumentError, match="batches must be a list or a data loader"):
            smidgen.select.last_layer(model, wrong)
    with pytest.raises(DataError, match="batches must hold at least one batch"):
        smidgen.select.last_layer(model, [])
    first, again = peek(iter([1, 2]))
    assert (first, list(again)) == (1, [1, 2])


def test_a_loader_that_shuffles_leaves_the_random_numbers_alone(unchanged):
    model, (x, y) = HeadFirst(), vectors()
    loader = DataLoader(list(zip(x, y, strict=True)), 3, shuffle=True)
    with unchanged(model), warnings.catch_warnings():
        warnings.simplefilter("error")
        smidgen.select.last_layer(model, loader)


class BareHead(nn.Module):
    """Its output matrix belongs to no module that is called."""

    def __init__(self, *, embedded: bool) -> None:
        super().__init__()
        self.body, self.embed = nn.Linear(4, 5), nn.Embedding(3, 5)
        self.matrix = None if embedded else nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        matrix = self.embed.weight if self.matrix is None else self.matrix
        return nn.functional.linear(torch.tanh(self.body(x)), matrix)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_matrix_that_makes_the_outputs_by_itself_is_no_last_layer(embedded):
    model, batch = BareHead(embedded=embedded), (torch.randn(6, 4), torch.randint(3, (6,)))
    name = "embed.weight" if embedded else "matrix"
    with pytest.raises(
        (ArgumentError, StructureError), match=f"'{name}' makes the outputs"
    ):
        smidgen.select.last_layer(model, [batch])


def test_what_is_looked_up_straight_into_the_outputs_takes_no_head_away():
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x) + self.table(x[:, 0].abs().long().clamp_max(3))

    batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    subset = smidgen.select.last_layer(Wide(), [batch])
    assert set(subset.parts) == {"head.weight", "head.bias"}
