"""Make tests/reference/late-*: small folders for late interaction, and MultiVectorEncoder's results for them.

    python scripts/reference/late.py            write the folders anew
    python scripts/reference/late.py --check    make them elsewhere, compare; exit 1 on a difference

It needs sentence-transformers (`pip install sentence-transformers==6.2.0`). Each folder holds a model of seeded numbers
as MultiVectorEncoder saves it, or as PyLate and Stanford's ColBERT did. Beside the model:

    calls.json            what was called: a method, texts, options
    vectors.safetensors   what each call gave, "0", "1", ... in the calls' order: scores, or the token vectors of all
                          texts one behind the other, with the number of each text's tokens in "0.lengths"
"""

from __future__ import annotations

import string
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from check import fill
from safetensors.numpy import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentences import IDENTITY, SIZES, TEXTS, Call, bert, dump, each, raw, rewrite, run, with_wordpiece
from torch import nn

QUERIES = ("the clouds", "", "we lived above the clouds we lived above the clouds")
PUNCTUATION = list(string.punctuation)
TOKENS = {"module_input_name": "token_embeddings"}
PYLATE = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 10, "document_length": 18}
ROBERTA = SIZES | {"max_position_embeddings": 34, "pad_token_id": 0, "type_vocab_size": 1}


def dense(width: int, out: int, **options: Any) -> Dense:
    options = {"bias": False, "activation_function": IDENTITY, **TOKENS, **options}
    fill(module := Dense(width, out, **options), spread=8, norms=4)
    return module


def save(chain: list[Any], folder: Path, **options: Any) -> list[Call]:
    MultiVectorEncoder(modules=chain, device="cpu", **options).save(str(folder), create_model_card=False)
    return calls()


def calls() -> list[Call]:
    return [
        *each(TEXTS, "encode_query", "encode_document", "encode"), ("encode_query", "we lived", {}),
        ("encode_query", TEXTS[:3], {"prompt": "above ", "normalize_embeddings": True}),
        *each(TEXTS, "similarity", "similarity_pairwise"),
    ]  # fmt: skip


def modernbert(folder: Path) -> str:
    """Two blocks with a window of four tokens on either side, then one block without a window."""
    special = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")} | {"pad_token_id": 0}
    config = SIZES | {"num_hidden_layers": 3, "local_attention": 8, "global_attn_every_n_layers": 3} | special
    # with a larger spread float32 would differ from float64 by 1e-5
    return str(with_wordpiece(raw(folder, "ModernBertModel", spread=4, **config)))


# -- the folders -------------------------------------------------------------------------------------------------


def fixed(parts: Path, folder: Path) -> list[Call]:
    """BERT; queries of 12 tokens, padded with hidden [MASK]; prompts; punctuation of documents left out."""
    expansion = {"strategy": "fixed", "attend": False, "length": 12}
    transformer = Transformer(str(bert(parts / "t")), query_expansion=expansion, document_length=14)
    chain = [transformer, dense(8, 6), MultiVectorMask(PUNCTUATION), Normalize(**TOKENS)]
    return save(chain, folder, prompts={"query": "the ", "document": "we "})


def least(parts: Path, folder: Path) -> list[Call]:
    """ModernBERT; 9 to 14 tokens of a query, none of them hidden; two maps."""
    expansion = {"strategy": "min", "attend": True, "length": 9, "token": "the"}
    transformer = Transformer(modernbert(parts / "t"), query_expansion=expansion, query_length=14, document_length=20)
    mask = MultiVectorMask(["we", "!", "notatoken"], skiplist_tasks=["query", "document"])
    chain = [transformer, dense(8, 12, activation_function=nn.GELU()), dense(12, 4, bias=True), mask]
    return save(chain, folder, similarity_fn_name="meanmaxsim")


def window(parts: Path, folder: Path) -> list[Call]:
    """ModernBERT; tokens that pad a query are so far behind it that some see nothing in a window."""
    expansion = {"strategy": "fixed", "attend": False, "length": 20}
    transformer = Transformer(modernbert(parts / "t"), query_expansion=expansion)
    return save([transformer, dense(8, 6), MultiVectorMask(), Normalize(**TOKENS)], folder)


def kept(parts: Path, folder: Path) -> list[Call]:
    """RoBERTa, whose positions follow the ids; only some tokens of a document count, and some documents have none."""
    name = str(with_wordpiece(raw(parts / "t", "RobertaModel", **ROBERTA), model_max_length=30))
    expansion = {"strategy": "min", "attend": False, "length": 8}
    tokens = transformers.AutoTokenizer.from_pretrained(name)
    mask = MultiVectorMask([tokens.convert_ids_to_tokens(i) for i in range(len(tokens)) if not 5 <= i <= 12])
    return save([Transformer(name, query_expansion=expansion), mask, dense(8, 6)], folder)


