"""The math: every formula of the layer as a function of arrays.

Arrays come in, an array goes out. Nothing here knows a file, a config or a model's name.
May import: NumPy and the standard library. `from minibert.equations import layer_norm` gives the formulas of
`input_layer`, the file to read first.
"""

from .input_layer import (
    bert_input,
    check_ids,
    default_position_ids,
    gpt2_input,
    layer_norm,
    lookup,
    mask_position_ids,
    padding_position_ids,
    project,
    scale,
    sinusoidal_positions,
)

__all__ = [
    "bert_input",
    "check_ids",
    "default_position_ids",
    "gpt2_input",
    "layer_norm",
    "lookup",
    "mask_position_ids",
    "padding_position_ids",
    "project",
    "scale",
    "sinusoidal_positions",
]
