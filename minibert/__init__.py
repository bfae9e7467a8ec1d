"""minibert: the input layer of BERT, GPT-2, T5 and their relatives in plain NumPy, with the real weights.

    layer = minibert.load("bert-base-uncased")        # a folder or a Hub name
    layer(**layer.tokenize("We lived above the clouds"))

`import minibert` loads numpy and the standard library; everything else is loaded where it is used.
"""

from typing import TYPE_CHECKING, Any

from minibert.equations.input_layer import sinusoidal_positions
from minibert.families.family import Family
from minibert.families.rows import FAMILIES
from minibert.models.layer import EmbeddingLayer
from minibert.models.load import load

from .errors import CheckpointError, HubError, MinibertError, TokenizerError, UnknownFamilyError

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder, load_encoder

__version__ = "0.1.0"

__all__ = [
    "FAMILIES",
    "CheckpointError",
    "EmbeddingLayer",
    "Encoder",
    "Family",
    "HubError",
    "MinibertError",
    "TokenizerError",
    "UnknownFamilyError",
    "load",
    "load_encoder",
    "sinusoidal_positions",
]


def __getattr__(name: str) -> Any:
    if name in (
        "Encoder",
        "load_encoder",
    ):  # imported when first asked for: who wants the input layer pays for it alone
        from minibert.models import encoder

        return getattr(encoder, name)
    raise AttributeError(f"module 'minibert' has no attribute {name!r}")
