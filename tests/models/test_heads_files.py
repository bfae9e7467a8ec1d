"""Which heads a file holds, what they are called, and what is wrong with a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_files import CASE, copied, off
from head_files import HEAD_CASE, distance

import minibert
from minibert.equations.input_layer import Array
from minibert.families.rows import HEADS

LOGITS = 5e-6  # relative to max(1, |reference|); measured 1.5e-6
HALF = 0.03  # weights rounded to float16; measured 2e-3
IDS = np.array([[5, 6, 7, 8], [9, 4, 3, 11]])


def with_pooler(tensors: dict[str, Array]) -> dict[str, Array]:
    return tensors | {"bert.pooler.dense.weight": np.eye(12, dtype="f"), "bert.pooler.dense.bias": np.zeros(12, "f")}


def without_bias(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: x for name, x in tensors.items() if name != "cls.predictions.bias"}


BOTH, EITHER = ("masked_word", "next_sentence"), ("next_word", "classes")


@pytest.mark.parametrize(
    ("name", "change", "architectures", "heads", "usual"),
    [
        ("bert-classes", None, ["BertForSequenceClassification"], ("classes",), "classes"),
        ("bert-classes", None, None, ("classes",), "classes"),
        ("bert-classes", None, ["SomethingElse"], ("classes",), "classes"),
        ("bert-classes", None, "BertForTokenClassification", ("classes",), "classes"),  # a text is no list of names
        ("bert-classes", None, [3, {}], ("classes",), "classes"),
        ("bert-token_classes", None, None, ("token_classes",), "token_classes"),
        ("bert-token_classes", with_pooler, ["BertForTokenClassification"], ("token_classes",), "token_classes"),
        ("bert-token_classes", with_pooler, None, ("classes",), "classes"),
        ("bert-masked_word-pretraining", None, None, BOTH, None),
        ("bert-masked_word-pretraining", None, ["BertForNextSentencePrediction"], BOTH, "next_sentence"),
        ("bert-masked_word", None, ["BertForSequenceClassification"], ("masked_word",), "masked_word"),
        ("bert-masked_word-pretraining", without_bias, ["BertForPreTraining"], ("next_sentence",), "next_sentence"),
        ("electra-replaced_token", None, None, ("replaced_token",), "replaced_token"),
        ("gpt2-classes", None, ["GPT2ForSequenceClassification"], EITHER, "classes"),
        ("gpt2-classes", None, None, EITHER, None),
        ("gpt2-classes", None, ["GPT2DoubleHeadsModel"], EITHER, "next_word"),
        ("gpt2-classes", None, ["GPT2LMHeadModel", "GPT2ForSequenceClassification"], EITHER, None),
        ("modernbert-token_classes", None, ["ModernBertForTokenClassification"], ("token_classes",), "token_classes"),
        ("modernbert-token_classes", None, None, ("classes", "token_classes"), None),  # the tensors are the same
        ("qwen3-classes", None, None, ("classes",), "classes"),
        ("qwen3-token_classes", None, None, ("token_classes",), "token_classes"),  # whose map has a bias
        ("qwen3-next_word", None, ["Qwen3Model"], ("next_word",), "next_word"),
    ],
)
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


@pytest.mark.parametrize(
    ("name", "named", "said"),
    [
        ("bert-classes", "BertForMultipleChoice", "names BertForMultipleChoice, but multiple choice is not computed"),
        ("roberta-token_classes", "RobertaForMultipleChoice", "multiple choice is not computed here; it has no head"),
        ("bert-masked_word", "BertForMultipleChoice", "multiple choice is not computed.*heads are masked_word"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name: str, named: str, said: str, tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE[name], tmp_path, architectures=[named])) as encoder:
        for use in (encoder.head, lambda: encoder.logits(IDS)):
            with pytest.raises(minibert.CheckpointError, match=said):
                use()
        assert "classes" not in encoder.heads and "token_classes" not in encoder.heads
        with pytest.raises(minibert.CheckpointError, match=f"no head 'classes'; config.json names {named}, but "):
            encoder.logits(IDS, head="classes")


def test_a_file_without_a_head_says_so() -> None:
    with CASE["bert-base"].load() as encoder:
        assert encoder.heads == ()
        for head in (None, "masked_word"):
            with pytest.raises(minibert.CheckpointError, match="it has no head, only input layer and blocks"):
                encoder.logits(IDS, head=head)
    with HEAD_CASE["bert-classes"].load() as encoder:
        with pytest.raises(minibert.CheckpointError, match="there is no head 'next_word'; its heads are classes"):
            encoder.logits(IDS, head="next_word")
        for wrong in ("lm", "question_answering", ""):
            with pytest.raises(ValueError, match="head must be one of masked_word, next_word, classes, "):
                encoder.trace(IDS, head=wrong)


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("gemma3_text-next_word", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' must be null, "),
        ("modernbert-classes", {"classifier_pooling": "max"}, "'classifier_pooling' must be 'cls' or 'mean', found"),
        (
            "eurobert-classes",
            {"classifier_pooling": "max"},
            "'classifier_pooling' must be one of bos, mean, late, found",
        ),
        ("modernbert-masked_word", {"classifier_activation": "what"}, "'classifier_activation' must be one of"),
        ("bert-classes", {"id2label": {"0": "a"}}, r"'classifier\.weight' has shape \(3, 12\), but .* says \(1, 12\)"),
        ("bert-classes", {"id2label": None}, r"says \(2, 12\)"),
        ("bert-classes", {"id2label": ["no", "yes"]}, "'id2label' must map numbers to names of classes, found"),
        ("bert-classes", {"id2label": {"0": 1}}, "'id2label' must map numbers"),
        ("bert-classes", {"num_labels": -1}, "'num_labels' must be an integer"),
        ("bert-classes", {"num_labels": 0, "id2label": None}, r"says \(0, 12\)"),
        ("bert-classes", {"num_labels": 10**12}, r"says \(1000000000000, 12\)"),  # so many names fit in no memory
    ],
)
def test_a_config_that_is_not_computed_is_refused(name: str, config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE[name], tmp_path, **config)) as encoder:
        encoder(IDS)
        with pytest.raises(minibert.CheckpointError, match=said):
            encoder.logits(IDS)


@pytest.mark.parametrize(
    ("name", "lost", "said"),
    [
        ("bert-masked_word", "cls.predictions.transform.LayerNorm.weight", "transform.LayerNorm.weight"),
        ("roberta-classes", "classifier.out_proj.bias", "classifier.out_proj.bias"),
        ("bert-masked_word-untied", "cls.predictions.decoder.weight", "cls.predictions.decoder.weight"),
        ("electra-replaced_token", "discriminator_predictions.dense.bias", "discriminator_predictions.dense.bias"),
    ],
)
def test_a_missing_tensor_is_named_and_never_filled(name: str, lost: str, said: str, tmp_path: Path) -> None:
    folder = copied(HEAD_CASE[name], tmp_path, lambda tensors: {k: x for k, x in tensors.items() if k != lost})
    with minibert.load_encoder(folder) as encoder:
        encoder(IDS)
        for _ in range(2):
            with pytest.raises(minibert.CheckpointError, match=f"no tensor for '.*{said}'.*tried .*{lost}"):
                encoder.logits(IDS)


def test_an_untied_bias_under_its_older_name(tmp_path: Path) -> None:
    """Until version 4 of the reference both names were one tensor, of which a file keeps one, tied table or not."""
    case = HEAD_CASE["bert-masked_word-untied"]

    def older(tensors: dict[str, Array]) -> dict[str, Array]:
        own = tensors["cls.predictions.decoder.bias"]
        return {k: own if k == "cls.predictions.bias" else x for k, x in tensors.items() if "decoder.bias" not in k}

    with minibert.load_encoder(copied(case, tmp_path, older)) as encoder:
        assert distance(case, encoder) <= LOGITS


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, {0: "no", 1: "maybe", 2: "yes"}),
        ({"id2label": None, "num_labels": 3}, {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}),
        ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, {0: "LABEL_0", 1: "a", 2: "b"}),
    ],
)
def test_names_of_classes(config: dict[str, Any], named: dict[int, str], tmp_path: Path) -> None:
    with minibert.load_encoder(copied(HEAD_CASE["bert-classes"], tmp_path, **config)) as encoder:
        assert (encoder.head().id2label, encoder.head().labels) == (named, 3)


def test_narrow_weights_are_converted_once_and_float64(tmp_path: Path) -> None:
    case = HEAD_CASE["bert-masked_word"]
    half = copied(case, tmp_path, lambda tensors: {k: x.astype(np.float16) for k, x in tensors.items()})
    with case.load(dtype="float64") as exact:
        want = exact.logits(IDS)
    assert want.dtype == np.float64
    with minibert.load_encoder(half) as encoder:
        assert encoder.head().last.weight is encoder.head().last.weight
        assert encoder.logits(IDS).dtype == np.float32
        assert 0 < off(encoder.logits(IDS), want) <= HALF
    with case.load() as encoder:
        assert 0 < off(encoder.logits(IDS), want) <= LOGITS
        assert not encoder.head().last.weight.flags.owndata  # the mapped word table itself


def test_without_maps_a_head_is_read_with_the_rest(tmp_path: Path) -> None:
    """What changes the file later changes nothing then."""
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
    named = {
        family: tuple(re.findall(r"`(\w+)`", heads)) for families, heads in table for family in families.split(", ")
    }
    assert named == {family: tuple(dict.fromkeys(row.name for row in rows)) for family, rows in HEADS.items()}
