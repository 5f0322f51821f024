"""Language models that choose among answers, against the plain model, prompt by prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import datasets
import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tokenizers import normalizers
from torch.func import functional_call, jacrev
from torch.testing import assert_close
from transformers import (
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
    MptConfig,
    MptForCausalLM,
)

import smidgen
from smidgen.errors import ArgumentError, DataError, SmidgenWarning, StructureError
from smidgen.integrations.answers import (
    Question,
    make_answer_loader,
    make_answer_problem,
    read_prompts,
)
from smidgen.integrations.answers.choice_tokens import find_choice_tokens
from tests.support.oracles import centred, output_hessian
from tests.support.tiny import (
    bert_config,
    byte_tokenizer,
    gpt2_config,
    tiny_llama,
    word_tokenizer,
)
from tests.support.tolerances import EXACT, SINGLE, SOLVER

PAGE = Path(__file__).parents[3] / "docs" / "methods" / "answers.md"
TEMPLATE = "Review: {text}\nSentiment:"
ONE = (" positive", " negative")
SEVERAL = (" positive film", " negative", " mixed plot plot")
TEXTS = ["a fine film", "a dull dull film, a plot", "mixed", "so so"]
PRECISION = 0.7


def asked(model, choices=ONE, *, side="right", chat=False):
    """A problem and one batch of padded prompts."""
    tokenizer = byte_tokenizer(padding_side=side)
    answers = Question(TEMPLATE, choices, chat=chat)
    table = answers.fill({"text": TEXTS}, labels=[0, 1, 1, 0])
    problem = make_answer_problem(model, tokenizer, answers)
    loader = make_answer_loader(table, tokenizer, answers, batch_size=4, max_length=60)
    return problem, list(loader)


def plain(model, batch, tokens):
    """Outputs (B, C) of the model itself: one prompt, one choice, one token at a time."""
    rows = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        own, row = ids[mask.bool()], []
        for choice in tokens:
            whole = torch.cat([own, torch.tensor(choice)])
            logits = model(whole[None], use_cache=False).logits[0]
            if max(map(len, tokens)) > 1:
                logits = logits.log_softmax(-1)
            places = range(len(own) - 1, len(whole) - 1)
            row.append(sum(logits[p, t] for p, t in zip(places, choice, strict=True)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def untied(model):
    """The same weights in a model whose output layer is its own."""
    twin = tiny_llama(tied=False)
    twin.load_state_dict(model.state_dict())
    return twin


def plain_jacobian(model, batch, problem, subset):
    """Jacobian (B, C, |S|) of the plain outputs in the weights a subset of the problem names."""
    rows = list(problem.model.rows)
    known = {
        "head.weight": ("lm_head.weight", rows),
        **{
            f"backbone.{name.removeprefix('model.')}": (name, None)
            for name, _ in model.named_parameters()
        },
    }
    weights = {n: p.detach() for n, p in model.named_parameters()}
    chosen = {}
    for name in subset.parts:
        own, only = known[name]
        chosen[name] = weights[own] if only is None else weights[own][only]

    class Asking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, batch):
            return plain(self.model, batch, problem.model.tokens)

    def outputs(values):
        changed = dict(weights)
        for name, value in values.items():
            own, only = known[name]
            if only is not None:
                value = weights[own].index_copy(0, torch.tensor(only), value)
            changed[own] = value
        return functional_call(
            Asking(), {f"model.{n}": p for n, p in changed.items()}, (batch,)
        )

    found = jacrev(outputs)(chosen)
    return torch.cat(
        [found[n].flatten(2)[:, :, subset.indices(n)] for n in subset.parts], -1
    )


def expected_covariance(jacobian, outputs, *, isotropic=False):
    """Centred covariance of the outputs under the dense posterior."""
    dense = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=torch.float64)
    if not isotropic:
        hessians = torch.stack([output_hessian("categorical", each) for each in outputs])
        dense = torch.einsum("bcp,bcd,bdq->pq", jacobian, hessians, jacobian)
    covariance = torch.linalg.inv(dense + PRECISION * torch.eye(len(dense)).double())
    return centred(jacobian @ covariance @ jacobian.mT)


def choose(problem, how, batches):
    if how == "last":
        return smidgen.select.last_layer(problem, batches)
    if how == "sparse":
        return smidgen.select.sparse_kfac(problem.model, percent=30)
    return smidgen.select.named(problem.model, how)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("choices", [ONE, SEVERAL])
@pytest.mark.parametrize("tied", [True, False])
def test_outputs_are_those_of_the_model(tied, choices, side, unchanged):
    model = tiny_llama(tied=tied)
    with unchanged(model):
        problem, (batch,) = asked(model, choices, side=side)
        outputs = problem.outputs(batch)
    tokens = problem.model.tokens
    assert [len(own) for own in tokens] == ([1, 1] if choices == ONE else [2, 1, 3])
    with torch.no_grad():
        assert_close(outputs, plain(model, batch, tokens), **EXACT)
    assert problem.model.head.weight.shape == (len(problem.model.rows), 8)
    shared = {id(parameter) for parameter in model.parameters()}
    assert all(id(p) in shared for p in problem.model.backbone.parameters())


@pytest.mark.parametrize("choices", [ONE, SEVERAL])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("how", ["last", "sparse"])
@pytest.mark.parametrize("structure", ["full", "isotropic"])
def test_variances_are_those_of_the_dense_oracle(tied, choices, how, structure, unchanged):
    model = tiny_llama(tied=tied)
    problem, batches = asked(model, choices, side="left")
    subset = choose(problem, how, batches)
    if how == "last":
        assert list(subset.parts) == ["head.weight"]
    with unchanged(model):
        if structure == "isotropic":
            posterior = smidgen.fit.isotropic(problem, subset, precision=PRECISION)
        else:
            posterior = smidgen.fit.laplace(
                problem, batches, subset, structure="full", precision=PRECISION
            )
        found = smidgen.predict(posterior, problem, batches[0], link="diagonal-probit")
    twin = untied(model)
    jacobian = plain_jacobian(twin, batches[0], problem, subset)
    outputs = plain(twin, batches[0], problem.model.tokens).detach()
    wanted = expected_covariance(jacobian, outputs, isotropic=structure == "isotropic")
    assert_close(found.logit_covariance, wanted, **SOLVER)


def adapted(model, *targets):
    """A model with adapters in a trained-looking state."""
    told = LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=6, lora_dropout=0.1, target_modules=targets
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        found = get_peft_model(model, told).double()
        for name, parameter in found.named_parameters():
            if "lora_" in name:
                parameter.data.add_(0.3 * torch.randn_like(parameter))
    return found


@pytest.mark.parametrize("choices", [ONE, SEVERAL])
@pytest.mark.parametrize("structure", ["full", "isotropic"])
def test_adapters_are_those_of_the_dense_oracle(choices, structure, unchanged):
    model = adapted(tiny_llama(tied=True), "q_proj", "v_proj").eval()
    problem, batches = asked(model, choices)
    subset = smidgen.select.named(problem.model, "*lora_*")
    assert {name.split(".")[-3] for name in subset.parts} == {"lora_A", "lora_B"}
    with unchanged(model):
        posterior = smidgen.fit.laplace(
            problem, batches, subset, structure=structure, precision=PRECISION
        )
        found = smidgen.predict(posterior, problem, batches[0], link="diagonal-probit")
    causal = model.get_base_model()
    jacobian = plain_jacobian(causal, batches[0], problem, subset)
    outputs = plain(causal, batches[0], problem.model.tokens).detach()
    wanted = expected_covariance(jacobian, outputs, isotropic=structure == "isotropic")
    assert_close(found.logit_covariance, wanted, **SOLVER)


def test_only_adapters_are_trained(unchanged):
    model = adapted(tiny_llama(tied=True), "q_proj")
    problem, batches = asked(model)
    with unchanged(model):
        settings = smidgen.fit.FinetuneSettings(epochs=3, learning_rate=0.05)
        tuned = smidgen.fit.finetune(
            problem, batches, validation=batches, settings=settings, progress=False
        )
    assert tuned.history[-1].train_nll < tuned.history[0].train_nll
    before, after = problem.model.state_dict(), tuned.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("lora_" in name for name in changed)


def small(config, **changes):
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    return config(vocab_size=350, **sizes, **heads, **changes)


def families():
    """Models that do something to their logits, have absolute positions, or a bias."""
    yield Gemma2ForCausalLM(
        small(Gemma2Config, head_dim=4, final_logit_softcapping=0.5, sliding_window=70)
    )
    yield CohereForCausalLM(small(CohereConfig, logit_scale=0.3))
    yield GraniteForCausalLM(small(GraniteConfig, logits_scaling=7.0))
    yield GPT2LMHeadModel(gpt2_config(vocab_size=350, n_positions=64))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("choices", [ONE, SEVERAL])
def test_logits_are_scaled_as_the_model_does(number, choices):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # In double, masks of their written-out attention would overflow.
        model = list(families())[number].eval()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    problem, (batch,) = asked(model, choices, side="left")
    with torch.no_grad():
        wanted = plain(model, batch, problem.model.tokens)
        assert_close(problem.outputs(batch), wanted, **SINGLE)


def test_what_scales_in_another_way_is_refused_by_name():
    model = HyperCLOVAXForCausalLM(small(HyperCLOVAXConfig, logits_scaling=3.0))
    with pytest.raises(StructureError, match=r"got HyperCLOVAXForCausalLM, which computes"):
        asked(model.double().eval())
    config = bert_config(is_decoder=True)
    config.vocab_size = 350
    model = BertLMHeadModel(config)
    with pytest.raises(StructureError, match=r"as Llama or GPT-2 do, got BertLMHeadModel"):
        asked(model.double().eval())


def test_what_has_no_plain_output_layer_is_refused():
    with pytest.raises(ArgumentError, match=r"Merge adapters of the output layer"):
        asked(adapted(tiny_llama(), "q_proj", "lm_head"))
    with pytest.raises(
        ArgumentError, match=r"got Linear\. Load it with AutoModelForCausal"
    ):
        asked(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"got LlamaModel with NoneType|body"):
        asked(tiny_llama().model)
    told = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ArgumentError, match=r"learned prompts\. Use LoRA"):
        asked(get_peft_model(tiny_llama(), told))


def test_choices_beyond_the_window_are_refused():
    model = Gemma2ForCausalLM(small(Gemma2Config, head_dim=4, sliding_window=9)).eval()
    problem, (batch,) = asked(model, SEVERAL)
    with pytest.raises(DataError, match=r"at most 9 tokens .*Lower max_length"):
        problem.outputs(batch)


def test_several_tokens_need_a_model_that_is_told_positions():
    # ALiBi counts tokens by their index, so answers beside one another would move apart.
    model = MptForCausalLM(
        MptConfig(d_model=8, n_heads=2, n_layers=1, vocab_size=350, max_seq_len=64)
    ).eval()
    asked(model)
    with pytest.raises(StructureError, match=r"got MptForCausalLM, which .*one token each"):
        asked(model, SEVERAL)
    told = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 350}
    local = GPTNeoConfig(**told, window_size=9, attention_types=[[["global", "local"], 1]])
    problem, (batch,) = asked(GPTNeoForCausalLM(local).eval(), SEVERAL)
    with pytest.raises(DataError, match=r"at most 9 tokens .*Lower max_length"):
        problem.outputs(batch)


def test_an_offloaded_model_is_refused():
    model = tiny_llama()
    cpu_offload(model)
    with pytest.raises(StructureError, match="choosing among answers needs a model that"):
        asked(model)


def test_a_chat_is_asked_as_its_template_says():
    tokenizer = byte_tokenizer()
    answers = Question("Is {text} good?", (" positive", " negative"), chat=True)
    table = answers.fill({"text": ["a film"]})
    (batch,) = make_answer_loader(table, tokenizer, answers, batch_size=1, max_length=60)
    written = "<s>user: Is a film good?</s><s>assistant:"
    assert tokenizer.decode(batch["input_ids"][0]) == written
    assert "labels" not in batch
    with pytest.raises(ArgumentError, match=r"chat must be False for a tokenizer without"):
        find_choice_tokens(byte_tokenizer(chat_template=None), answers)


def test_long_prompts_lose_their_beginning():
    tokenizer = byte_tokenizer()
    answers = Question("<s>Review: {text}\nSentiment:", SEVERAL)
    table = answers.fill({"text": ["a plot " * 9, "a film"]}, labels=[0, 2])
    with pytest.warns(SmidgenWarning, match=r"^1 of 2 prompts lost their beginning: they "):
        loader = make_answer_loader(table, tokenizer, answers, batch_size=2, max_length=12)
    (batch,) = loader
    # Room for two of the longest choice's three tokens, which the model appends.
    assert batch["input_ids"].shape == (2, 10)
    texts = tokenizer.batch_decode(batch["input_ids"])
    assert texts[0].startswith("<s> plot")
    assert texts[0].endswith("\nSentiment:")
    assert batch["labels"].tolist() == [0, 2]
    with pytest.raises(ArgumentError, match=r"max_length must leave room .*got 3"):
        make_answer_loader(table, tokenizer, answers, batch_size=2, max_length=3)


def test_a_shuffled_loader_is_drawn_from_its_seed():
    tokenizer, answers = byte_tokenizer(), Question(TEMPLATE, ONE)
    table = answers.fill({"text": [f"film {n}" for n in range(20)]})

    def drawn(seed):
        loader = make_answer_loader(
            table, tokenizer, answers, batch_size=4, max_length=60, shuffle=True, seed=seed
        )
        return [
            ids for batch in loader for ids in tokenizer.batch_decode(batch["input_ids"])
        ]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_choices_that_cannot_be_told_apart_are_refused():
    tokenizer = byte_tokenizer()

    def refuse(words, *choices, template=TEMPLATE):
        with pytest.raises(ArgumentError, match=words):
            find_choice_tokens(tokenizer, Question(template, choices))

    refuse(r"'ive', which merges with the end of .*begin the choice with one", "ive", " a",
           template="Review: {text} posit")  # fmt: skip
    refuse(r"'positive', which merges", "positive", " a", template="{text} ")
    refuse(r"choices must be two answers or more", " positive")
    refuse(r"choices must be two answers or more, all different", "a", " a")
    refuse(r"choices must be words, got ' '", " ", "a")
    with pytest.raises(ArgumentError, match=r"must be a list of answers, got 'ab'"):
        Question(TEMPLATE, "ab")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    refuse(r"got ' Plot' and ' plot' with the same", " Plot", " plot")
    tokenizer = word_tokenizer(bert=False)
    tokenizer.unk_token = "[UNK]"
    refuse(r"words that the tokenizer knows, got ' zebra'", " a", " zebra", template="{x}")
    tokenizer = word_tokenizer(bert=True)
    refuse(r"end of a prompt open, got one that adds '\[SEP\]'", " a", " b", template="{x}")


def test_a_prompt_that_merges_with_a_choice_is_refused():
    tokenizer = byte_tokenizer()
    answers = Question("{text}", ("positive", " negative"))
    table = answers.fill({"text": ["a film", "a film "]})
    with pytest.raises(DataError, match=r"others after 'a film ' in row 2\. End the templ"):
        make_answer_loader(table, tokenizer, answers, batch_size=2, max_length=60)


def test_templates_name_columns():
    for template in ("no column", "{text", "{}", "{text:3}", "{text!r}"):
        with pytest.raises(ArgumentError, match=r"^template must "):
            Question(template, ONE)
    answers = Question("{{{a}}} {b} {a}", ONE)
    assert answers.columns == ("a", "b")
    assert answers.fill({"a": ["x"], "b": [3]}).texts == ("{x} 3 x",)
    with pytest.raises(ArgumentError, match=r"that are there \(a, c\), got \{b\}"):
        answers.fill({"a": ["x"], "c": ["y"]})
    with pytest.raises(
        DataError, match=r"b must be a text in every row, got None in row 2"
    ):
        answers.fill({"a": ["x", "y"], "b": ["z", None]})
    with pytest.raises(DataError, match=r"of one length, got 1 and 2"):
        answers.fill({"a": ["x", "y"], "b": ["z"]})


def test_prompts_are_read_from_files(tmp_path):
    answers = Question("{sentence} Sentiment:", ONE)
    path = tmp_path / "data.tsv"
    path.write_text("sentence\tlabel\ngood\tpositive\nbad\t1\n", encoding="utf-8")
    table = read_prompts(path, answers)
    assert table.texts == ("good Sentiment:", "bad Sentiment:")
    assert table.labels == (0, 1)
    assert table.label_names == ("positive", "negative")
    assert read_prompts(path, answers, label=None).labels is None
    with pytest.raises(ArgumentError, match=r"\{text\} in the template must be one of the "
                       r"columns of data.tsv \(sentence, label\)"):  # fmt: skip
        read_prompts(path, Question("{text}", ONE))
    lines = [{"sentence": "good", "label": "yes"}, {"sentence": "bad", "label": "no"}]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_prompts(path, answers, label_names=("no", "yes")).labels == (1, 0)
    with pytest.raises(DataError, match=r"one of positive, negative or a class number"):
        read_prompts(path, answers)
    with pytest.raises(ArgumentError, match=r"label_names must be 2, one for each choice"):
        read_prompts(path, answers, label_names=("yes",))
    path = tmp_path / "bare.csv"
    path.write_text("good,0\n", encoding="utf-8")
    assert read_prompts(path, Question("{0}", ONE), label=1).texts == ("good",)


def test_stored_class_names_are_matched_with_the_choices(tmp_path):
    names = datasets.ClassLabel(names=["negative", "positive"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features)
    datasets.disable_progress_bars()
    rows.to_parquet(tmp_path / "data.parquet")
    datasets.enable_progress_bars()
    assert read_prompts(tmp_path / "data.parquet", Question("{text}", ONE)).labels == (1, 0)


def test_labels_are_numbers_of_choices():
    answers = Question(TEMPLATE, ONE)
    table = answers.fill({"text": ["a film", "a plot"]}, labels=[0, 2])
    with pytest.raises(DataError, match=r"from 0 to 1, got 2 in row 2"):
        make_answer_loader(table, byte_tokenizer(), answers, batch_size=2, max_length=60)


def test_a_half_precision_model_has_a_head_in_single(unchanged):
    model = tiny_llama(tied=True).to(torch.bfloat16)
    problem, batches = asked(model)
    assert problem.model.head.weight.dtype == torch.float32
    assert problem.outputs(batches[0]).dtype == torch.float32
    with unchanged(model):
        posterior = smidgen.fit.laplace(
            problem, batches, smidgen.select.last_layer(problem)
        )
        found = smidgen.predict(posterior, problem, batches[0])
    assert torch.isfinite(found.probs).all()


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_the_code_of_its_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "dev", "test"):
        rows = ["a fine film\tpositive", "a dull plot\tnegative"] * 4
        Path(f"{name}.tsv").write_text(
            "\n".join(["sentence\tlabel", *rows]), encoding="utf-8"
        )
    first, second = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    names = {"model": tiny_llama(tied=True), "tokenizer": byte_tokenizer()}
    exec(first, names)
    assert names["predictive"].probs.shape == (8, 2)
    names |= {"document": "a fine film " * 9, "other_document": "a dull plot " * 9}
    exec(second, names)
    assert names["predictive"].class_count == 350


def test_a_model_that_asks_already_is_not_asked_again():
    """A person fine-tunes a problem and then poses the question to what came back."""
    answers = Question(TEMPLATE, ONE)
    problem = make_answer_problem(tiny_llama(), byte_tokenizer(), answers)
    with pytest.raises(ArgumentError, match=r"replace\(problem, model=tuned\.model\)"):
        make_answer_problem(problem.model, byte_tokenizer(), answers)
