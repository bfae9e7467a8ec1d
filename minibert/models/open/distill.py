"""An encoder -> a static model: a folder with one row for each token of its vocabulary, and no blocks.

Formulas: `equations.static`. The folder is model2vec's, which sentence-transformers opens too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import mean
from minibert.equations.static import covariance_components, sif_weights, zipf_probabilities
from minibert.errors import CheckpointError, TokenizerError
from minibert.files.arrays import check_target, write_model
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.files.tokenizer_files import LONGEST, StaticTokenizer, static_tokenizer
from minibert.models.encoder import Encoder
from minibert.models.run.attributes import check_positive, hinted
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline
from minibert.threads.computing import on_one_thread

from .load_encoder import load_encoder

SIF = 1e-4  # `a` of `sif_weights`
STEPS = ("StaticEmbedding", "."), ("Normalize", "1_Normalize")  # modules of sentence-transformers and their folders


class Distilled(NamedTuple):
    """The written model: rows and their width, the share of the rows' variance that the components keep, and the size
    of the file in bytes."""

    folder: Path
    tokens: int
    dims: int
    variance: float
    size: int


@hinted
def distill(
    encoder: Encoder,
    folder: str | os.PathLike[str],
    dims: int = 256,
    *,
    threads: int | None = None,
    show_progress_bar: bool = False,
) -> Distilled:
    """Make a static model of an encoder: a folder that `load_encoder`, sentence-transformers and model2vec open.

    Each token goes through the encoder by itself, between the special tokens of the tokenizer; its vector is the mean
    over all of these tokens. Principal components, a weight and float16 follow. The folder's pooling, Dense layers and
    prompts are not used. The tokenizer may be WordPiece, WordLevel, BPE or Unigram. `[unusedN]` and added tokens get
    no row, except padding and the unknown token. Texts are truncated at 512 tokens, as in model2vec's models. The files
    are identical in every run and for any number of threads, if BLAS can be held to one thread. Memory holds all
    vectors (four bytes per number) and all components (eight bytes): 0.3 GB for MiniLM.

    dims: how many components to keep; at most the encoder's width, and fewer than there are tokens.

    Raises TypeError unless `encoder` is an encoder; ValueError for a static model and for dims below 1; FileExistsError
    and OSError as `extract`; TokenizerError for a vocabulary that has a token twice; CheckpointError if the encoder
    computes an infinite number, or one that float16 cannot hold.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder must be an Encoder, as load_encoder returns it, found {type(encoder).__name__}")
    if not encoder.stack.blocks:
        raise ValueError("this model is static already; make one of a model with blocks")
    check_positive("dims", dims)
    check_target(target := Path(folder))
    tokenizer = static_tokenizer(encoder.sentence_tokenizer)
    x = token_rows(encoder, tokenizer, threads, show_progress_bar)
    count = min(dims, x.shape[1], len(x) - 1)
    components = on_one_thread(covariance_components)(x, count)
    exact = components.coordinates
    exact *= sif_weights(zipf_probabilities(len(tokenizer.tokens)), SIF)[:, None]
    with np.errstate(over="ignore"):
        rows = exact.astype(np.float16)
    if not np.isfinite(rows).all():
        raise CheckpointError(f"a row has a number of size {np.abs(exact).max():g}, which float16 cannot hold")
    config = {
        "model_type": "model2vec", "architectures": ["StaticModel"], "apply_pca": count, "sif_coefficient": SIF,
        "hidden_dim": count, "seq_length": 1_000_000, "normalize": True, "pooling": "mean", "max_length": LONGEST,
        "embedding_dtype": "float16",
    }  # fmt: skip
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(STEPS)
    ]
    settings = {"config.json": config, "modules.json": modules}
    others = {name: json.dumps(content, indent=2).encode() for name, content in settings.items()}
    others["tokenizer.json"] = tokenizer.content
    size = write_model(target, {"embeddings": ("F16", rows)}, others, lambda written: load_encoder(written).close())
    return Distilled(target, len(rows), count, float(components.shares.sum()), size)


class TokenPipeline(TextPipeline):
    """The pipeline of single tokens between the special tokens of a text."""

    around: tuple[list[int], list[int]]

    def tokenize(self, ids: list[int], start: int) -> list[Encoded]:
        """Return the ids of a text for each token."""
        before, after = self.around
        return [Encoded([*before, i, *after], None) for i in ids]

    def pool(self, tile: Packed, x: Array) -> Array:
        """Return the mean of each text's rows, NaN too."""
        return np.concatenate([mean(group.select(x)) for group in tile.groups()])


def token_rows(
    encoder: Encoder, tokenizer: StaticTokenizer, threads: int | None = None, show_progress_bar: bool = False
) -> Array:
    """Return the encoder's vector of each token by itself: (tokens, width); a NaN becomes 0.

    Raises CheckpointError for an infinite number.
    """
    special = around(encoder.sentence_tokenizer, ["a", *tokenizer.tokens])
    pipeline = encoder.pipeline_of(TokenPipeline, threads, single_threaded=True, dim=encoder.dim, around=special)
    x: Array = pipeline.all(tokenizer.ids, "distill" if show_progress_bar else "")
    np.nan_to_num(x, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if not np.isfinite(x).all():
        token = tokenizer.tokens[int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])]
        raise CheckpointError(f"the encoder gives an infinite number for the token {token!r}; is its file damaged?")
    return x


def around(tokenizer: Tokenizer, letters: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens before and after a text, by the first of `letters` that has a token."""
    for text in letters:
        ((encoded, spans),) = tokenizer.encode_with_spans([text])
        if inside := [i for i, span in enumerate(spans) if span is not None]:
            return encoded.input_ids[: inside[0]], encoded.input_ids[inside[-1] + 1 :]
    raise TokenizerError("the tokenizer finds no token in any text of its vocabulary; fetch its files again")
