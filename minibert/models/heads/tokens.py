"""Vectors of a text's tokens, of a folder that makes them beside its sentence vectors (bge-m3)."""

from __future__ import annotations

from typing import Any

from minibert.files.tokenizer import Encoded, Texts, listed
from minibert.models.run.pipeline import check_positive
from minibert.models.sentences.arguments import check_task
from minibert.models.sentences.sentences import Sentences
from minibert.models.sentences.token_maps import VECTORS, token_vectors


class TokenMapped(Sentences):
    """A model that gives a vector for each token of a text, for late interaction."""

    def encode_token_vectors(
        self,
        texts: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        task: str | None = None,
    ) -> Any:
        """Turn texts into token vectors for late interaction, as bge-m3's ColBERT vectors.

        One str -> (tokens, dim), many -> a list of such arrays: `colbert_linear.pt` of the folder maps each token after
        the first, and each vector has length 1. `similarity` compares them, queries first, by the sum over the query's
        tokens of the largest cosine; FlagEmbedding divides it by their number. Of a MultiVectorEncoder's folder this is
        `encode`: see `encode_query` and `encode_document`.

        task        "query" or "document" takes their longest length where the folder has one
        batch_size  without effect, as in `encode`

        Raises as `encode`, ValueError for a folder that makes no such vectors, CheckpointError for a file that holds
        anything but that map.
        """
        check_positive("batch_size", batch_size)
        own = self.sentence_config
        if own.late:
            return self.encode(texts, prompt_name, prompt, batch_size, show_progress_bar, task=task)
        check_task(task)
        dense = own.token_maps.vectors()
        if dense is None:
            raise ValueError(
                f"this model's folder has no {VECTORS}, and is not saved as a MultiVectorEncoder: no vectors "
                'for late interaction; encode(texts, output_value="token_embeddings") gives what leaves its last block'
            )
        tokenizer, before = self.sentence_tokenizer, own.prompt(prompt_name, prompt)
        longest = own.lengths.get(task or "", own.longest)

        def tokenize(chunk: list[Any], start: int) -> list[Encoded]:
            chunk = [before + text if isinstance(text, str) else text for text in chunk]
            return tokenizer.encode(chunk, None, True, longest, start)

        shown_as = "encode_token_vectors" if show_progress_bar else ""
        found = self.each_text(tokenize, token_vectors(dense)).all(listed(texts)[0], shown_as)
        return found[0] if isinstance(texts, str) else found
