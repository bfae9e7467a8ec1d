"""CLIP's vector of a text: the last hidden state of the token that ends it, through `text_projection`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert
from minibert.equations.input_layer import Array
from minibert.show.text.info import info

SEP = checkpoints.WORDS.index("[SEP]")
TEXTS = ["we lived above the clouds", "we", "above [SEP] the clouds", "", "clouds we lived a b c d e f g"]
ROWS = 1e-5  # measured 1e-6


def written(folder: Path, **changes: Any) -> Path:
    return checkpoints.write_wordpiece(encoders.write(folder, "clip_text_model", **changes))


def by_hand(encoder: minibert.Encoder, texts: list[str], largest: bool = False) -> Array:
    found = []
    for text in texts:
        ids = encoder.tokenize(text)["input_ids"][0].tolist()
        place = ids.index(max(ids) if largest else SEP)
        found.append(encoder(np.array([ids]))[0, place])
    return np.stack(found)


def test_the_vector_is_that_of_the_first_end_of_text(tmp_path: Path) -> None:
    """A text with that token inside tells it from the last token, one text from a batch nothing."""
    with minibert.load_encoder(written(tmp_path, eos_token_id=SEP)) as encoder:
        weight = encoders.tensors(encoders.config("clip_text_model", eos_token_id=SEP))["text_projection.weight"]
        rows = by_hand(encoder, TEXTS)
        vectors = encoder.encode(TEXTS)
        assert vectors.shape == (len(TEXTS), 12) and encoder.get_embedding_dimension() == 12
        assert off(vectors, rows @ weight.T) <= ROWS
        for text, vector in zip(TEXTS, vectors, strict=True):
            assert off(encoder.encode(text), vector) <= ROWS
        lengths = np.sqrt(np.vecdot(vectors, vectors))
        assert np.abs(lengths - 1).min() > 0.1, "not normalized"
        assert off(encoder.encode(TEXTS, normalize_embeddings=True), vectors / lengths[:, None]) <= ROWS
        assert off(encoder.encode(TEXTS, truncate_dim=5), vectors[:, :5]) <= ROWS
        assert [len(each) for each in encoder.encode(TEXTS, output_value="token_embeddings")] == [7, 3, 6, 2, 12]


def test_an_end_of_text_of_2_means_the_largest_id(tmp_path: Path) -> None:
    with minibert.load_encoder(written(tmp_path, eos_token_id=2)) as encoder:
        weight = encoders.tensors(encoders.config("clip_text_model"))["text_projection.weight"]
        assert off(encoder.encode(TEXTS), by_hand(encoder, TEXTS, largest=True) @ weight.T) <= ROWS


def test_a_file_without_the_map_gives_the_hidden_state(tmp_path: Path) -> None:
    settings = encoders.config("clip_text_model", eos_token_id=SEP)
    tensors = {name: x for name, x in encoders.tensors(settings).items() if "projection" not in name}
    folder = checkpoints.write_wordpiece(checkpoints.write(tmp_path, settings, tensors))
    with minibert.load_encoder(folder) as encoder:
        assert off(encoder.encode(TEXTS), by_hand(encoder, TEXTS)) <= ROWS


def test_a_whole_clip_model_is_its_text_model(tmp_path: Path) -> None:
    """Its config holds the text model's; an older copy under another name counts before that."""
    settings, more = encoders.config("clip", eos_token_id=SEP), {"vision_model.encoder.layers.0.x": np.ones(3, "f4")}
    tensors = {f"text_model.{name}": x for name, x in encoders.tensors(settings).items()}
    tensors["text_projection.weight"] = tensors.pop("text_model.text_projection.weight")
    alone = minibert.load_encoder(written(tmp_path / "alone", eos_token_id=SEP))
    older = {"text_config_dict": {"eos_token_id": SEP}, "text_config": {**settings["text_config"], "eos_token_id": 9}}
    for i, changes in enumerate(({}, older)):
        folder = checkpoints.write(tmp_path / str(i), settings | changes, tensors | more)
        with minibert.load_encoder(checkpoints.write_wordpiece(folder)) as whole:
            assert np.array_equal(whole.encode(TEXTS), alone.encode(TEXTS))
    with pytest.raises(minibert.CheckpointError, match="'text_config_dict' must be an object"):
        minibert.load_encoder(checkpoints.write(tmp_path / "odd", settings | {"text_config_dict": 3}, tensors))


def test_info_says_what_the_vector_is(tmp_path: Path) -> None:
    def find(name: str) -> Path | None:
        return tmp_path / name if (tmp_path / name).exists() else None

    with minibert.load(written(tmp_path)) as layer:
        assert "12 numbers, lasttoken over a text's tokens" in "\n".join(info(layer, find))
