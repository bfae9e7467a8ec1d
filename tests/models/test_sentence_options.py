"""What `load_encoder` is asked for once, in place of what the folder says: prompts, sizes, measure and length."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from reference_files import REFERENCE, opened

import minibert

PROMPTS, DENSE, BARE, RERANKER = (
    REFERENCE / name for name in ("sentences-prompts", "sentences-dense", "sentences-bare", "uses-reranker")
)
TEXTS = ["we lived", "above the clouds", ""]


def load(folder: Any, **options: Any) -> minibert.Encoder:
    return minibert.load_encoder(folder, **options)


def test_prompts_go_before_those_of_the_folder_and_the_others_stay() -> None:
    """A program that replaces all of them loses "passage", one that keeps the folder's has the old "query"."""
    plain, encoder = opened("sentences-prompts"), load(PROMPTS, prompts={"query": "we ", "own": "a "})
    assert encoder.prompts == {"query": "we ", "document": "", "passage": "above! ", "own": "a "}
    assert same_bits(encoder.encode_query(TEXTS), plain.encode(TEXTS, prompt="we "))
    assert same_bits(encoder.encode(TEXTS), plain.encode(TEXTS, prompt_name="passage"))
    assert same_bits(encoder.encode(TEXTS, prompt_name="own"), plain.encode(TEXTS, prompt="a "))


def test_a_default_prompt_is_one_of_both() -> None:
    plain = opened("sentences-prompts")
    for options, prompt in (
        ({"default_prompt_name": "query"}, "the clouds: "),
        ({"default_prompt_name": "own", "prompts": {"own": "a "}}, "a "),
        ({"prompts": {"passage": "we "}}, "we "),
    ):
        assert same_bits(load(PROMPTS, **options).encode(TEXTS), plain.encode(TEXTS, prompt=prompt))


def test_a_folder_without_prompts_puts_nothing_before_a_query() -> None:
    encoder = load(BARE, prompts={"x": "we "}, default_prompt_name="x")
    bare = opened("sentences-bare").encode(TEXTS)
    assert same_bits(encoder.encode_query(TEXTS), bare) and same_bits(encoder.encode_document(TEXTS), bare)
    assert not same_bits(encoder.encode(TEXTS), bare)


def test_vectors_are_shorter_and_a_call_may_ask_for_another_size() -> None:
    whole, encoder = opened("sentences-dense").encode(TEXTS), load(DENSE, truncate_dim=4)
    assert encoder.get_embedding_dimension() == 4
    assert same_bits(encoder.encode(TEXTS), whole[:, :4]) and encoder.encode(TEXTS[0]).shape == (4,)
    assert same_bits(encoder.encode(TEXTS, truncate_dim=2), whole[:, :2])


@pytest.mark.parametrize("folder", [BARE, DENSE, PROMPTS])
def test_the_measure_of_similarity(folder: Any) -> None:
    """A folder without modules.json has no measure of its own; what is asked for still holds."""
    first, second = np.array([[3.0, 4.0]]), np.array([[6.0, 0.0]])
    for name, want in (("cosine", 0.6), ("dot", 18), ("euclidean", -5), ("manhattan", -7)):
        for given in (name, SimpleNamespace(value=name)):  # sentence-transformers' enum has values
            encoder = load(folder, similarity_fn_name=given)
            assert np.allclose(encoder.similarity(first, second), want)
            assert np.allclose(encoder.similarity_pairwise(first[0], second[0]), want)


def test_a_length_by_either_name() -> None:
    long, plain = "we lived above the clouds " * 5, opened("sentences-dense")
    plain.max_seq_length = 6
    for name in ("max_seq_length", "max_length"):
        encoder = load(DENSE, **{name: 6})
        assert encoder.max_seq_length == 6
        assert same_bits(encoder.encode(long), plain.encode(long)) and encoder.tokens_cut(long) > 0
    pair = ("we lived above the clouds", "the clouds above we lived in")
    reranker = opened("uses-reranker")
    assert load(RERANKER, max_length=8).predict(pair) != reranker.predict(pair)
    reranker.max_seq_length = 8
    assert load(RERANKER, max_length=8).predict(pair) == reranker.predict(pair)


