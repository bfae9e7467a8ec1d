"""Heads beside what the reference computed; which of them a file holds, and what is wrong with a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from encoder_files import CASE, TINY, EncoderCase, copied, kept, off
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from peaks import with_peak
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.heads import NAMES, BoundHead
from minibert.families.rows import BLOCKS, HEADS
from minibert.files.tokenizer import Encoded
from minibert.models.heads import heads as computing
from minibert.models.heads.heads import logit_pieces, logits_of, tokens_of
from minibert.models.run import ready_blocks
from minibert.models.run.packing import padded
from minibert.threads.kernels import kernel

LOGITS = 5e-6  # relative to max(1, |reference|); measured 1.5e-6
CUT = 2e-6  # relative to max(1, |value|): a matrix product with other rows rounds differently; measured 6e-7
IDS = np.array([[5, 6, 7, 8], [9, 4, 3, 11]])
TWO = ([5, 6, 7], [9, 4])  # packed, the shorter one comes first


def test_every_head_of_every_row_has_a_reference() -> None:
    there = {(case.facts["family"], case.head) for case in HEAD_CASES}
    causal = {"ernie", "roberta", "xlm-roberta", "camembert", "electra"}  # bert stands for them
    wanted = {(family, head.name) for family, rows in HEADS.items() for head in rows}
    assert wanted - there == {(family, "next_word") for family in causal}
    assert {name for _, name in there} == set(NAMES)


@pytest.mark.parametrize("family", HEADS)
def test_no_head_is_of_a_direction_that_its_blocks_never_have(family: str) -> None:
    """A causal head of blocks that are never causal would be named on the page, and be in no file."""
    directions = {BLOCKS[family].causal(mock.Mock(**{"flag.return_value": flag})) for flag in (True, False)}
    assert {head.causal for head in HEADS[family]} <= {None, *directions}


def seen(x: Array, inputs: dict[str, Array]) -> Array:
    """Rows that are no padding, of numbers for each token; else all."""
    keep = kept(inputs)
    return x[keep] if x.shape[: keep.ndim] == keep.shape else x


def distance(case: HeadCase, encoder: minibert.Encoder) -> float:
    """How far an encoder's logits are from the reference's."""
    inputs, traces = case.read
    made = {kind: encoder.logits(**given, head=case.head) for kind, given in inputs.items()}
    return max(off(seen(made[kind], given), seen(traces[kind]["logits"], given)) for kind, given in inputs.items())


@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_logits_and_what_is_before_them_are_the_reference_s(case: HeadCase) -> None:
    inputs, traces = case.read
    with case.load() as encoder, case.load(dtype="float64") as wide:
        assert encoder.head().name == case.head and case.head in encoder.heads
        for kind, theirs in traces.items():
            trace = encoder.trace(**inputs[kind], head=case.head)
            assert next(reversed(trace)) == "logits" and theirs.keys() <= trace.keys()
            for key, value in theirs.items():
                assert trace[key].shape == value.shape
                assert off(seen(trace[key], inputs[kind]), seen(value, inputs[kind])) <= LOGITS, (kind, key)
            y = encoder.logits(**inputs[kind])
            exact = wide.logits(**inputs[kind])
            assert exact.dtype == np.float64 and 0 < off(y, exact) <= LOGITS
            assert y.dtype == np.float32 and y.shape == theirs["logits"].shape
            assert off(y, trace["logits"]) <= CUT
            keep = kept(inputs[kind])
            if y.shape[:2] == keep.shape:
                assert not y[~keep].any()
            only = [name for name in trace if name not in encoder.trace(**inputs[kind])]
            head = encoder.head()
            assert only == [*(path for path, _ in head.works), head.path, "logits"]


FLASH = {  # the names in jina-reranker-v2's file
    "embeddings.LayerNorm": "emb_ln", "encoder.layer.": "encoder.layers.", "attention.self.query": "mixer.Wqkv",
    "attention.output.dense": "mixer.out_proj", "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "output.LayerNorm": "norm2",
}  # fmt: skip


def for_flash_attention(tensors: dict[str, Array]) -> dict[str, Array]:
    """Query, key and value in one tensor, and all names as a port for flash attention has them."""
    made: dict[str, Array] = {}
    for name, x in tensors.items():
        if "self.query" in name:
            x = np.concatenate([tensors[name.replace("query", other)] for other in ("query", "key", "value")])
        if "self.key" not in name and "self.value" not in name:
            for word, there in FLASH.items():
                name = name.replace(word, there)
            made[name] = x
    return made


@pytest.mark.parametrize("model_type", ["xlm-roberta", "xlm-roberta-flash"])
def test_a_reranker_under_the_names_of_flash_attention(model_type: str, tmp_path: Path) -> None:
    case = HEAD_CASE["xlm-roberta-classes"]
    words = {"use_flash_attn": True, "auto_map": {"AutoModel": "modeling_xlm_roberta.XLMRobertaModel"}}
    folder = copied(case, tmp_path / "flash", for_flash_attention, model_type=model_type, **words)
    with minibert.load_encoder(folder) as encoder:
        assert distance(case, encoder) <= LOGITS
    tensors = load_file(folder / "model.safetensors")
    del tensors[lost := "roberta.encoder.layers.0.mixer.out_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(minibert.CheckpointError, match=re.escape(lost.removeprefix("roberta."))):
        minibert.load_encoder(folder)


def packed(
    encoder: minibert.Encoder, texts: Sequence[list[int]], made: Any = lambda _, x: x, take: Any = None
) -> Array:
    found: list[Array] = []
    tokens = encoder.embeddings.pack([Encoded(ids, None) for ids in texts])
    encoder.compute(tokens, lambda tile, x: found.append(made(tile, x)), take)
    return np.concatenate(found)


def packed_logits(encoder: minibert.Encoder, head: BoundHead, texts: Sequence[list[int]]) -> Array:
    return packed(encoder, texts, partial(logits_of, head), partial(tokens_of, head))


@pytest.mark.parametrize("case", TINY, ids=str)
def test_only_what_is_taken_leaves_the_last_block(case: EncoderCase) -> None:
    with case.load() as encoder:
        whole = packed(encoder, TWO)
        for take in ([4, 0], [1], [3, 1, 0, 2, 4], [2, 2], []):
            taken = np.array(take, np.int64)
            assert off(packed(encoder, TWO, take=lambda tile, taken=taken: taken), whole[taken]) <= CUT, take


def test_the_last_block_s_feed_forward_sees_the_taken_tokens_alone() -> None:
    counted = mock.patch.object(ready_blocks, "linear", wraps=ready_blocks.linear)
    with HEAD_CASE["bert-classes"].load() as encoder, counted as linear:
        encoder.logits(IDS)
        stack = encoder.stack
    rows = [len(call.args[0]) for call in linear.call_args_list]
    all_, first = (padded(tokens, stack.rows, stack.fewest) for tokens in (8, 2))
    assert first < all_ or kernel().usual.numbers  # where small products are filled up, both are less than the fewest
    assert rows == [all_] * 3 + [first] * 3  # query, key, value; then output, up and down of the two first tokens


@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_packed_texts_and_padding_between_tokens(case: HeadCase) -> None:
    """Other holes in each text: every logit is in its place, as in the trace, and none is of padding."""
    ids = np.array([[5, 6, 7, 8, 9, 3], [9, 4, 3, 11, 5, 7], [7, 8, 6, 4, 10, 9]])
    mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1]])
    with case.load() as encoder:
        head = encoder.head()
        want = [encoder.logits(np.array(own)).reshape(-1, head.labels) for own in TWO[::-1]]
        assert off(packed_logits(encoder, head, TWO), np.concatenate(want)) <= CUT
        if head.pooling == "last" and head.pad_id is None:  # which takes one text at a time
            ids, mask = ids[:1], mask[:1]
        y = encoder.logits(ids, attention_mask=mask)
        assert off(y, encoder.trace(ids, attention_mask=mask, head=case.head)["logits"]) <= CUT
        assert head.pooling != "every" or not y[mask == 0].any()


def test_the_last_word_of_packed_texts_is_judged_by_ids() -> None:
    with HEAD_CASE["gpt2-classes"].load() as encoder:
        want = np.concatenate([encoder.logits([[0, 0]]), encoder.logits([[5, 6, 0]])])
        assert off(packed_logits(encoder, encoder.head(), ([0, 0], [5, 6, 0])), want) <= CUT
        assert off(want[1:], encoder.logits([[5, 6]])) <= CUT  # what follows is not seen
        rows = encoder.embeddings.wte(IDS)  # nobody knows the ids then: it is the last token
        assert off(encoder.logits(inputs_embeds=rows), encoder.logits(IDS)) <= CUT


NO_TOKEN: list[tuple[str, Any, Any, str]] = [
    ("bert-classes", [[5, 6], [0, 7]], [[1, 1], [0, 1]], r"mask\[1, 0\]"),
    ("gpt2-classes", [[5, 6], [4, 7]], [[1, 1], [1, 0]], r"attention_mask\[1, 1\]"),
    ("gpt2-classes-no_pad_id", [[5, 6], [4, 7]], [[1, 1], [1, 1]], "2 "),
    ("gpt2-classes-no_pad_id", [[5, 6]], [[1, 0]], r"attention_mask\[0, 1\]"),
    *((name, np.zeros((2, 0), int), None, "needs a token of each sequence, found sequences of no token")
      for name in ("bert-classes", "gpt2-classes")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ids", "mask", "said"), NO_TOKEN)
def test_a_token_that_is_not_there(name: str, ids: Any, mask: Any, said: str) -> None:
    with HEAD_CASE[name].load() as encoder:
        for use in (encoder.logits, encoder.trace):
            with pytest.raises(ValueError, match=said):
                use(ids, attention_mask=mask, head="classes")
        assert encoder.logits(np.zeros((0, 3), int)).shape == (0, 3)


@pytest.mark.parametrize("name", ["bert-masked_word", "gpt2-next_word"])
def test_logits_come_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with HEAD_CASE[name].load() as encoder:
        whole = encoder.logits(IDS)
        monkeypatch.setattr(computing, "TOKENS", 4)
        monkeypatch.setattr(computing, "PIECE", 8 * 5)  # five words at a time, of 29
        assert off(encoder.logits(IDS), whole) <= CUT
        assert [len(piece.T) for _, piece in logit_pieces(encoder.head(), encoder(IDS[0]))] == [10, 10, 9]


def test_beyond_the_result_memory_is_bounded(tmp_path: Path) -> None:
    """A table of 20,000 words and 2,000 tokens: 160 MB of logits; of them no more than a piece is there twice."""
    case, words = HEAD_CASE["bert-masked_word"], 20_000

    def wide(tensors: dict[str, Array]) -> dict[str, Array]:
        big = np.zeros((words, 12), np.float32)
        return tensors | {"bert.embeddings.word_embeddings.weight": big, "cls.predictions.bias": big[:, 0].copy()}

    with minibert.load_encoder(copied(case, tmp_path, wide, vocab_size=words), threads=1) as encoder:
        encoder.logits(IDS)
        ids = np.ones((200, 10), int)
        y, most = with_peak(lambda: encoder.logits(ids))
        assert y.nbytes == 160_000_000
        # the product, and with its bias; all at once would be 160 MB
        assert most - y.nbytes < 1.5 * 2 * 4 * computing.PIECE


def without(lost: str) -> Any:
    """A change of tensors: one is left out."""
    return lambda tensors: {name: x for name, x in tensors.items() if name != lost}


def with_pooler(tensors: dict[str, Array]) -> dict[str, Array]:
    return tensors | {"bert.pooler.dense.weight": np.eye(12, dtype="f"), "bert.pooler.dense.bias": np.zeros(12, "f")}


BOTH, EITHER = ("masked_word", "next_sentence"), ("next_word", "classes")
PRETRAINING = "bert-masked_word-pretraining"
# a case, a change of its tensors, its architectures: the heads it holds, and the one that is meant
HELD: list[tuple[str, Any, Any, tuple[str, ...], str | None]] = [
    ("bert-classes", None, ["BertForSequenceClassification"], ("classes",), "classes"),
    *(("bert-classes", None, other, ("classes",), "classes")
      for other in (None, "BertForTokenClassification", [3, {}])),  # a text is no list of names
    ("bert-token_classes", None, None, ("token_classes",), "token_classes"),
    ("bert-token_classes", with_pooler, ["BertForTokenClassification"], ("token_classes",), "token_classes"),
    ("bert-token_classes", with_pooler, None, ("classes",), "classes"),
    (PRETRAINING, None, None, BOTH, None),
    (PRETRAINING, None, ["BertForNextSentencePrediction"], BOTH, "next_sentence"),
    ("bert-masked_word", None, ["BertForSequenceClassification"], ("masked_word",), "masked_word"),
    (PRETRAINING, without("cls.predictions.bias"), ["BertForPreTraining"], ("next_sentence",), "next_sentence"),
    ("electra-replaced_token", None, None, ("replaced_token",), "replaced_token"),
    *(("gpt2-classes", None, named, EITHER, usual) for named, usual in (
        (["GPT2ForSequenceClassification"], "classes"), (None, None), (["GPT2DoubleHeadsModel"], "next_word"),
        (["GPT2LMHeadModel", "GPT2ForSequenceClassification"], None))),
    ("modernbert-token_classes", None, ["ModernBertForTokenClassification"], ("token_classes",), "token_classes"),
    ("modernbert-token_classes", None, None, ("classes", "token_classes"), None),  # the tensors are the same
    ("qwen3-classes", None, None, ("classes",), "classes"),
    ("qwen3-token_classes", None, None, ("token_classes",), "token_classes"),  # whose map has a bias
    ("qwen3-next_word", None, ["Qwen3Model"], ("next_word",), "next_word"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "architectures", "heads", "usual"), HELD)
def test_which_heads_a_file_holds(
    name: str, change: Any, architectures: Any, heads: tuple[str, ...], usual: str | None, tmp_path: Path
) -> None:
    with minibert.load_encoder(copied(HEAD_CASE[name], tmp_path, change, architectures=architectures)) as encoder:
        assert encoder.heads == heads
        if usual is None:
            with pytest.raises(ValueError, match=rf"several heads, {', '.join(heads)}; name one: head='{heads[0]}'"):
                encoder.head()
        else:
            assert encoder.head().name == usual


@pytest.mark.parametrize(("name", "said"), [("bert-classes", "MultipleChoice"), ("bert-masked_word", "masked_word")])
def test_what_is_not_computed_is_refused_by_name(name: str, said: str, tmp_path: Path) -> None:
    folder = copied(HEAD_CASE[name], tmp_path, architectures=["BertForMultipleChoice"])
    with minibert.load_encoder(folder) as encoder:
        for use in (encoder.head, lambda: encoder.logits(IDS)):
            with pytest.raises(minibert.CheckpointError, match=said):
                use()
        assert "classes" not in encoder.heads and "token_classes" not in encoder.heads
        with pytest.raises(minibert.CheckpointError, match="BertForMultipleCho"):
            encoder.logits(IDS, head="classes")


def test_a_file_without_a_head_and_a_head_of_no_file() -> None:
    with CASE["bert-base"].load() as encoder:
        assert encoder.heads == ()
        with pytest.raises(minibert.CheckpointError):
            encoder.logits(IDS)
        for wrong in ("lm", "question_answering", ""):
            with pytest.raises(ValueError, match="masked_word"):
                encoder.trace(IDS, head=wrong)


UNCOMPUTED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3_text-next_word", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping'"),
    ("modernbert-classes", {"classifier_pooling": "max"}, "'classifier_pooling'"),
    ("eurobert-classes", {"classifier_pooling": "max"}, "'classifier_pooling'"),
    ("modernbert-masked_word", {"classifier_activation": "what"}, "'classifier_activation'"),
    *(("bert-classes", config, said) for config, said in (
        ({"id2label": {"0": "a"}}, r"\(3, 12\).*\(1, 12\)"), ({"id2label": None}, r"says \(2, 12\)"),
        ({"id2label": ["no", "yes"]}, "'id2label'"), ({"id2label": {"0": 1}}, "'id2label'"),
        ({"num_labels": -1}, "'num_labels'"), ({"num_labels": 0, "id2label": None}, r"says \(0, 12\)"),
        ({"num_labels": 10**12}, r"says \(1000000000000, 12\)"))),  # so many names fit in no memory
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "said"), UNCOMPUTED)
def test_a_config_that_is_not_computed_is_refused(name: str, config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE[name], tmp_path, **config)) as encoder:
        encoder(IDS)
        with pytest.raises(minibert.CheckpointError, match=said):
            encoder.logits(IDS)


MISSING = {
    "bert-masked_word": "cls.predictions.transform.LayerNorm.weight", "roberta-classes": "classifier.out_proj.bias",
    "bert-masked_word-untied": "cls.predictions.decoder.weight",
}  # fmt: skip


@pytest.mark.parametrize(("name", "lost"), MISSING.items())
def test_a_missing_tensor_is_named_and_never_filled(name: str, lost: str, tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE[name], tmp_path, without(lost))) as encoder:
        encoder(IDS)
        for _ in range(2):
            with pytest.raises(minibert.CheckpointError, match=f"{lost[9:]}.*{lost}"):
                encoder.logits(IDS)


def test_an_untied_bias_under_its_older_name(tmp_path: Path) -> None:
    """Until version 4 of the reference both names were one tensor, of which a file keeps one, tied table or not."""
    case = HEAD_CASE["bert-masked_word-untied"]

    def older(tensors: dict[str, Array]) -> dict[str, Array]:
        own = tensors["cls.predictions.decoder.bias"]
        return {k: own if k == "cls.predictions.bias" else x for k, x in tensors.items() if "decoder.bias" not in k}

    with minibert.load_encoder(copied(case, tmp_path, older)) as encoder:
        assert distance(case, encoder) <= LOGITS


PLAIN = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
NAMED: list[tuple[dict[str, Any], dict[int, str]]] = [
    ({}, {0: "no", 1: "maybe", 2: "yes"}), ({"id2label": None, "num_labels": 3}, PLAIN),
    ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, PLAIN),
    ({"id2label": {"1": "a", "2": "b", "3": "c"}}, {0: "LABEL_0", 1: "a", 2: "b"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "named"), NAMED)
def test_names_of_classes(config: dict[str, Any], named: dict[int, str], tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE["bert-classes"], tmp_path, **config)) as encoder:
        assert (encoder.head().id2label, encoder.head().labels) == (named, 3)


def test_without_maps_a_head_is_read_with_the_rest(tmp_path: Path) -> None:
    case = HEAD_CASE["roberta-classes"]
    folder = copied(case, tmp_path)
    with minibert.load_encoder(folder, mmap=False) as encoder:
        size = (folder / "model.safetensors").stat().st_size
        with (folder / "model.safetensors").open("r+b") as file:
            file.seek(size // 4)
            file.write(b"\0" * (size - size // 4))
        assert distance(case, encoder) <= LOGITS


def test_the_page_names_every_head() -> None:
    page = (Path(minibert.__file__).parent / "families" / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (.+) \| (.+) \|$", page.partition("## Heads")[2].partition("\n## ")[0], re.MULTILINE)[1:]
    named = {name: tuple(re.findall(r"`(\w+)`", heads)) for names, heads in table for name in names.split(", ")}
    assert named == {family: tuple(dict.fromkeys(row.name for row in rows)) for family, rows in HEADS.items()}
