"""Late interaction beside sentence-transformers' MultiVectorEncoder: seeded folders, many texts, settings left out.

Similarities of such vectors are stored, and computed by loops: tests/models/test_calls.py and test_late.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import write_wordpiece
from many_texts import many_texts
from needed import need_sentence_transformers, opened_there
from reference_files import REFERENCE

import minibert
from minibert.families.rows import BLOCKS

pytestmark = pytest.mark.reference

VECTORS = 1e-5  # relative to the larger of 1 and the vector's length; measured: 3.9e-6
FOLDERS = sorted(folder.name for folder in REFERENCE.glob("late-*"))
TEXTS = [text[:200] for text in many_texts(44)] + ["the", "we lived above the clouds", "!?", "a b c d e f g h i j"]
SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"


def both(folder: Path) -> tuple[Any, minibert.Encoder]:
    return opened_there(folder, "MultiVectorEncoder"), minibert.load_encoder(folder)


def compare(theirs: Any, ours: minibert.Encoder, texts: list[str]) -> None:
    for method in ("encode_query", "encode_document", "encode"):
        want, found = (getattr(theirs, method)(texts, convert_to_numpy=True), getattr(ours, method)(texts))
        alone = [getattr(ours, method)(text) for text in texts]
        for text, *each in zip(texts, want, found, alone, strict=True):
            assert each[0].shape == each[1].shape == each[2].shape, (method, text)
            lengths = np.maximum(1, np.linalg.norm(each[0], axis=1, keepdims=True))
            for other in each[1:]:
                assert (np.abs(other - each[0]) / lengths).max(initial=0) <= VECTORS, (method, text)
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() and ours.prompts == theirs.prompts


def keys() -> list[tuple[str, str, str]]:
    """Every setting of every folder that may be left out."""
    kept = {"modules.json", "calls.json", "config.json", "tokenizer.json", "tokenizer_config.json"}
    needed = {"in_features", "out_features", "bias", "module_input_name", "model_type", "activation_function",
              "module_output_name"}  # without that of a transformer theirs is not loaded  # fmt: skip
    found = []
    for name in FOLDERS:
        for path in sorted((REFERENCE / name).rglob("*")):
            inside = path.relative_to(REFERENCE / name).as_posix()
            if (path.suffix == ".json" or path.name == "artifact.metadata") and inside not in kept:
                data = json.loads(path.read_text(encoding="utf-8"))
                found += [(name, inside, key) for key in data if key not in needed and data[key] not in (None, {})]
    return found


FILES = [  # left out, where the folder is still one of late interaction
    ("late-fixed", TRANSFORMER, None), ("late-pylate", TRANSFORMER, None), ("late-stanford", "artifact.metadata", None),
]  # fmt: skip
LEAST = {"strategy": "min", "length": 5}
ODD: list[tuple[str, str, Any]] = [
    ("late-fixed", SETTINGS, {"model_type"}),  # nothing else
    # a mask token that a query leaves out, lengths of a query
    ("late-fixed", "2_MultiVectorMask/config.json", {"skiplist_words": ["[MASK]", "we"], "skiplist_tasks": "query"}),
    ("late-least", TRANSFORMER, {"query_length": None}),
    ("late-least", TRANSFORMER, {"query_expansion": {"strategy": "fixed", "length": 3}, "query_length": 20}),
    ("late-fixed", TRANSFORMER, {"query_expansion": {"strategy": "min", "length": 6, "attend": True}}),
    # prompts beside a prefix, an older folder that names its transformer so, prompts that nobody reads
    ("late-pylate", SETTINGS, {"prompts": {"query": "[Q] above ", "document": "we "}, "skiplist_words": []}),
    ("late-pylate", SETTINGS, {"query_expansion": LEAST, "default_prompt_name": "query"}),
    ("late-pylate", SETTINGS, {"do_query_expansion": False, "query_prefix": ""}),
    ("late-pylate", SETTINGS, {"model_type": "MultiVectorEncoder"}),
    ("late-pylate-older", "config.json", {"architectures": ["HF_ColBERT"]}),
    ("late-stanford", SETTINGS, {"prompts": {"query": "above "}, "query_length": 20, "document_length": 5}),
    ("late-stanford", SETTINGS, {"skiplist_words": ["we"], "similarity_fn_name": "meanmaxsim"}),
    ("late-bare", SETTINGS, {"similarity_fn_name": "dot", "default_prompt_name": "a", "prompts": {"a": "a "}}),
]


@pytest.mark.parametrize(("name", "file", "change"), [*keys(), *FILES, *ODD], ids=str)
def test_settings_that_are_left_out_or_odd(tmp_path: Path, name: str, file: str, change: Any) -> None:
    """`change`: a key to leave out, all keys that are kept, or keys to set; None: the file is left out."""
    path = shutil.copytree(REFERENCE / name, tmp_path / "model") / file
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if isinstance(change, str | set):
        data = {key: data[key] for key in data if (key != change if isinstance(change, str) else key in change)}
    path.write_text(json.dumps(data | change if isinstance(change, dict) else data), encoding="utf-8")
    if change is None:
        path.unlink()
    compare(*both(tmp_path / "model"), TEXTS[36:])


# sentence-transformers takes the first two's vectors from the decoder, saves the next without "encoder." in names, and
# wants the settings of pictures for clip and embedding_gemma2; of embedding_gemma2_text it tells the hidden size as the
# width of vectors, which the last map has changed
OTHERS = (*encoders.BART_LIKE, "clip", "embedding_gemma2", "embedding_gemma2_text")


@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in OTHERS])
def test_every_row_of_blocks(tmp_path: Path, name: str, attend: bool) -> None:
    """Any of them can be the transformer; with causal attention too, where what fills up stands behind the text."""
    need_sentence_transformers()
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    folder = write_wordpiece(encoders.write(tmp_path / "transformer", name))
    special = {f"{each}_token": f"[{each.upper()}]" for each in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 20, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    expansion = {"strategy": "fixed", "attend": attend, "length": 14}
    chain = [Transformer(str(folder), query_expansion=expansion), MultiVectorMask(["!"])]
    made = MultiVectorEncoder(modules=[*chain, Normalize(module_input_name="token_embeddings")], device="cpu")
    made.save(str(tmp_path / "model"), create_model_card=False)
    theirs, ours = both(tmp_path / "model")
    if name == "deberta-v2" and not attend:
        with pytest.raises(ValueError):
            ours.encode_query("we")
        return
    compare(theirs, ours, TEXTS[36:])
