"""minibert: the input layer of BERT, GPT-2, T5 and their relatives in plain NumPy, with the real weights.

    layer = minibert.load("bert-base-uncased")        # a folder or a Hub name
    layer(**layer.tokenize("We lived above the clouds"))

`import minibert` itself loads nothing: each name imports what it needs when it is first used. Therefore the command
line can answer Ctrl-C while numpy is imported, and a user of the input layer does not wait for the blocks' code.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.bulk.embedder import Embedder
    from minibert.equations.input_layer import sinusoidal_positions
    from minibert.families.family import Family
    from minibert.families.rows import FAMILIES
    from minibert.models.encoder import Encoder
    from minibert.models.heads.answers import Answer
    from minibert.models.heads.labels import Entity, Label
    from minibert.models.heads.prediction import Prediction
    from minibert.models.input_layer import EmbeddingLayer
    from minibert.models.knock_out import knock_out
    from minibert.models.open.distill import Distilled, distill
    from minibert.models.open.load import load
    from minibert.models.open.load_encoder import load_encoder
    from minibert.models.sentences.comparing import SparseVector
    from minibert.models.sentences.search import search, semantic_search
    from minibert.models.sentences.token_vectors import TokenVectors
    from minibert.verify.library import Comparison, compare

    from .errors import CheckpointError, HubError, MinibertError, TokenizerError, UnknownFamilyError

__version__ = "0.1.0"

# the public names, by the file that each one is from
_FILES = {
    "minibert.equations.input_layer": ("sinusoidal_positions",),
    "minibert.errors": ("CheckpointError", "HubError", "MinibertError", "TokenizerError", "UnknownFamilyError"),
    "minibert.families.family": ("Family",),
    "minibert.families.rows": ("FAMILIES",),
    "minibert.bulk.embedder": ("Embedder",),
    "minibert.models.encoder": ("Encoder",),
    "minibert.models.heads.answers": ("Answer",),
    "minibert.models.heads.labels": ("Entity", "Label"),
    "minibert.models.heads.prediction": ("Prediction",),
    "minibert.models.input_layer": ("EmbeddingLayer",),
    "minibert.models.knock_out": ("knock_out",),
    "minibert.models.open.distill": ("Distilled", "distill"),
    "minibert.models.open.load": ("load",),
    "minibert.models.open.load_encoder": ("load_encoder",),
    "minibert.models.sentences.comparing": ("SparseVector",),
    "minibert.models.sentences.search": ("search", "semantic_search"),
    "minibert.models.sentences.token_vectors": ("TokenVectors",),
    "minibert.verify.library": ("Comparison", "compare"),
}

_OF_SENTENCE_TRANSFORMERS = ("community_detection", "paraphrase_mining", "paraphrase_mining_embeddings")

__all__ = [
    "FAMILIES",
    "Answer",
    "CheckpointError",
    "Comparison",
    "Distilled",
    "Embedder",
    "EmbeddingLayer",
    "Encoder",
    "Entity",
    "Family",
    "HubError",
    "Label",
    "MinibertError",
    "Prediction",
    "SparseVector",
    "TokenVectors",
    "TokenizerError",
    "UnknownFamilyError",
    "compare",
    "distill",
    "knock_out",
    "load",
    "load_encoder",
    "search",
    "semantic_search",
    "sinusoidal_positions",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for file, names in _FILES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(file), name)
            return found
    instead = "; sklearn.cluster groups the vectors of encode" if name in _OF_SENTENCE_TRANSFORMERS else ""
    raise AttributeError(f"module 'minibert' has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
