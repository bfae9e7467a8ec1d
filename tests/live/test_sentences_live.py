"""Sentence vectors beside sentence-transformers itself: texts of all kinds, folders it saves, options, searches."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from encoder_files import off
from many_texts import many_texts
from needed import need_sentence_transformers, opened_there
from reference_files import REFERENCE, changed
from tokenizer_folders import BASES, vocabulary, write_tokenizer

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS

pytestmark = pytest.mark.reference


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    need_sentence_transformers()


EXACT = 1e-6  # of a vector's numbers, as a share of its length; measured: 3.0e-7 on two kernels
# of the whole vector; measured: 1.6e-6 and 1.9e-6. sentence-transformers' own are up to 1.4e-6 from float64
WHOLE = 2.5e-6
FROM_FLOAT64 = 1.6  # our largest distance from float64 in terms of theirs; measured: 0.97 (Haswell), 1.35 (SkylakeX)


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Any:
    return opened_there(minilm)


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> minibert.Encoder:
    return minibert.load_encoder(minilm)


def apart(found: Array, want: Array) -> tuple[float, float]:
    """Relative to each vector's length: the largest difference of numbers, the largest length of differences."""
    assert found.shape == want.shape
    lengths = np.linalg.norm(want.astype("f8"), axis=1, keepdims=True)
    difference = (found.astype("f8") - want) / lengths
    return float(np.abs(difference).max()), float(np.linalg.norm(difference, axis=1).max())


def test_texts_of_all_kinds(reference: Any, encoder: minibert.Encoder) -> None:
    texts = many_texts(250)
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) == 0 and max(lengths) == 5000 and len(set(lengths)) > 40
    numbers, whole = apart(encoder.encode(texts), reference.encode(texts))
    assert numbers <= EXACT and whole <= WHOLE


def test_as_near_to_float64_as_the_reference(minilm: Path, reference: Any, encoder: minibert.Encoder) -> None:
    exact = type(reference)(str(minilm), device="cpu").double()
    texts = [text for text in many_texts(200) if len(text) < 300]
    want = exact.encode(texts)
    theirs, ours = (apart(model.encode(texts), want)[1] for model in (reference, encoder))
    assert ours <= FROM_FLOAT64 * theirs


def test_how_much_is_truncated(reference: Any, encoder: minibert.Encoder) -> None:
    long = [text for text in many_texts(60) if 500 < len(text) < 9000]
    lengths = [len(reference.tokenizer(text, truncation=False)["input_ids"]) for text in long]
    want = [max(0, length - reference.max_seq_length) for length in lengths]
    assert encoder.tokens_cut(long).tolist() == want and max(want) > 0


def test_a_narrow_folder_is_computed_in_float32(minilm: Path, tmp_path: Path) -> None:
    """And so far from what sentence-transformers gives in the narrow format as the docstring of `encode` says."""
    import torch

    texts = [text for text in many_texts(120) if 0 < len(text) < 600][:60]
    for dtype, most in ((torch.float16, 6e-4), (torch.bfloat16, 4e-3)):  # measured: 5.4e-4, 3.2e-3
        model = opened_there(minilm)
        model[0].auto_model.to(dtype)
        folder = tmp_path / str(dtype)
        model.save(str(folder), create_model_card=False)
        theirs, ours = opened_there(folder), minibert.load_encoder(folder).encode(texts)
        assert most / 4 <= apart(ours, theirs.encode(texts))[0] <= most
        assert apart(ours, theirs.float().encode(texts))[0] <= EXACT


