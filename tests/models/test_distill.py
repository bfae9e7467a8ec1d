"""`minibert.distill`: its rows by hand, its tokenizer, the same bytes from every run, and nothing half-made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distilled
import encoders
import numpy as np
import pytest
from checkpoints import change_json
from command_line import Printed, failure, ran
from safetensors.numpy import load_file, save_file

import minibert
from minibert.errors import CheckpointError, TokenizerError
from minibert.models.open import distill as distilling

DIMS = 8
# by float32 in the encoder, and by the rounding to float16 of numbers of this size; measured 5e-4
ROUNDING = 2**-11 + 1e-5


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> minibert.Encoder:
    return minibert.load_encoder(distilled.write(tmp_path_factory.mktemp("bert") / "bert", "bert"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tokens_of(folder: Path) -> list[str]:
    from tokenizers import Tokenizer

    named = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return sorted(named, key=named.__getitem__)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_rows_are_those_made_by_hand(kind: str, tmp_path: Path) -> None:
    with minibert.load_encoder(distilled.write(tmp_path / kind, kind)) as encoder:
        made = minibert.distill(encoder, tmp_path / "made", DIMS)
        ids = [encoder.embeddings.tokenizer.id_of(token) for token in tokens_of(made.folder)]
        expected = distilled.rows_by_hand(encoder, ids, DIMS)
    (rows,) = load_file(made.folder / "model.safetensors").values()
    assert rows.dtype == np.float16 and rows.shape == (made.tokens, made.dims) == expected.shape
    assert np.abs(rows - expected).max() <= ROUNDING * np.abs(expected).max()
    assert 0.5 < made.variance < 1


@pytest.mark.parametrize("kind", distilled.KINDS)
def test_the_tokenizer_splits_as_the_encoder_s_and_puts_nothing_around(kind: str, tmp_path: Path) -> None:
    with minibert.load_encoder(distilled.write(tmp_path / kind, kind)) as encoder:
        old = encoder.embeddings.tokenizer
        made = minibert.distill(encoder, tmp_path / "made", DIMS)
        from tokenizers import Tokenizer

        new = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
        number = {old.id_of(token): i for token, i in new.get_vocab().items()}
        # of Qwen's kin every piece of a word gets a space before it, not the first word alone
        for text in ("x we lived above the clouds", *(("x 12.5 (WE)", "x \u2603we") if kind != "qwen2" else ())):
            ids = old.pieces(" " + text if kind in ("gpt2", "qwen2", "roberta") else text)
            assert new.encode(text).ids == [number[i] for i in ids]
            assert len(new.encode(" ".join([text] * 300)).ids) == 512
        named = set(old.named.values()) - {old.named.get("unk"), old.named.get("pad")}
        assert not named & new.get_vocab().keys()
    assert sorted(new.get_vocab().values()) == list(range(made.tokens))


def test_what_is_dropped_leaves_no_merge_and_what_is_kept_has_its_new_id(tmp_path: Path) -> None:
    """A word of the vocabulary that was added as well; a padding that no vocabulary has, with the smallest score."""
    folder = distilled.write(tmp_path / "roberta", "roberta")
    rules = json.loads((folder / "tokenizer.json").read_text())
    added = {**rules["added_tokens"][0], "content": "he", "id": rules["model"]["vocab"]["he"], "special": False}
    change_json(folder / "tokenizer.json", added_tokens=[*rules["added_tokens"], added])
    with minibert.load_encoder(folder) as encoder:
        new = json.loads(distilling.static_tokenizer(encoder.sentence_tokenizer).content)
    assert "he" not in new["model"]["vocab"] and ["h", "e"] not in new["model"]["merges"] != []
    assert {each["content"]: each["id"] for each in new["added_tokens"]} == {"<pad>": 0, "<unk>": 1}
    folder = distilled.write(tmp_path / "albert", "albert")
    change_json(folder / "tokenizer_config.json", pad_token="[new]")
    with minibert.load_encoder(folder) as encoder:
        new = json.loads(distilling.static_tokenizer(encoder.sentence_tokenizer).content)
    *pieces, last = new["model"]["vocab"]
    assert last == ["[new]", min(score for _, score in pieces)] and last[1] < pieces[5][1] < 0


def test_the_folder_is_loaded_as_a_static_model(bert: minibert.Encoder, tmp_path: Path) -> None:
    folder = minibert.distill(bert, tmp_path / "made", DIMS).folder
    rows, tokens = load_file(folder / "model.safetensors")["embeddings"].astype(np.float32), tokens_of(folder)
    expected = rows[[tokens.index("we"), tokens.index("lived")]].mean(axis=0)
    with minibert.load_encoder(folder) as made:
        assert made.max_seq_length == 512
        assert np.abs(made.encode("We lived") - expected / np.linalg.norm(expected)).max() <= 1e-6
        with pytest.raises(ValueError, match="static already"):
            minibert.distill(made, tmp_path / "again")


def test_every_run_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "bert", "bert", vocab_size=1500)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(1496))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    found = []
    for i, threads in enumerate((1, 1, 2, 3)):
        with minibert.load_encoder(folder, threads=threads) as encoder:
            found.append(files(minibert.distill(encoder, tmp_path / f"made{i}", DIMS).folder))
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0].keys() == {"config.json", "model.safetensors", "modules.json", "tokenizer.json"}


def test_special_tokens_are_found_by_any_letter_that_the_vocabulary_has(tmp_path: Path) -> None:
    """GPT-2's kin has no unknown token: of a letter that is not there they make nothing."""
    folder = distilled.write(tmp_path / "roberta", "roberta")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rows = {"\u0251" if token == "a" else token: i for token, i in rules["model"]["vocab"].items()}
    change_json(folder / "tokenizer.json", model=rules["model"] | {"vocab": rows})
    with minibert.load_encoder(folder) as encoder:
        old = encoder.sentence_tokenizer
        assert old.pieces("a") == []
        assert distilling.around(old, ["a", "b"]) == ([old.id_of("<s>")], [old.id_of("</s>")])
        with pytest.raises(TokenizerError, match="makes no token of any text"):
            distilling.around(old, ["a", ""])