def bare(parts: Path, folder: Path) -> list[Call]:
    """Only a map: queries of at most 6 tokens, documents of 10."""
    return save([Transformer(str(bert(parts / "t")), query_length=6, document_length=10), dense(8, 6)], folder)


def pylate(parts: Path, folder: Path) -> list[Call]:
    """As PyLate 1.3 saves it: a Transformer and PyLate's Dense, flat settings, prefixes of one token."""
    save([Transformer(str(bert(parts / "t"))), dense(8, 6)], folder)
    rewrite(folder / "tokenizer.json", partial(with_tokens, "[Q] ", "[D] "))
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    own = [{"idx": i, "name": str(i), "path": path, "type": kinds[path]} for i, path in enumerate(kinds)]
    dump(folder / "modules.json", own)
    rewrite(folder / "1_Dense" / "config.json", lambda config: {k: v for k, v in config.items() if "module" not in k})
    dump(folder / "sentence_bert_config.json", {"max_seq_length": 17, "do_lower_case": False})
    settings = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim", **PYLATE,
        "attend_to_expansion_tokens": True, "skiplist_words": ["!", "the"],
    }  # fmt: skip
    dump(folder / "config_sentence_transformers.json", settings)
    return calls()


def pylate_older(parts: Path, folder: Path) -> list[Call]:
    """As PyLate 1.0 saved it: no model_type; no expansion; prefixes that are not in the vocabulary; punctuation."""
    pylate(parts, folder)
    rewrite(folder / "tokenizer.json", lambda rules: rules | {"added_tokens": rules["added_tokens"][:-2]})
    settings = {"prompts": {"query": "above "}, **PYLATE, "do_query_expansion": False}
    dump(folder / "config_sentence_transformers.json", settings)
    return calls()


def stanford(parts: Path, folder: Path) -> list[Call]:
    """As Stanford's ColBERT saves it: HF_ColBERT, `linear.weight` beside the BERT, artifact.metadata."""
    bert(folder)
    tensors = {f"bert.{name}": array for name, array in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = dense(8, 6).linear.weight.detach().numpy()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    rewrite(folder / "config.json", lambda config: config | {"architectures": ["HF_ColBERT"]})
    rewrite(folder / "tokenizer.json", partial(with_tokens, "[unused0]", "[unused1]", added=False))
    tokens = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    dump(folder / "artifact.metadata", {"dim": 6, "query_maxlen": 11, "doc_maxlen": 16, **tokens})
    return calls()


def with_tokens(first: str, second: str, rules: dict[str, Any], added: bool = True) -> dict[str, Any]:
    """Rename the last two words of the vocabulary; `added`: add them to the tokenizer as tokens too."""
    vocabulary = rules["model"]["vocab"]
    ids = sorted(vocabulary.values())[-2:]
    names = dict(zip(ids, (first, second), strict=True))
    rules["model"]["vocab"] = {names.get(i, word): i for word, i in vocabulary.items()}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    if added:
        rules["added_tokens"] += [{"id": i, "content": name, **flags} for i, name in names.items()]
    return rules


FOLDERS = (fixed, least, window, kept, bare, pylate, pylate_older, stanford)


def given(model: MultiVectorEncoder, call: Call) -> list[np.ndarray[Any, Any]] | np.ndarray[Any, Any]:
    method, texts, options = call
    if method.startswith("similarity"):
        pairwise = method == "similarity_pairwise"
        queries = model.encode_query(texts if pairwise else list(QUERIES), convert_to_numpy=True)
        documents = model.encode_document(texts, convert_to_numpy=True)
        return np.asarray(getattr(model, method)(queries, documents))
    found = getattr(model, method)(texts, convert_to_numpy=True, **options)
    return [found] if isinstance(texts, str) else found


def with_vectors(folder: Path, made: list[Call]) -> dict[str, dict[str, Any]]:
    model, tensors = MultiVectorEncoder(str(folder), device="cpu"), {}
    for i, call in enumerate(made):
        found = given(model, call)
        if isinstance(found, list):
            tensors[f"{i}.lengths"] = np.array([len(each) for each in found])
            found = np.concatenate(found)
        tensors[str(i)] = np.ascontiguousarray(found, np.float32)
    save_file(tensors, folder / "vectors.safetensors")
    return {str(i): dict(zip(("method", "texts", "options"), call, strict=True)) for i, call in enumerate(made)}


if __name__ == "__main__":
    sys.exit(run(__doc__, "late", FOLDERS, with_vectors))