SAME = 1e-5  # of vectors, similarities and scores up to 20; measured: 5.2e-6
OPTIONS: list[dict[str, Any]] = [
    {"prompts": {"query": "we lived "}},
    {"prompts": {"query": "we ", "own": "above "}, "default_prompt_name": "own"},
    {"prompts": {"query": "", "document": ""}},
    {"prompts": {"document": "the clouds: "}, "default_prompt_name": "document"},
    {"default_prompt_name": "query"},
    {"truncate_dim": 3},
    {"truncate_dim": 300},
    {"similarity_fn_name": "dot"},
    {"similarity_fn_name": "euclidean", "truncate_dim": 5},
    {"similarity_fn_name": "manhattan", "prompts": {"query": "clouds! "}},
    {"similarity_fn_name": "cosine"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense", "sentences-bare"])
def test_ten_ways_to_ask(name: str, options: dict[str, Any]) -> None:
    theirs = opened_there(REFERENCE / name, **options)
    ours = minibert.load_encoder(REFERENCE / name, **options)
    assert ours.prompts == theirs.prompts
    texts = ["we lived above the clouds", "", "clouds!", *[text for text in many_texts(30) if len(text) < 100]]
    for method in ("encode", "encode_query", "encode_document"):
        found, want = getattr(ours, method)(texts), getattr(theirs, method)(texts)
        assert found.shape == want.shape and np.abs(found - want).max() <= SAME
    first, second = np.random.default_rng(0).standard_normal((2, 20, 7)).astype("f4")
    assert np.abs(ours.similarity(first, second) - theirs.similarity(first, second).numpy()).max() <= SAME


FOLDER, POOLING = "config_sentence_transformers.json", "1_Pooling/config.json"
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *(("sentence_bert_config.json", {key: {"torch_dtype": dtype}})
      for key in ("model_args", "model_kwargs") for dtype in ("float32", "auto", None)),
    *(("sentence_bert_config.json", {"do_lower_case": flag}) for flag in (None, 0, 1)),
    *((FOLDER, {"similarity_fn_name": name}) for name in ("dot", "Dot", "dot_score", "Cosine", None)),
    *((POOLING, {"include_prompt": flag}) for flag in (None, 0, 1)),
    (POOLING, {"pooling_mode": "mean"}),
    *(("2_Dense/config.json", {"use_residual": flag}) for flag in (None, 0)),
    ("2_Dense/config.json", {"bias": 1}),
    ("2_Dense/config.json", {"module_output_name": None}), ("3_Normalize/config.json", {"module_output_name": None}),
]  # fmt: skip


@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_with_tokens_of_its_prompt_alone(name: str, tmp_path: Path) -> None:
    """The same vector; where theirs is minus infinity, an error."""
    ours, texts = changed(tmp_path, "sentences-causal", POOLING, {"pooling_mode": name}), ["we lived", ""]
    want = opened_there(tmp_path / "model").encode(texts, prompt="he: ")
    if name == "max":
        assert (want[1] == -np.inf).all()
        with pytest.raises(ValueError):
            ours.encode(texts, prompt="he: ")
    else:
        assert np.abs(ours.encode(texts, prompt="he: ") - want).max() <= SAME


@pytest.mark.filterwarnings("ignore:.*'similarity_fn_name' is:UserWarning")
@pytest.mark.parametrize(("file", "change"), SETTINGS, ids=str)
def test_odd_values_of_settings_are_read_as_there(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    ours = changed(tmp_path, "sentences-dense", file, change)
    theirs = opened_there(tmp_path / "model")
    texts = ["We lived above the clouds", "", "CLOUDS!"]
    found, want = (model.encode(texts, prompt="the ") for model in (ours, theirs))
    assert np.abs(found - want).max() <= SAME
    assert np.abs(ours.similarity(2 * found, want) - theirs.similarity(2 * found, want).numpy()).max() <= SAME


@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense"])
def test_evaluators_that_ask_for_no_tensors_run(name: str) -> None:
    from sentence_transformers.sentence_transformer import evaluation

    theirs = opened_there(REFERENCE / name)
    ours = minibert.load_encoder(REFERENCE / name, device="cpu")
    first = ["we lived above", "the clouds", "a b c", "we we"]  # nothing that two roundings would order differently
    second, third = ["clouds we lived", "above clouds", "c d", "the the"], ["x y", "z", "we above the", "d e f"]
    scores = [0.1, 0.5, 0.9, 0.3]
    for evaluator in (
        evaluation.EmbeddingSimilarityEvaluator(first, second, scores),
        evaluation.BinaryClassificationEvaluator(first, second, [0, 1, 1, 0]),
        evaluation.TripletEvaluator(first, second, third),
    ):
        found, want = evaluator(ours), evaluator(theirs)
        assert found.keys() == want.keys() and all(abs(found[key] - want[key]) <= SAME for key in want)
    for evaluator in (
        evaluation.InformationRetrievalEvaluator({"q": first[0]}, {"d": second[0]}, {"q": {"d"}}),
        evaluation.RerankingEvaluator([{"query": first[0], "positive": second[:1], "negative": third[:1]}]),
        evaluation.ParaphraseMiningEvaluator({"a": first[0], "b": second[0]}, [("a", "b")]),
        evaluation.TranslationEvaluator(first, second),
    ):
        with pytest.raises(ValueError):
            evaluator(ours)


def test_old_names_are_theirs() -> None:
    """The list of names without an owner, of which there are 78, and what becomes of others."""
    from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

    from minibert.hub.repository import WITHOUT_OWNER

    assert frozenset(ORIGINAL_TRANSFORMER_MODELS) == WITHOUT_OWNER


APART = 3e-6  # of a vector's numbers, whose length is 1, and of scores; measured 4.2e-7
ODD_TEXTS = [
    "we lived", "We lived  above the clouds.", "the", "don't we, the he-lived cloud", "clouds " * 9, "", "a",
    "we the we", "Above, above the clouds: we", "lived " * 30,
]  # fmt: skip
PROMPTS = {"query": "Instruct: we lived\nQuery:", "document": ""}
# the tokenizer, and what a published model of the kind pools by
KINDS = {
    "eurobert": ("PreTrainedTokenizerFast", "lasttoken"),  # jina-embeddings-v5-text-nano
    "ultrabert": ("PreTrainedTokenizerFast", "cls"),
    "gte": ("XLMRobertaTokenizer", "cls"),  # gte-multilingual-base, arctic-embed-m-v2.0
    "jina_embeddings_v3": ("XLMRobertaTokenizer", "mean"),
    "qwen3": ("Qwen2Tokenizer", "lasttoken"),  # Qwen3-Embedding
}


def plain(folder: Path, name: str, padding_side: str = "right", **changes: Any) -> Path:
    """A model's own folder: config.json, seeded weights and a tokenizer."""
    tokenizer, _ = KINDS[name]
    base = BASES[tokenizer]
    pad = {"PreTrainedTokenizerFast": "[PAD]", "Qwen2Tokenizer": "<|endoftext|>"}.get(tokenizer, "<pad>")
    named = {"tokenizer_class": tokenizer, "pad_token": pad, "model_max_length": 40, "padding_side": padding_side}
    sizes = {
        "vocab_size": len(vocabulary(base)),
        "max_position_embeddings": 64,
        "pad_token_id": base.special.index(pad),
    }
    config = encoders.config(name, **sizes, **changes)
    files = {"config.json": config, "tokenizer_config.json": named}
    checkpoints.write(write_tokenizer(folder, tokenizer, files), config, encoders.tensors(config))
    return folder


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_vectors_of_queries_and_documents(name: str, padding_side: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    transformer = Transformer(str(plain(tmp_path / "plain", name, padding_side)), max_seq_length=40)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=KINDS[name][1])
    model = SentenceTransformer(modules=[transformer, pooling, Normalize()], prompts=PROMPTS, device="cpu")
    model.save(str(tmp_path / "saved"))
    texts = [text for text in ODD_TEXTS if text or name != "qwen3"]  # whose tokenizer makes nothing of nothing
    for low_memory in (False, True):
        with minibert.load_encoder(tmp_path / "saved", low_memory=low_memory) as encoder:
            for way in ("encode", "encode_query", "encode_document"):
                want, found = (getattr(each, way)(texts, batch_size=4) for each in (model, encoder))
                assert found.shape == want.shape and np.ptp(want, axis=0).max() > 0.1
                assert np.abs(found - want).max() <= APART, way
                for i, text in enumerate(texts):
                    assert np.abs(getattr(encoder, way)(text) - want[i]).max() <= APART, (way, text)


ROWS = 1e-5  # measured 2.3e-6
CLIP_TEXTS = [
    "a cat", "a photo of a dog that sleeps", "x", "naive", "", "one <|endoftext|> two", "word " * 30, "What?", "b c d",
    "the end",
]  # fmt: skip


def tokenizer(folder: Path, longest: int) -> Any:
    """CLIP's own, of bytes alone, whose two special tokens come last."""
    alphabet = sorted(importlib.import_module("tokenizers").pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"]
    made = importlib.import_module("transformers").CLIPTokenizer({word: i for i, word in enumerate(words)}, [])
    made.model_max_length = longest
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("end", [513, 2])
def test_text_embeds(end: int, tmp_path: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    folder = encoders.write(tmp_path, "clip_text_model", vocab_size=514, eos_token_id=end)
    (folder / "vocab.txt").unlink()
    model = transformers.CLIPTextModelWithProjection.from_pretrained(folder).eval()
    batch = tokenizer(folder, encoders.LONGEST)(CLIP_TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad(), minibert.load_encoder(folder) as encoder:
        theirs = model(**batch).text_embeds.numpy()
        assert off(encoder.encode(CLIP_TEXTS), theirs) <= ROWS
        assert off(np.stack([encoder.encode(text) for text in CLIP_TEXTS]), theirs) <= ROWS
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == end


def test_a_model_that_is_saved_again_or_in_bfloat16_keeps_its_identity(minilm: Path, tmp_path: Path) -> None:
    model = opened_there(minilm)
    model.save(str(tmp_path / "again"))
    assert minibert.load_encoder(tmp_path / "again").identity == minibert.load_encoder(minilm).identity
    model = model.bfloat16()
    model.save(str(tmp_path / "narrow"))
    model.float().save(str(tmp_path / "wide"))  # the same numbers
    narrow, wide = (minibert.load_encoder(tmp_path / name) for name in ("narrow", "wide"))
    assert [each.embeddings.tensors[0].dtype for each in (narrow, wide)] == ["BF16", "F32"]
    assert narrow.identity == wide.identity != minibert.load_encoder(minilm).identity