def test_no_more_components_than_the_width_or_the_tokens(bert: minibert.Encoder, tmp_path: Path) -> None:
    assert minibert.distill(bert, tmp_path / "made").dims == encoders.DIM
    folder = encoders.write(tmp_path / "bert", "bert")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\n")
    with minibert.load_encoder(folder) as encoder:
        made = minibert.distill(encoder, tmp_path / "small")
    assert (made.tokens, made.dims) == (4, 3) and abs(made.variance - 1) < 1e-9


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> minibert.Encoder:
    tensors = dict(load_file(distilled.write(folder, "bert") / "model.safetensors"))
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return minibert.load_encoder(folder)


def test_what_is_no_number_becomes_0_as_in_model2vec(tmp_path: Path) -> None:
    with changed(tmp_path / "nan", lambda named: named["embeddings.word_embeddings.weight"][9].fill(np.nan)) as encoder:
        made = distilling.static_tokenizer(encoder.sentence_tokenizer)
        x = distilling.token_rows(encoder, made)
        assert [i for i, row in zip(made.ids, x, strict=True) if not row.any()] == [9]
        rows = load_file(minibert.distill(encoder, tmp_path / "made").folder / "model.safetensors")["embeddings"]
    assert np.isfinite(rows).all()


LAST = "encoder.layer.1.output.LayerNorm"


@pytest.mark.parametrize(
    ("tensor", "number", "message"),
    [
        ("bias", np.inf, "an infinite number for the token '.*'; is its file damaged"),
        ("weight", 3e7, "float16 cannot h"),
    ],
)
def test_numbers_that_no_row_can_have(tensor: str, number: float, message: str, tmp_path: Path) -> None:
    change = lambda named: named[f"{LAST}.{tensor}"].fill(number)  # noqa: E731
    with changed(tmp_path / "odd", change) as encoder, pytest.raises(CheckpointError, match=message):
        minibert.distill(encoder, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


def test_a_vocabulary_with_a_token_twice_is_refused(tmp_path: Path) -> None:
    folder = distilled.write(tmp_path / "albert", "albert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["vocab"][-1] = rules["model"]["vocab"][-2]
    change_json(folder / "tokenizer.json", model=rules["model"])
    with minibert.load_encoder(folder) as encoder, pytest.raises(TokenizerError, match="a token twice"):
        minibert.distill(encoder, tmp_path / "made")


def test_misuse_is_refused_before_anything_is_computed(bert: minibert.Encoder, tmp_path: Path) -> None:
    calls: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "encoder must be what load_encoder gives, found str", {"encoder": "bert-base-uncased"}),
        (ValueError, "dims must be an integer >= 1, found 0", {"dims": 0}),
        (FileNotFoundError, "make it first", {"folder": tmp_path / "no" / "made"}),
        (FileExistsError, "exists; choose another name, or remove it", {"folder": tmp_path}),
    ]
    (tmp_path / "mine").write_text("mine")
    for error, message, arguments in calls:
        with pytest.raises(error, match=message):
            minibert.distill(**{"encoder": bert, "folder": tmp_path / "made", **arguments})
    assert files(tmp_path) == {"mine": b"mine"}


def test_the_command_says_what_it_made(tmp_path: Path, capsys: Printed) -> None:
    model, made = distilled.write(tmp_path / "bert", "bert"), tmp_path / "made"
    command = ("distill", "-m", model, "-o", made, "--dims", DIMS)
    out, err = ran(capsys, *command)
    assert err == "" and f"{made}: 144 tokens, 8 numbers each\n" in out and "by Zipf's law\n" in out
    assert f"components      8 of {encoders.DIM}, with " in out
    assert f"{made} exists" in failure(capsys, *command)
    assert "dims" in failure(capsys, "distill", "-m", model, "-o", tmp_path / "other", "--dims", 0)
