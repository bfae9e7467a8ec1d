"""Static models: one row for each token, and no blocks. No config.json describes their tensors.

Their folders are written by sentence-transformers (`StaticEmbedding`) and by model2vec. Here a static model is an input
layer of one lookup, so this row is not one of `FAMILIES`, which a model_type names.
"""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.modules import Embedding
from minibert.families.parts.steps import Binder, Tokens
from minibert.files.tables import INTEGERS, NUMPY_DTYPE, FoldedTable, StoredTable, Table

from .family import Family

ROWS = ("embedding.weight", "embeddings")  # the names of sentence-transformers and of model2vec
MODEL_TYPE = "model2vec"  # in a config.json of model2vec's distill


class StaticRows(Tokens):
    """x = rows[input_ids]; with a vocabulary that model2vec has quantized, `rows[mapping[id]] * weights[id]`.

    The file alone says how many rows there are, and how wide. int8 rows are taken as the integers that are stored:
    their scale is not, so a vector's direction has a meaning, and its length has none.
    """

    def bind(self, binder: Binder) -> Embedding:
        table: Table = binder.table(ROWS, None, (*NUMPY_DTYPE, "I8"))
        has_mapping, has_weights = (binder.stores(name) for name in ("mapping", "weights"))
        if has_mapping or has_weights:
            ids = self._mapping(binder, table) if has_mapping else None
            count = table.shape[0] if ids is None else len(ids)
            table = FoldedTable(table, ids, self._weights(binder, count) if has_weights else None)
        return Embedding(table)

    def _weights(self, binder: Binder, count: int) -> Array:
        weights = binder.table(("weights",), None, tuple(NUMPY_DTYPE), 1).array()
        if len(weights) != count:
            expected = f"a number for each of {count} tokens, found {len(weights)}"
            advice = "the tensors are of different models, fetch the file again"
            raise CheckpointError(f"{binder.where}: tensor 'weights' must have {expected}; {advice}")
        return weights

    def _mapping(self, binder: Binder, table: Table) -> Array:
        mapping = binder.table(("mapping",), None, tuple(INTEGERS), 1)
        assert isinstance(mapping, StoredTable)  # with one axis it is read whole
        ids = mapping.stored_numbers
        least, most = int(ids.min(initial=0)), int(ids.max(initial=0))
        if least < 0 or most >= table.shape[0]:
            wrong = f"found {least if least < 0 else most}; the file is damaged, fetch it again"
            rows = f"rows in 0..{table.shape[0] - 1} of the table"
            raise CheckpointError(f"{binder.where}: tensor 'mapping' must name {rows}, {wrong}")
        return ids.astype(np.intp, copy=False)


STATIC = Family(model_type="static", steps=(StaticRows(path="embedding"),), checked_prefixes=("",))
