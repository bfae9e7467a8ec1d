"""Words for a mask, the next word, and a text written on: against the logits of each text, which keep nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import checkpoints
import encoders
import numpy as np
import pytest
import word_models
from command_line import Patch
from encoder_files import off
from tokenizer_folders import BASES, vocabulary

import minibert
from minibert import CheckpointError
from minibert.equations.blocks import Linear, softmax
from minibert.equations.gated_blocks import GatedBlock, LlamaWeights, llama_model
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies
from minibert.models.heads import heads, prediction
from minibert.models.heads.prediction import FILE, REFUSED, choose

SAME = 5e-6  # probabilities; measured 8e-7
LOGITS = 1e-5  # relative to max(1, |logit|)
SHARE = 0.04  # between a share of 4,000 draws and its probability: five standard deviations
TEXTS = ["the [MASK] lived above", "[MASK]", "we [MASK] [MASK], the clouds"]
TEXT = "the he"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> minibert.Encoder:
    return minibert.load_encoder(word_models.write(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> minibert.Encoder:
    return minibert.load_encoder(word_models.write(tmp_path_factory.mktemp("gpt2"), "gpt2"))


def likely(encoder: minibert.Encoder, ids: list[int]) -> Array:
    """How likely each word is at each token of a text alone; the logits are the reference's: test_heads.py."""
    return softmax(encoder.logits([ids])[0])


def same(found: list[dict[str, Any]], probabilities: Array, k: int) -> None:
    assert [list(each) for each in found] == [["token_str", "score", "token"]] * k
    assert [each["token"] for each in found] == np.argsort(-probabilities)[:k].tolist()
    np.testing.assert_allclose([each["score"] for each in found], np.sort(probabilities)[::-1][:k], rtol=0, atol=SAME)


def llama_weights(tensors: dict[str, Array]) -> LlamaWeights:
    def block(at: str) -> GatedBlock:
        maps = [Linear(tensors[f"{at}self_attn.{name}_proj.weight"]) for name in "qkvo"]
        gate, up, down = (Linear(tensors[f"{at}mlp.{name}_proj.weight"]) for name in ("gate", "up", "down"))
        norm_1, norm_2 = (tensors[f"{at}{name}_layernorm.weight"] for name in ("input", "post_attention"))
        return GatedBlock(*maps, norm_1, gate, up, down, norm_2)

    table, blocks = tensors["embed_tokens.weight"], [block(f"layers.{i}.") for i in range(2)]
    return LlamaWeights(table, blocks, tensors["norm.weight"], table)


def test_the_textbook_s_llama_gives_the_encoder_s_logits(tmp_path: Path) -> None:
    """Heads that share keys, a head_dim that is not the width's share, no eps or base at its default."""
    settings = encoders.config("llama", rms_norm_eps=0.1, rope_theta=500.0, tie_word_embeddings=True)
    tensors, random = encoders.tensors(settings), np.random.default_rng(0)
    ids, mask = random.integers(0, 60, (12, 9)), np.arange(9) < random.integers(1, 10, (12, 1))
    mask[0] = np.arange(9) != 2  # no token sees it, and those behind keep their places
    frequencies = rotary_frequencies(settings["head_dim"], base=500.0)
    found = llama_model(ids, mask, llama_weights(tensors), encoders.HEADS, 2, frequencies, eps=0.1)
    with minibert.load_encoder(checkpoints.write(tmp_path, settings, tensors)) as encoder:
        assert off(found[mask], encoder.logits(ids, attention_mask=mask.astype(int))[mask]) <= LOGITS


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("numbers", [1 << 22, 64], ids=["at once", "in pieces"])
def test_likeliest_words_of_masks(bert: minibert.Encoder, k: int, numbers: int, monkeypatch: Patch) -> None:
    ids = [bert.tokenize(text)["input_ids"][0].tolist() for text in TEXTS]
    want, mask_id = [likely(bert, each) for each in ids], bert.embeddings.tokenizer.id_of("[MASK]")
    monkeypatch.setattr(heads, "PIECE", numbers)
    found = bert.fill(TEXTS, k=k)
    assert [len(masks) for masks in found] == [1, 1, 2]
    for own, rows, masks in zip(ids, want, found, strict=True):
        for place, mask in zip(np.flatnonzero(np.array(own) == mask_id), masks, strict=True):
            same(mask, rows[place], k)
    assert [len(mask) for mask in bert.fill(TEXTS[2], k=k)] == [k, k]


