"""The table of model types: related types share a file, which is imported when one of its types is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from .family import Family

if TYPE_CHECKING:
    from minibert.families.parts.block_parts import Blocks
    from minibert.families.parts.heads import Head


class ModelType(NamedTuple):
    """One model type: its input layer, its blocks (None: not computed) and its heads."""

    layer: Family
    blocks: Blocks | None = None
    heads: tuple[Head, ...] = ()


FAMILY_FILES = {  # file -> its model types
    "bert": ("bert", "ernie", "electra", "convbert"),
    "roberta": ("roberta", "xlm-roberta", "camembert", "mpnet"),
    "small_bert": ("distilbert", "albert"),
    "deberta": ("deberta-v2",),
    "rotary_bert": ("nomic_bert", "gte", "jina_embeddings_v3"),
    "modernbert": ("modernbert",),
    "gpt2": ("gpt2", "openai-gpt", "gpt_neo", "opt", "gpt_neox", "bloom"),
    "llama": ("llama", "mistral", "ministral3", "qwen2", "qwen3", "mixtral", "olmo2", "phi3", "granite", "cohere2"),
    "eurobert": ("eurobert", "ultrabert"),
    "gemma": ("gemma", "gemma2", "gemma3_text", "embedding_gemma2", "embedding_gemma2_text"),
    "t5": ("t5", "mt5", "umt5"),
    "bart": ("bart", "mbart", "marian", "pegasus", "whisper"),
    "xlm": ("xlm", "xlnet"),
    "clip": ("clip_text_model", "clip"),
}
# model_type in published files -> model_type of the reference
OLDER = {"new": "gte", "xlm-roberta-flash": "xlm-roberta"}
UNCOMPUTED = {  # model types of widespread files that no row describes
    "jina_embeddings_v5": "a Qwen3 or EuroBERT with a LoRA adapter for each task",
    "lfm2": "a stack of short convolutions and attention (LiquidAI's LFM2)",
}
FILES = {model_type: file for file, model_types in FAMILY_FILES.items() for model_type in model_types}


class Rows(Mapping[str, Any]):
    """model_type -> one field of its row. Read-only, as all that a row holds; `replace` returns a changed copy."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __getitem__(self, model_type: str) -> Any:
        model_type = OLDER.get(model_type, model_type)
        if model_type in FILES:
            rows: tuple[ModelType, ...] = import_module(f"{__package__}.{FILES[model_type]}").ROWS
            if value := next(getattr(row, self._field) for row in rows if row.layer.model_type == model_type):
                return value
        raise KeyError(model_type)

    def __iter__(self) -> Iterator[str]:
        return (model_type for model_type in FILES if self.get(model_type))

    def __len__(self) -> int:
        return sum(1 for _ in self)


FAMILIES: Mapping[str, Family] = Rows("layer")
"""The known input layers: `model_type` of config.json -> `Family`. `load(family=...)` takes your own."""
BLOCKS: Mapping[str, Blocks] = Rows("blocks")
HEADS: Mapping[str, tuple[Head, ...]] = Rows("heads")
