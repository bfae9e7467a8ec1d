"""The reference itself, run beside heads: every committed model on fresh batches, and names of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_files import copied, off
from head_files import HEAD_CASE, HEAD_CASES, HeadCase, seen

import minibert
from minibert.equations.input_layer import Array

pytestmark = pytest.mark.reference

LOGITS = 1e-5  # relative to max(1, |reference|); measured 2.5e-6


def reference(case: HeadCase, folder: Path) -> Any:
    import transformers

    kind = getattr(transformers, case.facts["architecture"])
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


def logits(model: Any, inputs: dict[str, Array]) -> Array:
    import torch

    with torch.no_grad():
        result = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    if "start_logits" in result:
        return np.stack([result["start_logits"].numpy(), result["end_logits"].numpy()], axis=-1)
    found: Array = (result["logits"] if "logits" in result else result["prediction_logits"]).numpy()
    return found


@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_fresh_batches(case: HeadCase) -> None:
    model = reference(case, case.folder)
    with case.load() as encoder:
        takes, pad = encoder.head().takes, encoder.config.get("pad_token_id")
        for seed in range(3):
            numbers = np.random.default_rng(seed)
            ids = numbers.integers(2, 29, (1 if pad is None and takes == "last" else 4, 9))
            mask = (numbers.random(ids.shape) < 0.7).astype(np.int64)
            mask[:, seed if takes == "every" else [0, -1]] = 1  # what a head takes is no padding
            inputs = {"input_ids": np.where(mask == 1, ids, pad or 0), "attention_mask": mask}
            ours, theirs = encoder.logits(**inputs), logits(model, inputs)
            assert ours.shape == theirs.shape
            assert off(seen(ours, inputs), seen(theirs, inputs)) <= LOGITS


@pytest.mark.parametrize(
    "config",
    [{"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, {"id2label": None, "num_labels": 3},
     {"id2label": {"1": "a", "2": "b", "3": "c"}}],
    ids=str,
)  # fmt: skip
def test_names_of_classes(config: dict[str, Any], tmp_path: Path) -> None:
    case = HEAD_CASE["bert-classes"]
    folder = copied(case, tmp_path, **config)
    model = reference(case, folder)
    with minibert.load_encoder(folder) as encoder:
        named = encoder.head().id2label
        assert len(named) == model.config.num_labels == encoder.head().labels
        assert {i: text for i, text in named.items() if i in model.config.id2label} == {
            i: text for i, text in model.config.id2label.items() if i in named
        }


def test_pairs_of_a_pretrained_bert() -> None:
    """`BertForPreTraining` has two heads; the reference gives both at once."""
    case = HEAD_CASE["bert-masked_word-pretraining"]
    inputs, model = case.read[0]["plain"], reference(case, case.folder)
    import torch

    with torch.no_grad():
        theirs = model(**{name: torch.from_numpy(ids) for name, ids in inputs.items()}).seq_relationship_logits.numpy()
    with case.load() as encoder:
        assert off(encoder.logits(**inputs, head="next_sentence"), theirs) <= LOGITS