def test_a_copy_has_the_same_options() -> None:
    options: dict[str, Any] = dict(
        prompts={"own": "a "}, default_prompt_name="own", truncate_dim=3, similarity_fn_name="dot", max_seq_length=5
    )
    encoder = load(DENSE, **options)
    want = encoder.encode(["we lived above the clouds"])
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert same_bits(other.encode(["we lived above the clouds"]), want)
        assert other.prompts == encoder.prompts and other.max_seq_length == 5
        assert other.similarity([3.0], [4.0]) == 12
    encoder.max_seq_length = 7
    assert pickle.loads(pickle.dumps(encoder)).max_seq_length == 7


def test_habits_that_change_nothing() -> None:
    """Also a device that is no text, as torch's."""
    habits: dict[str, Any] = dict(trust_remote_code=False, backend="torch", model_kwargs={}, config_kwargs=None)
    encoder = load(DENSE, device="cpu", token="hf_none", cache_folder="/nowhere", **habits)
    assert same_bits(
        encoder.encode(TEXTS, device="cpu", convert_to_numpy=True), opened("sentences-dense").encode(TEXTS)
    )
    assert load(DENSE, device=type("device", (), {"__str__": lambda self: "cpu"})()).device == "cpu"


def test_what_code_for_sentence_transformers_reads() -> None:
    encoder = load(PROMPTS, similarity_fn_name="dot", truncate_dim=3, default_prompt_name="query", max_seq_length=9)
    found = encoder.similarity_fn_name, encoder.truncate_dim, encoder.default_prompt_name, encoder.get_max_seq_length()
    assert found == ("dot", 3, "query", 9)
    assert encoder.tokenizer is encoder.sentence_tokenizer and encoder.get_sentence_embedding_dimension() == 3
    assert encoder.model_card_data.set_evaluation_metrics(None, {"a": 1}, -1, -1) is None
    plain = opened("sentences-bare")
    assert (plain.similarity_fn_name, plain.truncate_dim, plain.default_prompt_name) == ("cosine", None, None)
    assert [opened(name).similarity_fn_name for name in ("uses-sparse", "late-fixed")] == ["dot", "maxsim"]
    with pytest.raises(AttributeError, match="'truncate_dim' cannot be set on an Encoder"):
        encoder.truncate_dim = 5  # type: ignore[misc]


REFUSED: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    (TypeError, "prompts must be texts by name", DENSE, {"prompts": ["query: "]}),
    (TypeError, "prompts must be texts by name", DENSE, {"prompts": {"query": None}}),
    (TypeError, "default_prompt_name must be a str", DENSE, {"default_prompt_name": 1}),
    (ValueError, "default_prompt_name must be one of the prompts 'query', 'document', found 'x'", DENSE,
     {"default_prompt_name": "x"}),
    (ValueError, "truncate_dim must be an integer >= 1", DENSE, {"truncate_dim": 0}),
    (ValueError, "max_seq_length must be an integer >= 1", DENSE, {"max_length": 2.0}),
    (ValueError, "max_seq_length must be at most 32", DENSE, {"max_length": 33}),
    (ValueError, "max_length is another name of max_seq_length", DENSE, {"max_length": 3, "max_seq_length": 3}),
    (ValueError, "similarity_fn_name must be one of cosine, dot, ", DENSE, {"similarity_fn_name": "near"}),
    (ValueError, "similarity_fn_name must be one of cosine, dot, ", DENSE, {"similarity_fn_name": ["dot"]}),
    (ValueError, "truncate_dim has no effect on a CrossEncoder; leave it out", RERANKER, {"truncate_dim": 3}),
    (ValueError, "similarity_fn_name has no effect on a Cro", RERANKER, {"similarity_fn_name": "dot"}),
    *((TypeError, f"load_encoder: {name} must be .*, found .*; the page \"from sentence-transf", DENSE, {name: value})
      for name, value in (("device", "cuda"), ("trust_remote_code", True), ("backend", "onnx"),
                          ("model_kwargs", {"dtype": "float16"}), ("modules", []))),
    (TypeError, "load_encoder: got an unexpected keyword argument 'threds'; the page ", DENSE, {"threds": 2}),
    (ValueError, "truncate_dim has no effect on a SparseEncoder", REFERENCE / "uses-sparse", {"truncate_dim": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "folder", "options"), REFUSED)
def test_what_cannot_be_asked_for(kind: type[Exception], message: str, folder: Any, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        load(folder, **options)
