"""A row of the families table: an ordered tuple of steps, and the reference's words around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from minibert.errors import CheckpointError
from minibert.families.parts.config import Config, Frozen, replace
from minibert.families.parts.steps import Binder, Step

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import AttentionPosition

# (config, binder, side) -> what layer.attention_position is
Scheme = Callable[[Config, Binder, str], "AttentionPosition | None"]


def scheme(name: str, **settings: Any) -> Scheme:
    """Return the reader of a position scheme inside attention, by its name in `attention_schemes`."""
    return partial(_bind_scheme, name, tuple(settings.items()))


def _bind_scheme(
    name: str, settings: tuple[tuple[str, Any], ...], config: Config, binder: Binder, side: str
) -> AttentionPosition | None:
    from minibert.families.parts import attention_schemes  # here, since the input layer itself never needs it

    bound: AttentionPosition | None = getattr(attention_schemes, name)(config, binder, side, **dict(settings))
    return bound


class Family(Frozen):
    """One model_type's input layer.

    prefixes          beginnings that files of models with a head put before the base model's tensor names
    checked_prefixes  a stored tensor whose name begins so, and that no step uses, is an error
    unused_endings    except if its name ends so: a buffer, or a tensor that the config switches off
    aliases           the reference's other words for a config key
    defaults          values of config keys that config.json leaves out
    only              the one value that these steps compute for a config key; another one is refused
    sides             "encoder", "decoder" or both; "{side}" in a path is filled in
    decoder           the decoder's steps, if they are not the encoder's
    later_arguments   arguments that act later in the model: passing them here is no mistake
    shared            another name of the word module in the reference
    section           the part of config.json that describes this layer, if it is only a part
    tokenizer         the class of transformers where no file names one: see `files.tokenizer_classes`
    always_usual      that class is taken whatever a file names: files of this type are known to name a wrong one
    attention         makes the position scheme that acts inside attention
    """

    model_type: str
    steps: tuple[Step, ...]
    prefixes: tuple[str, ...] = ()
    checked_prefixes: tuple[str, ...] = ("embeddings.",)
    unused_endings: tuple[str, ...] = ("position_ids",)
    aliases: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    only: Mapping[str, Any] = {}
    sides: tuple[str, ...] = ("encoder",)
    decoder: tuple[Step, ...] = ()
    later_arguments: tuple[str, ...] = ()
    shared: str = ""
    section: str = ""
    tokenizer: str | None = None
    always_usual: bool = False
    attention: Scheme | None = None

    def configure(self, data: Mapping[str, Any], where: str = "config.json") -> Config:
        """Read config.json with this family's words and defaults. Raises CheckpointError as `only` says."""
        part = data.get(self.section) or data
        older = (data.get(f"{self.section}_dict") if self.section else None) or {}  # it counts before the newer one
        for name, found in ((self.section, part), (f"{self.section}_dict", older)):
            if not isinstance(found, Mapping):
                raise CheckpointError(f"{where}: {name!r} must be an object, found {type(found).__name__}")
        part = {**part, **older} if older else part
        config = Config(part, self.aliases, self.defaults, where)
        for key, value in self.only.items():
            found = config.get(key)
            if found is not None and (found != value or isinstance(found, bool) != isinstance(value, bool)):
                raise config.refused(
                    f"{key!r} must be {value!r} for {self.model_type}, found {found!r}; that is another "
                    "layer, and this one would give wrong numbers"
                )
        return config

    def steps_for(self, side: str) -> tuple[Step, ...]:
        """The steps of one side of the model, with "{side}" and "{other}" filled in."""
        other = "decoder" if side == "encoder" else "encoder"
        steps = self.decoder if side == "decoder" and self.decoder else self.steps

        def fill(text: str) -> str:
            return text.replace("{side}", side).replace("{other}", other)

        return tuple(replace(step, path=fill(step.path), names=tuple(map(fill, step.names))) for step in steps)

    def scope_for(self, side: str) -> tuple[str, ...]:
        """Beginnings of the names of all tensors that belong to this input layer."""
        return (*self.checked_prefixes, *(f"{step.path}." for step in self.steps_for(side)))

    def accepts(self, argument: str) -> bool:
        """Whether an argument may be passed although no step uses it: the config switched it off, or it acts later."""
        return argument in self.later_arguments or any(getattr(step, "ids", None) == argument for step in self.steps)
