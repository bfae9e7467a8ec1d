"""What a folder says of a causal model that scores pairs: by which words, and how a pair becomes one text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from minibert.files.chat_template import ChatTemplate, read_chat_template
from minibert.files.tokenizer_files import Find

from .folder import FolderFiles

KEYS = ("true_token_id", "false_token_id", "module_input_name")
FORMATS = ("structured", "flat")  # a message's content: a list of parts with types, or the text alone
# what apply_chat_template takes for itself, so that no template sees it
KEPT_BACK = (
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenize",
    "tokenizer_kwargs", "chat_template", "continue_final_message", "sanitize_control_tokens",
)  # fmt: skip


class LogitScore(NamedTuple):
    """The score of a pair is the logit of one word less that of another, behind a text made of the pair."""

    tokens: tuple[int | str, ...] = ("yes", "no")  # ids or tokens; of one alone the logit is the score
    chat: Callable[[], ChatTemplate | None] = lambda: None  # what makes a text of a pair; None: the two texts alone
    chats: bool | None = None  # whether pairs go through the template; None: if there is one
    structured: bool | None = None  # whether it takes a content as parts; None: as the template's text says
    variables: Mapping[str, Any] = {}  # for the template
    restores: bool = True  # a text that loses its end gets back what the template writes behind the pair


def bare_logit_score(find: Find, where: str) -> LogitScore:
    """Give what sentence-transformers does with a causal model's folder that says nothing of it."""
    return LogitScore(chat=cache(partial(read_chat_template, find, where)))


def read_logit_score(
    settings: Mapping[str, Any], files: FolderFiles, module: FolderFiles
) -> tuple[LogitScore, dict[str, Any]]:
    """Read it from the module's config.json and the transformer's settings; give the other settings too.

    Raises CheckpointError that names the entry.
    """
    own, rest = module.object("config.json"), dict(settings)
    module.check_keys(own, KEYS)
    if own.get("module_input_name", "causal_logits") != "causal_logits":
        raise module.refuse(f"LogitScore reads {own['module_input_name']!r}, but here it reads 'causal_logits' alone")
    given = [own.get(key) for key in KEYS[:2]]
    tokens = tuple(token for token in given if type(token) is int and token >= 0)
    if len(tokens) != 2 - (given[1] is None):
        raise module.refuse(f"'true_token_id' must be an id, 'false_token_id' an id or null; found {given}")
    message, rest["modality_config"] = _message(rest.get("modality_config"), files)
    variables = _variables(rest.pop("processing_kwargs", None), files)
    restores = files.flag(variables, "restore_suffix", True)
    score = LogitScore(
        tokens,
        cache(partial(read_chat_template, files.path, files.place)),
        message is not None,
        message == FORMATS[0],
        {name: value for name, value in variables.items() if name != "restore_suffix"},
        restores,
    )
    if rest["modality_config"] is None:
        del rest["modality_config"]
    return score, rest


def _message(modalities: Any, files: FolderFiles) -> tuple[str | None, Any]:
    """Give the form of messages, where texts become some, and what is said of other inputs."""
    if not isinstance(modalities, Mapping) or "message" not in modalities:
        return None, modalities
    said = modalities["message"]
    form = said.get("format", FORMATS[0]) if isinstance(said, Mapping) else None
    if form not in FORMATS or {**said, "format": form} != {
        "method": "forward", "method_output_name": "logits", "format": form
    }:  # fmt: skip
        raise files.refuse(f"the transformer's 'modality_config' has the message {said!r:.200}, not known here")
    return form, {name: value for name, value in modalities.items() if name != "message"} or None


def _variables(arguments: Any, files: FolderFiles) -> Mapping[str, Any]:
    """Give what is passed to the template; anything else that a tokenizer could be told is refused."""
    found = (arguments or {}).get("chat_template") or {} if isinstance(arguments, Mapping | None) else None
    if not isinstance(found, Mapping) or set(arguments or {}) - {"chat_template"} or set(KEPT_BACK) & set(found):
        raise files.refuse(
            f"the transformer's 'processing_kwargs' are {arguments!r:.200}; computed here are those of 'chat_template' "
            f"without {', '.join(KEPT_BACK)}"
        )
    return found
