"""A port of BERT's input layer, with a mistake for `minibert verify` to name."""

import os

import numpy as np
from safetensors.numpy import load_file, save_file

weights = load_file(os.environ["MINIBERT_MODEL"] + "/model.safetensors")
ids = np.array([[101, 1996, 4937, 25126, 102]])  # [CLS] the cat sleeps [SEP]
positions = np.arange(5)[None]
word = weights["embeddings.word_embeddings.weight"][ids]
kind = weights["embeddings.token_type_embeddings.weight"][np.zeros_like(ids)]
place = weights["embeddings.position_embeddings.weight"][positions]
total = word + kind + place
norm = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True, ddof=1)
norm = norm * weights["embeddings.LayerNorm.weight"] + weights["embeddings.LayerNorm.bias"]
port = {
    "cat|inputs|input_ids": ids,
    "cat|position_ids": positions,
    "cat|embeddings.word_embeddings": word,
    "cat|embeddings.token_type_embeddings": kind,
    "cat|embeddings.position_embeddings": place,
    "cat|sum": total,
    "cat|embeddings.LayerNorm": norm,
}
save_file(port, "port.safetensors")
