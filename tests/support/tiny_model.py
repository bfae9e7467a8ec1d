"""The files of a model that is just large enough for rows to come one by one."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save

WORD = np.random.default_rng(0).normal(size=(400, 320)).astype(np.float32)
FILES = {
    "config.json": b'{"model_type": "bert"}' * 100,
    "model.safetensors": save({"word": WORD, "rest": np.zeros(100, np.float32)}),
}
