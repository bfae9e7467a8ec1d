"""Habits of code for sentence-transformers: accepted where it changes nothing, else one TypeError.

The page "from sentence-transformers" says what takes the place of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minibert.files.tokenizer import Tokenizer
from minibert.models.run.attributes import unexpected

from .arguments import PAGE
from .sentences import Sentences

# arguments of sentence-transformers' constructors -> the values that change nothing here
HABITS: Mapping[str, tuple[Any, ...]] = {
    "device": (None, "cpu"), "trust_remote_code": (False, None), "backend": ("torch",),
    **dict.fromkeys(("model_kwargs", "processor_kwargs", "tokenizer_kwargs", "config_kwargs"), (None, {})),
    **dict.fromkeys(("modules", "model_card_data", "use_auth_token"), (None,)),
}  # fmt: skip


def accept_habits(load_encoder: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Accept other arguments of `load_encoder` that change nothing. Raises TypeError for any that would."""
    for name, value in given.items():
        if name not in HABITS:
            raise unexpected(load_encoder, name)
        if value not in HABITS[name] and str(value) not in HABITS[name]:  # torch.device("cpu") is "cpu"
            known = " or ".join(map(repr, HABITS[name]))
            raise TypeError(f"load_encoder: {name} must be {known}, found {value!r:.80}; {PAGE}")


class _NoModelCard:
    """Takes what sentence-transformers' evaluators write into a model's card, and keeps nothing."""

    def set_evaluation_metrics(self, *given: Any) -> None:
        """Do nothing: the evaluator gives its metrics to its caller too."""


class Habits(Sentences):
    """Gives what code for sentence-transformers reads of a model, by the names there."""

    device = "cpu"
    model_card_data = _NoModelCard()

    @property
    def similarity_fn_name(self) -> str:
        """The measure of `similarity`, of the folder or as `load_encoder` was told."""
        return self.sentence_config.measure

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that `encode` takes where none is named."""
        return self.sentence_config.default_prompt

    @property
    def truncate_dim(self) -> int | None:
        """The count of a vector's first numbers that are given; None: all."""
        return self.sentence_config.truncate_dim

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, as the folder changes it. Raises TokenizerError where there is none."""
        return self.sentence_tokenizer

    def get_max_seq_length(self) -> int | None:
        """The same as `max_seq_length`."""
        return self.max_seq_length

    def get_sentence_embedding_dimension(self) -> int:
        """The same as `get_embedding_dimension`, by its older name."""
        return self.get_embedding_dimension()
