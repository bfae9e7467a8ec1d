"""Backward formulas, whole input layers, Adam's steps and the study files' GPT-2, against torch and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import block_gradients
import gradients
import masked as study_masked
import model_gradients
import numpy as np
import pytest
import training as study_training
from drawn import normal
from textbook import gpt2_weights

import minibert
from minibert import equations
from minibert.cli import main
from minibert.equations.blocks import additive_mask
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import Gpt2Weights, gpt2_model

pytestmark = pytest.mark.reference

# relative to the largest entry of each gradient, float64 on both sides: measured at most 1.7e-15
FLOAT64_TOLERANCE = 2e-14
# float32 on both sides: measured at most 1.0e-6
FLOAT32_TOLERANCE = 1e-5
# logits of the trained model, in float32, relative to the largest: measured at most 6e-7
LOGITS_TOLERANCE = 1e-5

BATCH, SEQ, DIM, WIDTH, HEADS, VOCAB, POSITIONS = 3, 7, 16, 12, 4, 11, 9
PADDING = 0


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def near(found: Array, expected: Array, dtype: str) -> None:
    assert found.dtype == expected.dtype == np.dtype(dtype) and found.shape == expected.shape
    assert np.any(expected), "a gradient of zeros proves nothing"
    tolerance = FLOAT64_TOLERANCE if dtype == "float64" else FLOAT32_TOLERANCE
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def leaf(array: Array) -> Any:
    import torch

    return torch.from_numpy(array.copy()).requires_grad_()


VECTORS, HEADED, TARGETS = (BATCH, SEQ, DIM), (BATCH, HEADS, SEQ, DIM), np.arange(SEQ) % VOCAB
AFFINE, CAUSAL = ((BATCH, SEQ, WIDTH), (DIM, WIDTH), (DIM,)), np.tri(SEQ, dtype=bool)
# shapes of what is given; the formula of torch's `functional`; our gradients of it
FORMULAS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any], Callable[..., Any]]] = {
    **{
        f"layer_norm, eps {eps}": (
            (VECTORS, (DIM,), (DIM,)),
            lambda f, x, *affine, eps=eps: f.layer_norm(x, (DIM,), *affine, eps),
            lambda grad, x, weight, _, eps=eps: gradients.layer_norm_gradient(grad, x, weight, eps),
        )
        for eps in (1e-12, 0.5)
    },
    "scale": ((VECTORS,), lambda f, x: 4 * x, lambda grad, x: [gradients.scale_gradient(grad, 4.0)]),
    "project": (AFFINE, lambda f, *of: f.linear(*of), lambda *of: gradients.project_gradient(*of[:3])),
    "linear": (AFFINE, lambda f, *of: f.linear(*of), lambda *of: block_gradients.linear_gradient(*of[:3])),
    "softmax": ((VECTORS,), lambda f, x: f.softmax(x, -1), lambda *of: [block_gradients.softmax_gradient(*of)]),
    "gelu": ((VECTORS,), lambda f, x: f.gelu(x), lambda *of: [block_gradients.gelu_gradient(*of)]),
    "gelu_tanh": (
        (VECTORS,), lambda f, x: f.gelu(x, approximate="tanh"), lambda *of: [block_gradients.gelu_tanh_gradient(*of)],
    ),
    "attention": (
        (HEADED,) * 3, lambda f, *qkv: f.scaled_dot_product_attention(*qkv), block_gradients.attention_gradient,
    ),
    "causal attention": (
        (HEADED,) * 3,
        lambda f, *qkv: f.scaled_dot_product_attention(*qkv, is_causal=True),
        lambda *of: block_gradients.attention_gradient(*of, mask=additive_mask(CAUSAL, str(of[0].dtype))),
    ),
    "cross_entropy": (
        ((SEQ, VOCAB),),
        lambda f, logits: f.cross_entropy(logits, logits.new_tensor(TARGETS).long(), reduction="none"),
        lambda *of: [block_gradients.cross_entropy_gradient(*of, TARGETS)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str, dtype: str) -> None:
    import torch

    shapes, theirs, ours = FORMULAS[name]
    arrays = [(3 * normal(*shape, seed=5 + i)).astype(dtype) for i, shape in enumerate(shapes)]
    leaves = [leaf(array) for array in arrays]
    result = theirs(torch.nn.functional, *leaves)
    grad = normal(*result.shape, seed=4).astype(dtype)
    result.backward(torch.from_numpy(grad))
    for found, tensor in zip(ours(grad, *arrays), leaves, strict=True):
        near(found, tensor.grad.numpy(), dtype)


@pytest.mark.parametrize("padding_idx", [None, PADDING, -1])
def test_lookup(dtype: str, padding_idx: int | None) -> None:
    import torch

    input_ids, _ = batch()
    input_ids[2, 3] = VOCAB - 1  # what -1 means does occur
    table, grad = normal(VOCAB, DIM).astype(dtype), normal(*input_ids.shape, DIM, seed=4).astype(dtype)
    weight = leaf(table)
    rows = torch.nn.functional.embedding(torch.from_numpy(input_ids), weight, padding_idx=padding_idx)
    rows.backward(torch.from_numpy(grad))
    found = gradients.lookup_gradient(grad, input_ids, VOCAB, padding_idx)
    near(found, weight.grad.numpy(), dtype)
    if padding_idx is not None:
        assert not np.any(found[padding_idx]) and not np.any(weight.grad.numpy()[padding_idx])


def batch() -> tuple[Array, Array]:
    """Ids with repeated words and padding at both ends, and types of two segments."""
    input_ids = np.random.default_rng(5).integers(0, VOCAB, (BATCH, SEQ))
    input_ids[0, -3:] = PADDING
    input_ids[1, :2] = PADDING
    return input_ids, np.random.default_rng(6).integers(0, 2, (BATCH, SEQ))


def test_whole_bert_input_layer(dtype: str) -> None:
    """The reference's own embeddings module, its own padding_idx, in evaluation mode (no dropout)."""
    import torch
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings

    sizes = {"vocab_size": VOCAB, "hidden_size": DIM, "max_position_embeddings": POSITIONS, "num_attention_heads": 4}
    torch.manual_seed(0)
    module = BertEmbeddings(BertConfig(**sizes, pad_token_id=PADDING)).to(getattr(torch, dtype)).eval()
    modules = {
        "word": module.word_embeddings.weight,
        "token_type": module.token_type_embeddings.weight,
        "position": module.position_embeddings.weight,
        "weight": module.LayerNorm.weight,
        "bias": module.LayerNorm.bias,
    }
    arrays = {name: parameter.detach().numpy().copy() for name, parameter in modules.items() if name != "bias"}
    (input_ids, token_type_ids), grad = batch(), normal(*VECTORS, seed=4).astype(dtype)
    output = module(input_ids=torch.from_numpy(input_ids), token_type_ids=torch.from_numpy(token_type_ids))
    output.backward(torch.from_numpy(grad))
    found = gradients.bert_input_gradient(
        grad, input_ids, token_type_ids, **arrays, eps=module.LayerNorm.eps, padding_idx=PADDING
    )
    for name, parameter in modules.items():
        near(getattr(found, name), parameter.grad.numpy(), dtype)
    assert np.any(input_ids == PADDING) and not np.any(found.word[PADDING])