@pytest.mark.parametrize("method", ["fill", "next_words", "complete"])
def test_threads_are_kept_to(method: str, tmp_path: Path) -> None:
    folder = word_models.write(tmp_path, "bert" if method == "fill" else "gpt2")
    caller = "heads.prediction" if method == "complete" else "run.blocks"
    watched = mock.patch(f"minibert.models.{caller}.compute", side_effect=prediction.compute)
    with minibert.load_encoder(folder, threads=3) as encoder, watched as computed:
        getattr(encoder, method)("[MASK]" if method == "fill" else "we")
    assert {call.args[2] for call in computed.call_args_list} == {3}


def test_the_next_word_and_all_words_there_are(bert: minibert.Encoder, gpt2: minibert.Encoder) -> None:
    for text, words in zip(word_models.TEXTS, gpt2.next_words(word_models.TEXTS, k=6), strict=True):
        same(words, likely(gpt2, gpt2.tokenize(text)["input_ids"][0].tolist())[-1], 6)
    ((found,),) = bert.fill(TEXTS[:1], k=10_000)
    assert len(found) == bert.config.vocab_size
    assert abs(sum(each["score"] for each in found) - 1) <= 1e-5  # measured 1.2e-7
    assert {each["token_str"]: each["token"] for each in found}["clouds"] == bert.embeddings.tokenizer.id_of("clouds")
    pieces = {each["token_str"]: each["token"] for each in gpt2.next_words("we", k=gpt2.config.vocab_size)}
    assert len(gpt2.next_words("we")) == 5 and pieces[" w"] == gpt2.embeddings.tokenizer.id_of("\u0120w")


