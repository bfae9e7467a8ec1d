"""Ids beside transformers' AutoTokenizer: folders with one setting changed, by declared class and by model type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import BASES, PAIR, TEXTS, finder, variants, write_tokenizer

import minibert
from minibert.files.tokenizer import Tokenizer
from minibert.files.tokenizer_classes import CLASSES, ELSEWHERE
from minibert.files.tokenizer_files import open_tokenizer

pytestmark = pytest.mark.reference

LETTERS = "weWE\u00e9\u0130\u4e2d .,'`(\n\t\u00a0\u2028\u200b\x00[CLS]<s></s><mask>12"
ANY_TEXT = st.one_of(st.text(LETTERS, max_size=30), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))


def both_of(folder: Path, usual: str | None = "BertTokenizer") -> tuple[Tokenizer, Any]:
    """Ours and theirs; `usual`: the class of the model's type."""
    from transformers import AutoTokenizer

    return open_tokenizer(finder(folder), usual, 0, str(folder)), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", BASES)
def test_any_text_has_the_reference_s_ids(tmp_path: Path, name: str) -> None:
    named = ["input_ids", "attention_mask"]
    flags: list[dict[str, Any]] = [{"padding_side": "left"}, {"padding_side": "right"}, {"trim_offsets": False}]
    flags += [{"model_input_names": named}, {"model_input_names": [*named, "token_type_ids"]}]
    every = [*variants(name).values(), *({"tokenizer_config.json": flag} for flag in flags)]
    both = [both_of(write_tokenizer(tmp_path / str(i), name, files)) for i, files in enumerate(every)]
    for ours, theirs in both:
        assert ours.pads_left == (theirs.padding_side == "left") and ours.mask == theirs.mask_token

    @settings(max_examples=150)
    @given(st.sampled_from(both), ANY_TEXT, st.one_of(st.none(), ANY_TEXT))
    def equal(tokenizers: tuple[Tokenizer, Any], text: str, pair: str | None) -> None:
        ours, theirs = tokenizers
        (found,) = ours.encode([text], None if pair is None else [pair])
        (single,) = ours.encode(text, pair)
        assert single.input_ids == theirs(text, pair)["input_ids"]
        wanted = theirs([text], None if pair is None else [pair])
        none = [0] * len(found.input_ids)
        assert found.input_ids == wanted["input_ids"][0]
        assert (found.token_type_ids or none) == wanted.get("token_type_ids", [none])[0]
        ((alone, spans),) = ours.encode_with_spans([text])
        wanted = theirs(text, return_offsets_mapping=True, return_special_tokens_mask=True)
        assert alone.input_ids == wanted["input_ids"]
        places = zip(wanted["offset_mapping"], wanted["special_tokens_mask"], strict=True)
        assert spans == [None if special else span for span, special in places]

    equal()


NO_WORDS = {"CLIPTokenizer", "PegasusTokenizer"}  # no model of theirs predicts words here, so no id becomes a text


@pytest.mark.parametrize("name", sorted(BASES.keys() - NO_WORDS))
def test_ids_become_the_reference_s_text(tmp_path: Path, name: str) -> None:
    for i, files in enumerate(variants(name).values()):
        ours, theirs = both_of(write_tokenizer(tmp_path / str(i), name, files))
        singly = [[token] for token in range(ours.size)]  # transformers adds tokens of its own to some
        for ids in (*singly, *(theirs(text)["input_ids"] for text in TEXTS), list(range(ours.size))):
            for skip in (False, True):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


# read as it stands here: Parakeet's class does the same, the others take other files or add a language there
AS_IT_STANDS = {f"{name}Tokenizer" for name in ("MBart", "Marian", "Parakeet", "Whisper", "XLM")}


def test_every_class_of_the_reference_is_known() -> None:
    from transformers.models.auto import tokenization_auto as auto

    assert all(auto.tokenizer_class_from_name(name).__name__ == name for name in ELSEWHERE)
    listed = {str(name).removesuffix("Fast") for name in auto.TOKENIZER_MAPPING_NAMES.values() if name}
    assert listed - CLASSES.keys() - ELSEWHERE <= {*AS_IT_STANDS, "TokenizersBackend"}


# of these transformers reads other files, or adds a language; here tokenizer.json is read as it stands
OTHER_FILES = {"xlm", "whisper", "mbart", "marian", "clip_text_model"}


@pytest.mark.parametrize("model_type", sorted(minibert.FAMILIES.keys() - OTHER_FILES))
def test_the_usual_class_of_a_type(tmp_path: Path, model_type: str) -> None:
    row = minibert.FAMILIES[model_type]
    name = row.tokenizer if row.tokenizer in BASES else "PreTrainedTokenizerFast"
    for i, files in enumerate(variants(name).values()):
        ours, theirs = both_of(write_tokenizer(tmp_path / str(i), name, files, model_type), row.tokenizer)
        for texts in (*((text,) for text in TEXTS), PAIR):
            assert ours.encode(*texts)[0].input_ids == theirs(*texts)["input_ids"]
