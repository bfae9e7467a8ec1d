"""Options of a caller that go before a folder's settings, by the names of sentence-transformers' constructors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from minibert.equations.sentences import MAXSIMS, SIMILARITIES
from minibert.errors import Option, error_of
from minibert.models.run.pipeline import check_positive

from .folder import MULTI, PAIRS, SPARSE
from .sentence_config import SentenceConfig


class SentenceOptions(NamedTuple):
    """See `load_encoder`; None: as the folder says."""

    prompts: Mapping[str, str] | None = None
    default_prompt_name: str | None = None
    truncate_dim: int | None = None
    similarity_fn_name: str | None = None
    max_seq_length: int | None = None

    def given(self) -> dict[str, Any]:
        """Give the options that are asked for."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def checked(self) -> SentenceOptions:
        """Give plain values. Raises TypeError and ValueError for what no folder could take."""
        prompts, measure = self.prompts, self.similarity_fn_name
        given: Any = {} if prompts is None else prompts
        if not isinstance(given, Mapping) or not all(isinstance(x, str) for pair in given.items() for x in pair):
            raise error_of(TypeError, Option("prompts"), f" must be texts by name, found {prompts!r:.80}")
        if not isinstance(name := self.default_prompt_name, str | None):
            raise error_of(TypeError, Option("default_prompt_name"), f" must be a str, found {name!r}")
        check_positive("truncate_dim", self.truncate_dim, or_none=True)
        check_positive("max_seq_length", self.max_seq_length, or_none=True)
        measure = getattr(measure, "value", measure)  # sentence-transformers has an enum of them
        if measure is not None and measure not in (*SIMILARITIES, *MAXSIMS):
            known = ", ".join((*SIMILARITIES, *MAXSIMS))
            raise error_of(ValueError, Option("similarity_fn_name"), f" must be one of {known}, found {measure!r}")
        return self._replace(prompts=None if prompts is None else dict(given), similarity_fn_name=measure)

    def applied_to(self, own: SentenceConfig) -> SentenceConfig:
        """Put the caller's options in place of the folder's, but for `max_seq_length`, which an encoder checks.

        Prompts of the folder stay where no other has their name. Raises ValueError for an option without effect on a
        folder of this kind, and for a default prompt that is not there.
        """
        without = {PAIRS: ("truncate_dim", "similarity_fn_name"), SPARSE: ("truncate_dim",), MULTI: ("truncate_dim",)}
        for name in set(without.get(own.kind, ())) & self.given().keys():
            raise error_of(ValueError, Option(name), f" has no effect on a {own.kind}; leave it out")
        measure, known_here = self.similarity_fn_name, tuple(MAXSIMS if own.late else SIMILARITIES)
        if measure is not None and measure not in known_here:
            found = f" of this model must be one of {', '.join(known_here)}, found {measure!r}"
            raise error_of(ValueError, Option("similarity_fn_name"), found)
        prompts = {**own.prompts, **(self.prompts or {})}
        default = own.default_prompt if self.default_prompt_name is None else self.default_prompt_name
        if default is not None and default not in prompts:
            found = f" must be one of the prompts {', '.join(map(repr, prompts)) or 'none'}, found {default!r}"
            raise error_of(ValueError, Option("default_prompt_name"), found)
        return own._replace(
            prompts=prompts,
            default_prompt=default,
            truncate_dim=own.truncate_dim if self.truncate_dim is None else self.truncate_dim,
            similarity=self.similarity_fn_name or own.similarity,
        )


AS_THE_FOLDER_SAYS = SentenceOptions()