def test_the_mask_is_the_tokenizer_s(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(word_models.write(tmp_path, "roberta"))
    assert [len(masks) for masks in encoder.fill(["we <mask>", "<mask><mask>"])] == [1, 2]
    with pytest.raises(ValueError, match="<mask>"):
        encoder.fill(["<mask>", "we [MASK]"])


def test_what_comes_is_decoded_with_the_text_before_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """Decoded alone, the first word would lose its space; each token alone, the bytes of a letter would be none."""
    config = word_models.settings("gpt2", vocab_size=len(vocabulary(BASES["LlamaTokenizer"])))
    checkpoints.write(tmp_path, config, encoders.tensors(config))
    tokens = map(vocabulary(BASES["LlamaTokenizer"]).index, ["\u2581w", "e", "<0xC3>", "<0xA9>"])
    monkeypatch.setattr(prediction, "choose", lambda *_: next(tokens))
    with minibert.load_encoder(word_models.tokenizer(tmp_path, "LlamaTokenizer", config)) as encoder:
        assert encoder.complete("the", tokens=4) == "the we\u00e9"


def test_a_text_goes_on_to_the_end_of_the_position_table(tmp_path: Path) -> None:
    with minibert.load_encoder(word_models.write(tmp_path, "gpt2")) as encoder:
        vars(encoder)["config"] = {}  # nothing ends a text
        ids = encoder.tokenize("we")["input_ids"][0].tolist()
        most = encoders.LONGEST - len(ids) + 1  # the last one is written, not read
        said = f"tokens must be at most {most}, found {most + 1}: the text has {len(ids)} tokens, and the position"
        for _ in range(most):
            ids.append(int(np.argmax(likely(encoder, ids)[-1])))
        written = encoder.complete("we", tokens=most)
        assert written == encoder.embeddings.tokenizer.decode(ids, skip_special_tokens=True)
        with pytest.raises(ValueError, match=said):
            encoder.complete("we", tokens=most + 1)


def test_chance_follows_the_seed(gpt2: minibert.Encoder) -> None:
    written = [gpt2.complete("we", tokens=8, temperature=2.0, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert written[0] == written[1] and len(set(written)) > 2
    for kind in (np.float16, np.float32, np.int8):  # without a warning of an overflow
        assert gpt2.complete("we", tokens=8, temperature=kind(2)) == written[0]
    for wrong in (np.float32(np.inf), np.complex64(1)):
        with pytest.raises(ValueError, match=r"^temperature "):
            gpt2.complete("we", 4, temperature=wrong)  # type: ignore[arg-type]
    greedy = [gpt2.complete("we", 8), gpt2.complete("we", tokens=8, temperature=1e-300, seed=5)]
    assert greedy == [gpt2.complete("we", 8, 0, 7)] * 2


def test_a_word_is_chosen_as_often_as_it_is_likely() -> None:
    logits, random = np.array([1.0, -2.0, 0.5, 2.0], np.float32), np.random.default_rng(1)
    chosen = np.bincount([choose(logits, 3.0, random) for _ in range(4_000)], minlength=4) / 4_000
    assert np.abs(chosen - softmax(logits / 3)).max() <= SHARE
    never = np.array([-np.inf, 1, -np.inf], np.float32)  # a word that can never come is no damage
    assert choose(never, 3.0, random) == choose(never, 0.0, random) == 1


def opened(folder: Path, settings: dict[str, Any] | None, **config: Any) -> minibert.Encoder:
    path = word_models.write(folder, "gpt2", **config) / FILE
    path.unlink(missing_ok=True) if settings is None else path.write_text(json.dumps(settings), encoding="utf-8")
    return minibert.load_encoder(folder)


def test_which_file_says_where_a_text_ends_and_what_changes_no_word(tmp_path: Path) -> None:
    """generation_config.json alone where it is there, else config.json alone: no default of a class."""
    (first,) = opened(tmp_path, None).next_words(TEXT, k=1)
    end = first["token"]
    for settings, config in (({"eos_token_id": end}, None), ({"eos_token_id": [3, end]}, 3), (None, [3, end])):
        assert opened(tmp_path, settings, eos_token_id=config).complete(TEXT, 1) == TEXT
    for settings, config in (({}, end), ({"eos_token_id": None}, end), ({"eos_token_id": 3}, [end]), (None, None)):
        assert opened(tmp_path, settings, eos_token_id=config).complete(TEXT, 1) == TEXT + first["token_str"]
    # what changes no word passes
    want = opened(tmp_path, {}).complete(TEXT, 9)
    usual = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "max_length": 2, "max_new_tokens": 1}
    neutral = {key: value for key, value in REFUSED.items() if value is not None}
    for settings in (usual, neutral, dict.fromkeys(REFUSED), {"no_such_key": 3}):
        assert opened(tmp_path, settings).complete(TEXT, 9) == want


@pytest.mark.parametrize("key", REFUSED)
def test_what_changes_the_words_and_is_not_computed_is_refused(tmp_path: Path, key: str) -> None:
    encoder = opened(tmp_path, {key: [[2]]})
    with pytest.raises(CheckpointError, match=FILE):
        encoder.complete(TEXT)
    assert encoder.next_words(TEXT)
    with pytest.raises(CheckpointError, match=key):
        opened(tmp_path, None, **{key: 7}).complete(TEXT)


@pytest.mark.parametrize("end", [5.5, "e", True, [1, [2]], {"a": 1}])
@pytest.mark.parametrize("own", [False, True])
def test_an_end_that_is_no_id(tmp_path: Path, end: Any, own: bool) -> None:
    encoder = opened(tmp_path, {"eos_token_id": end}) if own else opened(tmp_path, None, eos_token_id=end)
    file = FILE if own else "config.json"
    with pytest.raises(CheckpointError, match=f"{file}: 'eos_token_id' must be an integer, a list of"):
        encoder.complete("we")
