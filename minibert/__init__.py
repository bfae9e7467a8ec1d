"""minibert: the input layer of BERT, GPT-2, T5 and their relatives in plain NumPy, with the real weights.

    layer = minibert.load("bert-base-uncased")        # a folder or a Hub name
    layer(**layer.tokenize("We lived above the clouds"))

`import minibert` loads numpy and the standard library; everything else is loaded where it is used.
"""

from .equations import sinusoidal_positions
from .errors import CheckpointError, HubError, MinibertError, TokenizerError, UnknownFamilyError
from .families import FAMILIES
from .family import Family
from .layer import EmbeddingLayer
from .load import load

__version__ = "0.1.0"

__all__ = [
    "FAMILIES",
    "CheckpointError",
    "EmbeddingLayer",
    "Family",
    "HubError",
    "MinibertError",
    "TokenizerError",
    "UnknownFamilyError",
    "load",
    "sinusoidal_positions",
]
