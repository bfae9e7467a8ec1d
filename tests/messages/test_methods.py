"""What methods say of what they do not take: one table of message -> call. Elsewhere tests ask for the type alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import word_models
from reference_files import REFERENCE

import minibert
from minibert.errors import CheckpointError
from minibert.show.attention import terms_of
from minibert.show.live import Live
from minibert.show.live_state import LONGEST
from minibert.show.page import page
from minibert.show.pictures import picture

Of = Callable[[str], Any]
PAIR, IDS = ("we", "the clouds"), [[5, 6, 7]]


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Of:
    """Open a model once: a tiny one that predicts words, or a folder of tests/reference."""

    @functools.cache
    def opened(name: str) -> Any:
        folder = REFERENCE / name
        if name in word_models.CLASS:
            folder = word_models.write(tmp_path_factory.mktemp(name), name)
        return minibert.load_encoder(folder)

    return opened


RERANKER, DENSE, LATE = "uses-reranker", "sentences-dense", "late-fixed"


def call(name: str, method: str, *given: Any, **more: Any) -> Callable[[Of], object]:
    """Call a method of a model."""
    return lambda of: getattr(of(name), method)(*given, **more)


POSITIVE: list[tuple[str, Callable[[Of, Any], object]]] = [
    *((option, lambda of, n, option=option, ask=ask: call(*ask, **{option: n})(of)) for option, *ask in (
        ("k", "bert", "fill", "[MASK]"), ("k", "gpt2", "next_words", "we"), ("k", "uses-inference", "classify", "we"),
        ("tokens", "gpt2", "complete", "we"), ("top_k", RERANKER, "rank", "we", ["a"]),
        ("batch_size", RERANKER, "predict", [PAIR]), ("batch_size", RERANKER, "rank", "we", ["a"]),
        ("batch_size", "uses-sparse", "encode_sparse", "we"), ("batch_size", DENSE, "encode", ["we"]),
        ("max_active_dims", "uses-sparse", "encode_sparse", "we"), ("threads", DENSE, "encode", "we"),
        ("threads", RERANKER, "predict", PAIR), *(("threads", name, "rank", "we", []) for name in (RERANKER, LATE)))),
    ("k", lambda of, n: of("bert").embeddings.nearest("we", n)),
    ("k", lambda of, n: minibert.search([[1.0]], np.ones((2, 1)), n)),
    ("max_seq_length", lambda of, n: setattr(of(DENSE), "max_seq_length", n)),
    *((option, lambda of, n, option=option: minibert.load_encoder(REFERENCE / DENSE, **{option: n}))
      for option in ("max_seq_length", "threads")),
    ("threads", lambda of, n: of("bert").embeddings(IDS, threads=n)),
]  # fmt: skip


@pytest.mark.parametrize("found", [0, -1, True, 2.0, "5", np.True_, np.int64(0), np.float32(2), np.array([2])])
@pytest.mark.parametrize(("name", "call"), POSITIVE)
def test_a_number_that_is_none(of: Of, name: str, call: Callable[[Of, Any], object], found: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be an integer >= 1, found"):
        call(of, found)


ONE_TEXT, A_STR, NEXT = "texts must be a str or a list of str", "a str", ("next_words", "complete")
YES_NO = (
    "heads of this model are next_word, and rerankers that answer with a word, yes or .*; load a reranker with a head"
)
LENGTH, PLACE = r"the longest sequence is 24 \(the position table\); shorten it$", r"texts\[1\] must be a str, found "
VALUES: list[tuple[str, Callable[[Of], object]]] = [
    (r"^text 1 has no \[MASK\]; write it in place of the word to predict$", call("bert", "fill", ["[MASK]", "we"])),
    (rf"^text 0 has 42 tokens, but {LENGTH}", call("bert", "fill", "[MASK]" * 40)),
    ("^text 1 has no token, and next_word needs one; leave it out$", call("gpt2", "next_words", ["we", ""])),
    *((f"^text 1 has no token{found}, and pooling 'max' needs one; leave it out$", lambda of, named=named: (
        of("sentences-causal").with_settings(poolings=("max",), dim=8).encode(["we", ""], prompt=named)))
      for named, found in ((None, ""), ("he: ", " beyond its prompt"))),
    *(("^text 0 has no token, and next_word needs one", call("gpt2", ask, "")) for ask in NEXT),
    *((rf"^text 0 has 30 tokens, but {LENGTH}", call("gpt2", ask, "e" * 30)) for ask in NEXT),
    *(("temperature must be a number >= 0, where 0 takes the", call("gpt2", "complete", "we", temperature=odd))
      for odd in (-1, np.nan, np.inf, 10**400, "1", True, None)),
    *(("seed must be an integer >= 0, found", call("gpt2", "complete", "we", temperature=1.0, seed=odd))
      for odd in (-1, 1.5, None)),
    (r"text_pair\[2\] has a lone surrogate", call(RERANKER, "rank", "we", ["a", "a", "\ud800"])),
    *((message, call(RERANKER, *ask, **more)) for ask in (("predict", [PAIR]), ("rank", "we", ["a"]))
      for message, more in (("device must be None or 'cpu', found 'cuda'", {"device": "cuda"}),
                            ("one of this model's 'ask', found 'query'", {"prompt_name": "query"}))),
    *((r"texts\[0\] has a lone surrogate", call(name, ask, text)) for name, ask, text in (
        ("bert", "fill", "[MASK]\ud800"), ("gpt2", "next_words", "\udfffwe"), ("gpt2", "complete", "we\ud800"))),
    (r"^text 1 has 4\d tokens, but the longest .* is 32 .*; shorten it, or set max_seq",
     call("uses-topics", "classify", ["we", "we " * 40])),
    ("convert_to_tensor must be False", call(RERANKER, "predict", [PAIR], convert_to_tensor=True)),
    (r"must keep the shape \(1, 1\) of the", call(RERANKER, "predict", [PAIR], activation_fn=lambda x: x[:, 0])),
    ("one number a pair, but this model has 3 labels; predict gives", call("uses-inference", "rank", "we", [])),
    *((f"was saved as a {kind}, .* for scores of pairs load the folder of a CrossEncoder", call(name, *given))
      for name, kind in (("uses-sparse", "SparseEncoder"), (DENSE, "SentenceTransformer"))
      for given in (("predict", [PAIR]), ("rank", "we", ["a"]))),
    ("saved as a MultiVectorEncoder, whose methods here are encode_query, encode_do", call(LATE, "predict", PAIR)),
    ("saved as a MultiVectorEncoder", call(LATE, "encode_sparse", "we")),
    ("truncate_dim is for sentence vectors, and this model gives a vec", call(LATE, "encode", "we", truncate_dim=2)),
    ("precision 'int8' is for sentence vectors", call(LATE, "encode", "we", precision="int8")),
    ("folder was saved as a SparseEncoder", call("uses-sparse", "encode", "we")),
    ("a SentenceTransformer, .*; for sparse vectors load the folder of", call("sentences-cls", "encode_sparse", "we")),
    ("apply_softmax is for pairs, and this model has none", call(LATE, "rank", "we", ["a"], apply_softmax=True)),
    ("was saved as a CrossEncoder, .*; for sparse vectors load the folder of", call(RERANKER, "encode_sparse", "we")),
    ("prompt_name must be one of this model's 'query', 'document'", call("uses-sparse", "encode_sparse", "we", "ask")),
    *((f"{name} must be .*, found {odd!r}".replace("[", r"\["), call(DENSE, "encode", ["we"], **{name: odd}))
      for name, odd in (
          ("convert_to_numpy", False), ("convert_to_tensor", True), ("device", "cuda"), ("device", ["cpu", "cpu"]),
          ("precision", "int4"), ("truncate_dim", 0), ("output_value", None), ("output_value", "vectors"),
          ("prompt_name", "other"), ("task", "search"))),
    *(("^embeddings1 must be vectors of one width, found rows of several", call(DENSE, method, [[1, 0], [1]], [1, 0]))
      for method in ("similarity", "similarity_pairwise")),
    ("^queries must be vectors of one width", lambda of: minibert.search([[1.0, 0.0], [1.0]], np.eye(2))),
    *((f"^{name} has NaN or an infinite number, so it cannot be compared", call(DENSE, "similarity", *given))
      for name, given in (
          (r"embeddings1\[0\]", ([np.nan, 0], [1, 0])), (r"embeddings2\[1\]", ([1, 0], np.diag([1, np.inf]))))),
    ("one width, found embeddings1 .1, 2. and embeddings2 .1, 3.", call(DENSE, "similarity", [1, 0], [1, 0, 0])),
    ("as many vectors of each, found 2 and 3",
     call(DENSE, "similarity_pairwise", np.ones((2, 4)), np.ones((3, 4)))),
    ("one width", call(DENSE, "similarity_pairwise", np.ones((2, 4)), np.ones((2, 1)))),
    *((r"^embeddings1 must be vectors of 6 numbers, found u?int\d+ of shape .*; minibert.search with precision=",
       call(DENSE, method, bits, bits)) for method in ("similarity", "similarity_pairwise")
      for bits in (np.ones((2, 1), np.uint8), np.ones(1, np.int8), [[1], [2]])),
]  # fmt: skip
TYPES: list[tuple[str, Callable[[Of], object]]] = [
    *((A_STR, call("bert", "fill", odd)) for odd in (None, 5, b"[MASK]", [None], ["[MASK]", 3])),
    *((A_STR, call("gpt2", ask, None)) for ask in NEXT),
    ("text must be a str, found list; complete takes one text at a time", call("gpt2", "complete", ["we"])),
    ("word must be a str, found list", lambda of: of("bert").embeddings.nearest(["king"])),
    *((message, call(RERANKER, "predict", pairs)) for message, pairs in (
        ("pairs must be one pair of texts or a list of pairs, found str", "we"),
        ("pairs must be one pair of texts or a list of pairs, found bytes", b"we"),
        ("found dict", {"we": "the"}), ("found none", None), ("ndarray|iter", np.array(3)),
        (r"pairs\[0\] must be a pair of texts, \(query, document\), found 'we'", ["we"]),
        (r"pairs\[0\] must be a pair of texts", ["we", "the", "a"]),
        (r"pairs\[1\] must be a pair .* found \('we',\)", [PAIR, ("we",)]),
        (r"pairs\[1\] must be a pair .* found \('we', 'the', 'a'\)", [PAIR, ("we", "the", "a")]),
        (r"pairs\[0\] must be a pair .* found \('we', None\)", [("we", None)]),
        (r"pairs\[0\] must be a pair .* found 'we'", ["we", ("a", "b")]),
        (r"pairs\[0\] must be a pair .* found \[\]", [[]]),
        (r"pairs\[0\] must be a pair .* found {'text'", [{"text": "we", "text_pair": "a"}]))),
    *((rf"{method}\(\) got multiple values for argument 'prompt_name'", call(DENSE, method, "we", "a", prompt_name="b"))
      for method in ("encode_query", "encode_document")),
    (r"tokens_cut\(\) got an unexpected keyword arg", call(DENSE, "tokens_cut", "we", precision="int8")),
    ("query must be a str, found int", call(RERANKER, "rank", 7, ["a"])),
    ("documents must be many texts, found one str", call(RERANKER, "rank", "we", "a text")),
    (r"pairs\[1\] must be a pair of texts, .*, found \('we', None\)", call(RERANKER, "rank", "we", ["a", None])),
    ("must be a str or a list of str, found dict", call(RERANKER, "rank", "we", {"a": 1})),
    *(("activation_fn must be a function of an array, or ", call(RERANKER, "predict", [PAIR], activation_fn=odd))
      for odd in ("sigmoid", 3, np.float32)),
    *((r"texts\[0\] must be a str, found tuple, a pair of texts; predict", call(f"uses-{name}", method, [PAIR]))
      for name, method in (("inference", "classify"), ("entities", "entities"), ("sparse", "encode_sparse"))),
    (PLACE + "NoneType", call("uses-inference", "classify", ["we", None])),
    (PLACE + "int", call("uses-sparse", "encode_sparse", ["we", 3], prompt="a")),
    *((PLACE + "int", call(DENSE, "encode", ["we", 3], prompt=prompt)) for prompt in ("", "the ")),
    ("prompt must be a str, found int", call(DENSE, "encode", ["we"], prompt=3)),
    *((f"^{method}: got an unexpected keyword argument .pool.; encode and predict use all", call(name, method, pool=1))
      for name, method in ((DENSE, "encode"), (RERANKER, "predict"))),
    *((rf"^{method}: got an unexpected keyword argument '{odd}'; did you mean {near}\?$",
       call(name, ask, *given, **{odd: 1}))
      for name, ask, method, given, odd, near in (
          *((DENSE, ask, "encode", ["we"], "normalise_embeddings", "normalize_embeddings")
            for ask in ("encode", "encode_query", "encode_document")),
          (DENSE, "__call__", "__call__", [IDS], "attention_maks", "attention_mask"),
          (DENSE, "similarity", "similarity", [[1.0]], "embedding2", "embeddings2"),
          (DENSE, "encode", "encode", (), "text", "texts"), (RERANKER, "rank", "rank", ["we", ["a"]], "topk", "top_k"),
          ("uses-sparse", "encode_sparse", "encode_sparse", ["we"], "max_active_dim", "max_active_dims"),
          (DENSE, "tokenize", "tokenize", ["we"], "truncate", "truncation"),
          ("gpt2", "complete", "complete", ["we"], "token", "tokens"))),
    ("^encode: takes at most 14 options by position, found 16", call(DENSE, "encode", "we", *range(16))),
    ("^load: got an unexpected keyword argument 'lasy'; did you mean lazy", lambda of: minibert.load("a", lasy=True)),
    *((f"^{load.__name__}: got an unexpected .* 'model_name_or_path'; pass it first, or as name$",
       lambda of, load=load: load(model_name_or_path="a")) for load in (minibert.load, minibert.load_encoder)),
    ("^search: got an unexpected keyword argument 'top_k'; did you mean k|known are queries, vectors, k, ",
     lambda of: minibert.search([[1.0]], [[1.0]], top_k=1)),
    *((r"found a text; tokenize .*, as in .* encoder.trace\(\*\*encoder.tokenize\(text\)\)", call(DENSE, ask, odd))
      for ask in ("trace", "__call__") for odd in ("we", ["we", "a"])),
    ("^an encoder takes no attention_maks; did you mean attention_mask", call(DENSE, "trace", IDS, attention_maks=1)),
    *((ONE_TEXT, call(DENSE, "encode", odd)) for odd in (b"we", {"we": 1}, 3)),
    *((f"{ONE_TEXT}, passed once, as texts, inputs, sen", call(DENSE, method, **given))
      for method in ("encode", "encode_query", "encode_document")
      for given in ({}, {"texts": None}, {"inputs": ["we"], "sentences": ["we"]}, {"texts": ["we"], "inputs": ["we"]})),
    ("passed once", call(DENSE, "encode", ["we"], sentences=["we"])),
    *((message, call(DENSE, method, [1.0, 0], odd)) for method in ("similarity", "similarity_pairwise")
      for message, odd in (("embeddings2 must be vectors", ["we"]),
                           ("must be vectors .* of numbers, found complex128", [1j, 0]))),
    ("^compare must give real numbers, found complex128 of shape",
     lambda of: minibert.search([[1.0]], [[1.0]], 1, lambda a, b: np.array([[1j]]))),
    ("^queries must be vectors", lambda of: minibert.search(None, [[1.0]], 1)),
    ("^vectors must be vectors", lambda of: minibert.search([[1.0]], None, 1)),
]  # fmt: skip
HEADS: list[tuple[str, Callable[[Of], object]]] = [
    ("no head 'masked_word'; its heads are next_word", call("gpt2", "fill", "[MASK]")),
    ("no head 'masked_word'; it has no head, only input layer and", call("sentences-bare", "fill", "[MASK]")),
    ("makes vectors of a bart from the decoder's last hidden states", call("encoder/bart", "encode", "we")),
    ("the decoder of a t5, which generates text, is not computed here", call("sentences-t5", "complete", "we")),
    *((f"'next_word'; .*the decoder of a {name}, which generates text, is not computed here; load a model with",
       call(f"encoder/{name}", "next_words", "we")) for name in ("t5", "marian")),
    *((YES_NO, call("heads/gpt2-next_word", *given)) for given in (("predict", PAIR), ("rank", "a", []))),
    *(("no head 'next_word'; its heads are masked_word", call("bert", ask, "we")) for ask in NEXT),
    ("no head 'classes'", call("sentences-bare", "predict", [PAIR])),
    ("no head 'classes'; its heads are token_classes", call("uses-entities", "classify", "we")),
    ("no head 'token_classes'; its heads are classes", call("uses-inference", "entities", "we")),
    ("no head 'masked_word'; its heads are classes", call("uses-reranker-bare", "encode_sparse", "we")),
]  # fmt: skip


# -- pages and pictures --------------------------------------------------------------------------------------------


def drawn(kind: str, name: str, text: str | None = None, whole: bool = True, **choice: Any) -> Callable[[Of], object]:
    """Draw a picture of a model, or of its input layer alone."""
    return lambda of: picture(kind, of(name) if whole else of(name).embeddings, text, **choice)


def live(question: str = "state", name: str = "gpt2", **sent: Any) -> Callable[[Of], object]:
    """Ask the live page of a model."""
    return lambda of: getattr(Live(of(name)), question)(sent)


def patched(**patch: Any) -> Callable[[Of], object]:
    return live(text="we", beside="we the", patches=[patch])


STREAM, TWO, SAYS = {"what": "stream", "block": 0}, {"text": "we", "beside": "the"}, "; name a model such as BERT or GP"
SHOWN: list[tuple[str, Callable[[Of], object]]] = [
    ("^expected a JSON object with text, beside, .*, found 5$", lambda of: Live(of("gpt2")).state(5)),
    ("^there is no field 'head'; did you mean 'heads'", live(text="a", head=[])),
    ("^text must be a text of at most 4000 letters, found 'aaa", live(text="a" * (LONGEST + 1))),
    (r"^heads must be a list of at most 600 items, each \[block, head\], found a list$", live(text="a", heads=[[0]])),
    ("^head 9 is not there", live(text="we", heads=[[0, 9]])),
    ("^blocks must be a list of at most 600 items, each an integer from 0 on", live(text="a", blocks=[True])),
    ("^block 7 is not there", live(text="we", feed_forwards=[7])),
    (r"each \[query, key\] of the numbers 0\.\.2, for word, position, rest, found a", live(text="a", terms=[[0, 3]])),
    ("^token 50 is not there: the text has ", live(text="we", replaced=[[50, "b"]])),
    ("^'we the' must be one token of this tokenizer, found ", live(text="we", replaced=[[0, "we the"]])),
    (r"^replaced must be a list of at most 600 items, each \[position, tok", live(text="a", replaced=[[1, "\ud800"]])),
    ("^values can be put in from a second text; give one$", live(text="we", patches=[STREAM])),
    (r"^patches must be .* an object with what \(stream, attention, feed-forward\), bl", patched(what="it", block=0)),
    ("^patches must be .*, block, place and source, found", patched(**STREAM, place=0)),
    ("^beside must be", live(text="a", beside={})),
    ("^heads must be a list of at most 600 items", live(text="we", heads=[[0, 0]] * 601)),
    ("^values of every token need two texts of as many tokens, found .*; choose one token$", patched(**STREAM)),
    (r"^block 4 is not there: this model's stream has states 0\.\.2", patched(what="stream", block=4)),
    ("^token 9 is not there: the text has", patched(**STREAM, place=0, source=9)),
    ("^the text has more tokens than the 24 that this page takes; shorten it$", live(text="e" * 30)),
    ("^the text has 0 tokens, but this page takes 1 to 24; change it$", live(text="")),
    ("^block must be an integer from 0 on, found nothing$", live("cell", state=TWO, head=0, query=0, key=0)),
    (r"^key 99 is not there, only 0\.\.", live("cell", state=TWO, block=0, head=0, query=0, key=99)),
    ("^p must be a number, found True$", live("sample", state=TWO, token=0, temperature=1.0, k=1, p=True, seed=0)),
    ("^token 99 is not there", live("sample", state=TWO, token=99, temperature=1.0, k=1, p=0.9, seed=0)),
    ("^a map needs a model with blocks and a second text; write one", live("map", state={"text": "we"}, token=0)),
    ("^state must be an object, found nothing$", live("map", token=0)),
    ("^this model has no blocks here, so only the text can be changed$",
     lambda of: Live(of("bert").embeddings).state({"text": "we", "heads": [[0, 0]]})),
    (f"^llama adds no positions in its input layer, so its scores have no such terms{SAYS}",
     lambda of: terms_of(of("encoder/llama"), {})),
    (f"^nine terms need one LayerNorm .*, but electra has LayerNorm.* and .* there{SAYS}",
     lambda of: terms_of(of("encoder/electra"), {})),
    (f"^mpnet adds the learned bias of the distance to block 0's scores, so they have more than nine terms{SAYS}",
     lambda of: terms_of(of("encoder/mpnet"), {})),
    ("^the text beside has no tokens, so there is nothing to compare", lambda of: page(of("gpt2"), "we", beside="")),
    ("here are none; give a whole model and a text with tok", lambda of: page(of("bert").embeddings, "we", beside="a")),
    ("here are none; give a whole model and a text with tokens$", lambda of: page(of("gpt2"), "", beside="we")),
    ("the longest sequence is 24", lambda of: page(of("gpt2"), "we", beside="e" * 30)),
    ("^kind must be one of rows, .*; found 'sculpture'$", drawn("sculpture", "bert")),
    *((f"^the picture '{kind}' is about a text; give one as text$", drawn(kind, "gpt2", **more))
      for kind, more in (("sum", {}), ("attention", {}), ("terms", {}), ("patching", {"other": "we"}),
                        ("pairs", {"other": "we"}))),
    ("^the text has no tokens beside the special ones; give another", drawn("sum", "bert", "", whole=False)),
    ("^bert has no positions in attention; this picture is of rotary", drawn("rotary", "bert", whole=False)),
    ("^t5 adds no positions in its input layer, so it has no", drawn("table", "encoder/t5", whole=False)),
    ("^the picture 'table' has no use for token; leave it out, or draw rows or", drawn("table", "bert", token=1)),
    *((f"^the picture '{kind}' has no use for (block|head); leave it out, or draw attention$",
       drawn(kind, "gpt2", "we", **more))
      for kind, more in (("table", {"head": 0}), ("terms", {"head": 0}), ("patching", {"other": "a", "block": 0}))),
    ("'patching' compares two texts; give the second as other$", drawn("patching", "gpt2", "we")),
    ("'pairs' compares two texts; give the second as other$", drawn("pairs", "gpt2", "we")),
    ("'attention' has no use for other; leave it out, or draw patching or pairs$",
     drawn("attention", "gpt2", "we", other="we")),
    ("^the text has no tokens; give another one$", drawn("attention", "gpt2", "")),
    ("^one token has no scores to compare; give a longer text$", drawn("terms", "gpt2", "e")),
    (r"'attention' needs blocks; pass a whole model, minibert\.load_encoder", drawn("attention", "bert", "we", False)),
]  # fmt: skip
INDICES: list[tuple[str, Callable[[Of], object]]] = [
    (r"^block is 2, but this model has blocks 0\.\.1; choose", drawn("attention", "gpt2", "we", block=2)),
    (r"^head is -1, but this model has heads 0\.\.3; choose", drawn("attention", "gpt2", "we", head=-1)),
    (r"^token is -1, but", drawn("rows", "bert", "we", False, token=-1)),
    (r"^token is 9, but the text has the tokens 0\.\.2; `explain` lists", drawn("sum", "bert", "we", False, token=9)),
]
ROWS = [(ValueError, *row) for row in VALUES + SHOWN] + [(TypeError, *row) for row in TYPES]
ROWS += [(IndexError, *row) for row in INDICES]
ROWS += [(CheckpointError, *row) for row in HEADS]
ROWS += [
    (AttributeError, "^this layer has no 'encode'; minibert.load_encoder o", lambda of: of("bert").embeddings.encode),
    (KeyError, "no 'embeddings.LayerNom'; did you mean embeddings.Lay", lambda of: of("bert")["embeddings.LayerNom"]),
    *((AttributeError, f"no attribute '{name}'; {says}", lambda of, name=name: getattr(minibert, name))
      for name, says in (("compre", "did you mean compare"), ("SentenceTransformer", "load_encoder opens its models"))),
    (TypeError, "^compare: got an .*; did you mean tolerance", lambda of: minibert.compare(DENSE, "a", tolerence=1)),
]  # fmt: skip
ROWS += [
    (AttributeError, message, lambda of, name=name, part=part: getattr(part(of(DENSE)), name))
    for part in (lambda encoder: encoder, lambda encoder: encoder.embeddings)
    for name, message in (
        ("to", "^this (encoder|layer) has no 'to'; leave it out: .* on the CPU$"), ("eval", "does not train$"),
        ("train", "does not train$"), *((odd, f"no '{odd}'($|; its submod)") for odd in ("parameters", "state_dict")),
        ("encode_multi_process", "no 'encode_multi_process'; encode and predict use all cores, and minibert bulk"),
        ("tokenise", r"no 'tokenise'; did you mean tokenize\?$"), ("wte", "no 'wte'$|no 'wte'; its submodules are "))
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "do"), ROWS)
def test_what_a_method_says(of: Of, kind: type[Exception], message: str, do: Callable[[Of], object]) -> None:
    with pytest.raises(kind, match=message):
        do(of)
