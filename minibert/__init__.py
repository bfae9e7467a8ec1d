"""minibert: the input layer of BERT, GPT-2, T5 and their relatives in plain NumPy, with the real weights.

    layer = minibert.load("bert-base-uncased")        # a folder or a Hub name
    layer(**layer.tokenize("We lived above the clouds"))

`import minibert` loads nothing: each name imports its file when it is first used. Therefore the command line can
answer Ctrl-C while NumPy is imported, and a user of the input layer does not wait for the code of blocks.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.equations.input_layer import sinusoidal_positions as sinusoidal_positions
    from minibert.errors import CheckpointError as CheckpointError
    from minibert.errors import HubError as HubError
    from minibert.errors import MinibertError as MinibertError
    from minibert.errors import TokenizerError as TokenizerError
    from minibert.errors import UnknownFamilyError as UnknownFamilyError
    from minibert.families.family import Family as Family
    from minibert.families.rows import FAMILIES as FAMILIES
    from minibert.models.encoder import Encoder as Encoder
    from minibert.models.heads.labels import Answer as Answer
    from minibert.models.heads.labels import Entity as Entity
    from minibert.models.heads.labels import Label as Label
    from minibert.models.heads.prediction import Prediction as Prediction
    from minibert.models.input_layer import EmbeddingLayer as EmbeddingLayer
    from minibert.models.knock_out import knock_out as knock_out
    from minibert.models.open.distill import Distilled as Distilled
    from minibert.models.open.distill import distill as distill
    from minibert.models.open.load import load as load
    from minibert.models.open.load_encoder import load_encoder as load_encoder
    from minibert.models.sentences.comparing import SparseVector as SparseVector
    from minibert.models.sentences.comparing import TokenVectors as TokenVectors
    from minibert.models.sentences.search import search as search
    from minibert.models.sentences.search import semantic_search as semantic_search
    from minibert.verify.report import Comparison as Comparison
    from minibert.verify.verify import compare as compare

__version__ = "0.1.0"

# file -> the public names that it defines
_FILES = {
    "minibert.equations.input_layer": ("sinusoidal_positions",),
    "minibert.errors": ("CheckpointError", "HubError", "MinibertError", "TokenizerError", "UnknownFamilyError"),
    "minibert.families.family": ("Family",),
    "minibert.families.rows": ("FAMILIES",),
    "minibert.models.encoder": ("Encoder",),
    "minibert.models.heads.labels": ("Answer", "Entity", "Label"),
    "minibert.models.heads.prediction": ("Prediction",),
    "minibert.models.input_layer": ("EmbeddingLayer",),
    "minibert.models.knock_out": ("knock_out",),
    "minibert.models.open.distill": ("Distilled", "distill"),
    "minibert.models.open.load": ("load",),
    "minibert.models.open.load_encoder": ("load_encoder",),
    "minibert.models.sentences.comparing": ("SparseVector", "TokenVectors"),
    "minibert.models.sentences.search": ("search", "semantic_search"),
    "minibert.verify.report": ("Comparison",),
    "minibert.verify.verify": ("compare",),
}

# classes of sentence-transformers
_INSTEAD = dict.fromkeys(("SentenceTransformer", "CrossEncoder", "SparseEncoder"), "load_encoder opens its models")

__all__ = [name for names in _FILES.values() for name in names]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for file, names in _FILES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(file), name)
            return value
    from .errors import did_you_mean

    instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else did_you_mean(name, __all__)
    raise AttributeError(f"module 'minibert' has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
