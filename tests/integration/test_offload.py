"""Models that accelerate offloads to memory or files: exactly the numbers of the plain ones."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel

import smidgen
from smidgen.errors import ArgumentError, StructureError
from smidgen.runtime.guard import fingerprint
from tests.support.quantised import llama, texts, with_lora
from tests.support.tolerances import EXACT

CPU = torch.device("cpu")
# PEFT keeps the head as it was beside the trained one, and never runs it.
pytestmark = pytest.mark.filterwarnings("ignore:1 chosen layers never ran")


def plain(*, lora=False):
    model = llama().double()
    return with_lora(model).double() if lora else model


def to_memory(model, folder):
    return cpu_offload(model, execution_device=CPU)


def to_memory_with_buffers(model, folder):
    return cpu_offload(model, execution_device=CPU, offload_buffers=True)


def to_memory_by_block(model, folder):
    """Blocks are loaded whole, by one hook each."""
    names = ["LlamaDecoderLayer"]
    return cpu_offload(model, execution_device=CPU, preload_module_classes=names)


def to_files(model, folder):
    return disk_offload(model, str(folder), execution_device=CPU)


def to_both(model, folder):
    """Layers in files, all else in memory, as a device_map says."""
    inner = next(path for path, _ in model.named_modules() if path.endswith("layers"))
    prefix = inner.removesuffix("model.layers")
    places = {f"{inner}": "disk", f"{prefix}score": "cpu"}
    places |= {
        f"{prefix}model.{part}": "cpu" for part in ("embed_tokens", "norm", "rotary_emb")
    }
    return dispatch_model(model, places, main_device="cpu", offload_dir=str(folder))


WAYS = [to_memory, to_memory_with_buffers, to_memory_by_block, to_files, to_both]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request):
    return request.param


def choose(model, which):
    if which == "last":
        return smidgen.select.last_layer(model)
    if which == "lora":
        return smidgen.select.named(model, "*lora_*")
    if which == "sparse":
        return smidgen.select.sparse_kfac(model, percent=20)
    return smidgen.select.weights(model, fraction=0.05)


def run(model, which, structure):
    """Choose, fit, calibrate and predict; all numbers on the way."""
    subset = choose(model, which)
    posterior = smidgen.fit.laplace(
        model, texts(), subset, structure=structure, progress=False
    )
    with warnings.catch_warnings():
        # Labels are drawn by chance.
        warnings.simplefilter("ignore")
        posterior = smidgen.calibrate(posterior, model, texts(), progress=False)
    linear = smidgen.predict(posterior, model, texts()[0])
    drawn = smidgen.predict(posterior, model, texts()[0], samples=3)
    return subset, posterior, linear, drawn


def snapshot(model):
    """What the hooks keep, and which objects the parameters are."""
    held = {n: (id(p), p.device) for n, p in model.named_parameters(remove_duplicate=False)}
    hooks = {
        path: {k: id(v) for k, v in vars(module._hf_hook).items()}
        for path, module in model.named_modules()
        if hasattr(module, "_hf_hook")
    }
    return held, hooks, [id(vars(m).get("forward")) for m in model.modules()]


@pytest.mark.parametrize(
    ("which", "structure"), [("last", "kron"), ("sparse", "kron"), ("single", "diag")]
)
def test_an_offloaded_model_has_the_numbers_of_the_plain_one(
    way, which, structure, tmp_path
):
    model = way(plain(), tmp_path)
    before = snapshot(model)
    subset, posterior, linear, drawn = run(model, which, structure)
    expected = run(plain(), which, structure)
    assert subset == expected[0]
    assert posterior.fingerprint == expected[1].fingerprint == fingerprint(plain())
    assert posterior.precision == pytest.approx(expected[1].precision)
    assert_close(linear.logit_covariance, expected[2].logit_covariance, **EXACT)
    assert_close(linear.probs, expected[2].probs, **EXACT)
    assert_close(drawn.probs, expected[3].probs, **EXACT)
    assert snapshot(model) == before


def test_an_adapter_on_an_offloaded_base(way, tmp_path):
    model = way(plain(lora=True), tmp_path)
    found, expected = (run(each, "lora", "kron") for each in (model, plain(lora=True)))
    assert found[1].fingerprint == expected[1].fingerprint
    assert_close(found[2].logit_covariance, expected[2].logit_covariance, **EXACT)
    assert_close(found[3].probs, expected[3].probs, **EXACT)


def test_an_adapter_that_was_left_empty_is_refused_by_name(way, tmp_path):
    model = with_lora(way(plain(), tmp_path))
    for which in ("lora", "last"):
        with pytest.raises(StructureError, match=r"must be loaded, got '.*weight'"):
            run(model, which, "kron")


def test_a_tied_head_is_refused_though_offloading_hides_the_tie(tmp_path):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    model = to_files(GPT2LMHeadModel(config).eval(), tmp_path)
    subset = smidgen.select.named(model, "lm_head.weight")
    problem = smidgen.Problem(
        model, forward=lambda model, batch: model(**batch).logits[:, -1]
    )
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    with pytest.raises(
        StructureError, match="got 'lm_head', which is tied to the embeddings"
    ):
        smidgen.fit.laplace(problem, [batch], subset, progress=False)


def test_a_posterior_moves_between_plain_and_offloaded(way, tmp_path):
    _, posterior, linear, _ = run(plain(), "sparse", "kron")
    smidgen.save(posterior, tmp_path / "posterior")
    (tmp_path / "weights").mkdir()
    model = way(plain(), tmp_path / "weights")
    loaded = smidgen.load(tmp_path / "posterior", model)
    found = smidgen.predict(loaded, model, texts()[0])
    assert_close(found.logit_covariance, linear.logit_covariance, **EXACT)


def test_scores_swag_verify_and_plan_read_offloaded_weights(way, tmp_path):
    model = way(plain(), tmp_path)
    for score in (smidgen.select.scores.activation, smidgen.select.scores.magnitude):
        data = () if score is smidgen.select.scores.magnitude else (texts(),)
        found, expected = score(model, *data), score(plain(), *data)
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[name], expected[name]) for name in found)
    settings = smidgen.fit.SwagSettings(steps=4, every=1, rank=2, learning_rate=1e-3)
    found, expected = (
        smidgen.predict(
            smidgen.fit.swag(
                each, texts(), choose(each, "last"), settings=settings, progress=False
            ),
            each,
            texts()[0],
            samples=2,
        )
        for each in (model, plain())
    )
    assert_close(found.probs, expected.probs, **EXACT)
    assert smidgen.verify(model, texts(1)).agrees
    assert smidgen.plan(model, batch=texts()[0]).chosen.fits


def test_threads_may_share_an_offloaded_model(tmp_path):
    model = to_files(plain(), tmp_path)
    _, posterior, linear, _ = run(model, "sparse", "kron")
    with ThreadPoolExecutor(4) as pool:
        every = list(
            pool.map(lambda _: smidgen.predict(posterior, model, texts()[0]), range(8))
        )
    assert all(torch.equal(each.probs, linear.probs) for each in every)


def test_what_writes_to_weights_is_refused(tmp_path):
    model = to_memory(plain(), tmp_path)
    with pytest.raises(
        StructureError, match="fine-tuning needs a model that holds its weights"
    ):
        smidgen.fit.finetune(model, texts(), progress=False)
    with pytest.raises(
        StructureError, match="BayesTune needs a model that holds its weights"
    ):
        smidgen.fit.langevin(model, texts(), progress=False)
    base = plain()
    subset = choose(base, "sparse")
    delta = smidgen.make_delta(base, subset, torch.ones(subset.size), {})
    with pytest.raises(
        StructureError, match="a delta needs a model that holds its weights"
    ):
        delta.apply(model)


def test_offloaded_weights_that_changed_are_noticed(tmp_path):
    model = to_memory(plain(), tmp_path)
    _, posterior, _, _ = run(model, "last", "kron")
    kept = model.model.layers[0].mlp.up_proj._hf_hook.weights_map
    kept["weight"].data += 0.1
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, model, texts()[0])


@pytest.mark.parametrize("places", ["auto", "cpu", "files"])
def test_device_maps_of_transformers(places, tmp_path):
    llama().save_pretrained(tmp_path / "model")
    told = {"device_map": places}
    if places == "files":
        layers = {"model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu"}
        told = {"device_map": {"model.embed_tokens": "cpu", "score": "cpu", **layers}}
        told["offload_folder"] = tmp_path / "offload"
    load = AutoModelForSequenceClassification.from_pretrained
    found, expected = (
        run(load(tmp_path / "model", dtype=torch.float64, **more).eval(), "sparse", "kron")
        for more in (told, {})
    )
    assert found[1].fingerprint == expected[1].fingerprint
    assert_close(found[2].logit_covariance, expected[2].logit_covariance, **EXACT)