def test_whole_gpt2_input_layer(dtype: str) -> None:
    """The reference's two tables; its input layer is their sum."""
    import torch
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=DIM, n_positions=POSITIONS, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2Model(config).to(getattr(torch, dtype)).eval()
    entered: list[Any] = []
    model.h[0].register_forward_pre_hook(lambda block, arguments: entered.append(arguments[0]))
    (input_ids, _), grad = batch(), normal(*VECTORS, seed=4).astype(dtype)
    model(input_ids=torch.from_numpy(input_ids))
    entered[0].backward(torch.from_numpy(grad))
    wte, wpe = (table.weight.detach().numpy() for table in (model.wte, model.wpe))
    found = gradients.gpt2_input_gradient(grad, input_ids, wte, wpe)
    near(found.wte, model.wte.weight.grad.numpy(), dtype)
    near(found.wpe, model.wpe.weight.grad.numpy(), dtype)


def gpt2(dtype: str) -> Any:
    """The reference's own model, seeded, with biases and norms that are not 0 and 1."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "n_embd": DIM, "n_positions": POSITIONS, "n_layer": 2, "n_head": HEADS}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def arrays(model: Gpt2Weights) -> list[Array]:
    affines = [affine for block in model.blocks for affine in block] + [model.last_norm]
    return [model.wte, model.wpe, *(array for affine in affines for array in affine)]


def loss_and_gradient(ours: Gpt2Weights, ids: Array) -> tuple[float, Gpt2Weights]:
    logits = gpt2_model(ids, np.ones_like(ids), ours, HEADS)
    # the row of a token predicts the next one; what the last row predicts is not known
    targets, share = np.roll(ids, -1, axis=1), np.full(ids.shape, 1 / ids[:, 1:].size, logits.dtype)
    share[:, -1] = 0
    loss = float((cross_entropy(logits, targets) * share).sum())
    grad = block_gradients.cross_entropy_gradient(share, logits, targets)
    return loss, model_gradients.gpt2_model_gradient(grad, ids, ours, HEADS)


def test_a_whole_gpt2_with_its_tied_table(dtype: str) -> None:
    import torch

    model = gpt2(dtype)
    named = dict(model.transformer.named_parameters())
    assert model.lm_head.weight is model.transformer.wte.weight, "one table at both ends"
    ids = np.random.default_rng(5).integers(0, VOCAB, (BATCH, SEQ))
    tensor = torch.from_numpy(ids)
    logits = model(input_ids=tensor).logits[:, :-1]
    # `labels=` would give the same loss, in float32 whatever the model's dtype
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tensor[:, 1:].reshape(-1))
    expected.backward()
    ours = gpt2_weights({name: x.detach().numpy() for name, x in named.items()})
    loss, found = loss_and_gradient(ours, ids)
    assert abs(loss - expected.item()) <= 1e-5
    theirs = gpt2_weights({name: x.grad.numpy() for name, x in named.items()})
    for mine, other in zip(arrays(found), arrays(theirs), strict=True):
        # a key's bias moves all scores of a query alike, so its gradient is 0 but for rounding, on both sides
        if np.abs(other).max() > 1e-6:
            near(mine, other, dtype)
        else:
            assert np.abs(mine).max() < 1e-6
    assert sum(np.abs(other).max() <= 1e-6 for other in arrays(theirs)) == len(ours.blocks), "the keys' biases alone"


@pytest.mark.parametrize(("name", "options"), [("Adam", {}), ("AdamW", {"weight_decay": 0.3})])
def test_steps_of_adam_and_adamw(name: str, options: dict[str, float], dtype: str) -> None:
    import torch

    start = normal(DIM, WIDTH).astype(dtype)
    tensor = leaf(start)
    optimizer = getattr(torch.optim, name)([tensor], lr=0.01, **options)
    formula, decay = getattr(equations, name.lower()), [*options.values()]
    weight, mean, square = start, np.zeros_like(start), np.zeros_like(start)
    for step in range(1, 21):
        grad = normal(DIM, WIDTH, seed=step).astype(dtype)
        tensor.grad = torch.from_numpy(grad)
        optimizer.step()
        weight, mean, square = formula(weight, grad, mean, square, step, 0.01, *decay)
    near(weight - start, tensor.detach().numpy() - start, dtype)


@pytest.mark.parametrize("longest", [0.5, 5.0, 500.0])
def test_gradients_are_clipped_together(longest: float, dtype: str) -> None:
    """Ten times three gradients; torch divides by a length that is 1e-6 longer."""
    import torch

    for seed in range(10):
        given = [normal(*shape, seed=seed).astype(dtype) for shape in ((DIM,), (DIM, WIDTH), (2, 3, 4))]
        tensors = [leaf(np.zeros_like(each)) for each in given]
        for tensor, each in zip(tensors, given, strict=True):
            tensor.grad = torch.from_numpy(each.copy())
        length = torch.nn.utils.clip_grad_norm_(tensors, longest).item()
        for found, tensor in zip(model_gradients.clipped_gradients(given, longest), tensors, strict=True):
            theirs = tensor.grad.numpy() * ((length + 1e-6) / length if length > longest else 1)
            near(found, theirs.astype(dtype), dtype)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_dropout_and_its_gradient(rate: float, dtype: str) -> None:
    """Ten arrays; which numbers stay is read from what torch makes of ones."""
    import torch

    for seed in range(10):
        x, grad = (normal(*VECTORS, seed=100 * i + seed).astype(dtype) for i in (1, 2))
        torch.manual_seed(seed)
        keep = torch.nn.functional.dropout(torch.ones(VECTORS), rate).numpy() != 0
        assert keep.all() == (rate == 0)
        torch.manual_seed(seed)
        tensor = leaf(x)
        dropped = torch.nn.functional.dropout(tensor, rate)
        dropped.backward(torch.from_numpy(grad))
        near(model_gradients.dropout(x, keep, rate), dropped.detach().numpy(), dtype)
        near(model_gradients.dropout(grad, keep, rate), tensor.grad.numpy(), dtype)


# the small GPT-2 beside the study files


def test_the_trained_model_is_read_by_transformers_with_the_same_logits_and_ids() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs, info = AutoModelForCausalLM.from_pretrained(study_training.SHIPPED, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and theirs.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(study_training.SHIPPED)
    with minibert.load_encoder(study_training.SHIPPED) as encoder:
        for text in ("", "q", "station", "The cat 9", "unbelievably"):
            batch = encoder.tokenize(text)
            ids = tokenizer(text, return_tensors="pt").input_ids
            assert np.array_equal(batch["input_ids"], ids)
            with torch.no_grad():
                expected = theirs.eval()(input_ids=ids).logits.numpy()
            found = encoder.logits(**batch)
            assert np.abs(found - expected).max() <= LOGITS_TOLERANCE * np.abs(expected).max()
            drawn = theirs.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
            written = encoder.complete(text, tokens=4, temperature=0.0)
            assert text + tokenizer.decode(drawn, skip_special_tokens=True) == written


def test_verify_finds_the_trained_model_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--encoder", str(study_training.SHIPPED)]) == 0
    assert capsys.readouterr().out.endswith("no difference beyond what rounding allows\n")


def test_transformers_opens_the_trained_bert_too() -> None:
    """A tensor under another name would be drawn anew there, a word's ends or capitals be cut otherwise."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    theirs, info = AutoModelForMaskedLM.from_pretrained(study_masked.SHIPPED, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and theirs.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(study_masked.SHIPPED)
    texts = ("questi[MASK]n", "[MASK]" * 15, "Wa[MASK]ki[MASK]g", "über 9[MASK]", "[MASK]", " q[MASK] een\n", "")
    with minibert.load_encoder(study_masked.SHIPPED) as encoder:
        for text in texts:
            batch, ids = encoder.tokenize(text), tokenizer(text, return_tensors="pt").input_ids
            assert np.array_equal(batch["input_ids"], ids), text
            with torch.no_grad():
                expected = theirs.eval()(input_ids=ids).logits.numpy()
            assert np.abs(encoder.logits(**batch) - expected).max() <= LOGITS_TOLERANCE * np.abs(expected).max()
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    with minibert.load_encoder(study_masked.SHIPPED) as encoder, torch.no_grad():
        own = encoder.tokenize(list(texts))
        assert all(np.array_equal(own[name], batch[name]) for name in ("input_ids", "attention_mask"))
        kept, expected = own["attention_mask"].astype(bool), theirs(**batch).logits.numpy()
        found = encoder.logits(**own)
    assert np.abs(found - expected)[kept].max() <= LOGITS_TOLERANCE * np.abs(expected).max()
