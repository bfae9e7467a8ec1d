"""The input layer of a model type, as a row: an ordered tuple of steps, and the names in its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from minibert.errors import CheckpointError
from minibert.families.parts.config import Config, Frozen, replace
from minibert.families.parts.steps import Binder, Step

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import AttentionPosition

# (config, binder, side) -> the layer's attention_position
Scheme = Callable[[Config, Binder, str], "AttentionPosition | None"]


def scheme(name: str, **settings: Any) -> Scheme:
    """Return the reader of a position scheme inside attention, by its name in `attention_schemes`."""
    return partial(_bind_scheme, name, tuple(settings.items()))


def _bind_scheme(
    name: str, settings: tuple[tuple[str, Any], ...], config: Config, binder: Binder, side: str
) -> AttentionPosition | None:
    from minibert.families.parts import attention_schemes  # imported here: the input layer itself never needs it

    bound: AttentionPosition | None = getattr(attention_schemes, name)(config, binder, side, **dict(settings))
    return bound


class Family(Frozen):
    """One model_type's input layer.

    prefixes          beginnings of tensor names in files of models with a head, before the base model's names
    checked_prefixes  beginnings of tensor names: a stored tensor of this layer that no step uses is an error
    unused_endings    endings of tensor names that are never an error, in the blocks too: buffers, and tensors that the
                      config switches off
    aliases           config key -> the reference's other name for it
    defaults          values of config keys that config.json leaves out, those of the blocks and heads too
    only              config key -> the one value that these steps compute; another value is refused
    sides             "encoder", "decoder" or both; "{side}" in a path becomes the side
    decoder           the decoder's steps, if they are not the encoder's
    later_arguments   arguments that act later in the model: passing them here is no mistake
    shared            another name of the word module in the reference
    section           the key in config.json of the part that describes this layer, if it is a part
    beside_section    keys that are read beside that part
    tokenizer         the class of transformers if no file names one: see `files.tokenizer_classes`
    always_usual      whether `tokenizer` holds even if a file names a class: such files name a wrong one
    attention         the reader of the position scheme inside attention: see `scheme`
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
    beside_section: tuple[str, ...] = ()
    tokenizer: str | None = None
    always_usual: bool = False
    attention: Scheme | None = None

    def configure(self, data: Mapping[str, Any], where: str = "config.json", only: Mapping[str, Any] = {}) -> Config:
        """Read config.json with this family's aliases and defaults.

        Raises CheckpointError for another value of a key in the family's `only`, or in `only`, which is the blocks'.
        """
        part = data.get(self.section) or data
        older = (data.get(f"{self.section}_dict") if self.section else None) or {}  # it wins over the newer one
        for name, settings in ((self.section, part), (f"{self.section}_dict", older)):
            if not isinstance(settings, Mapping):
                raise CheckpointError(f"{where}: {name!r} must be an object, found {type(settings).__name__}")
        beside = {key: data[key] for key in self.beside_section if key in data}
        part = {**beside, **part, **older} if older or beside else part
        config = Config(part, self.aliases, self.defaults, where)
        for key, value in {**self.only, **only}.items():
            stored = config.get(key)
            if stored is not None and (stored != value or isinstance(stored, bool) != isinstance(value, bool)):
                expected = f"must be {value!r} for {self.model_type}"
                raise config.refused(f"{key!r} {expected}, found {stored!r}: numbers would be wrong")
        return config

    def steps_for(self, side: str) -> tuple[Step, ...]:
        """Return the steps of one side of the model; "{side}" and "{other}" become the names of the two sides."""
        other = "decoder" if side == "encoder" else "encoder"
        steps = self.decoder if side == "decoder" and self.decoder else self.steps

        def fill(text: str) -> str:
            return text.replace("{side}", side).replace("{other}", other)

        return tuple(replace(step, path=fill(step.path), names=tuple(map(fill, step.names))) for step in steps)

    def scope_for(self, side: str) -> tuple[str, ...]:
        """List the beginnings of the names of all tensors of this input layer."""
        return (*self.checked_prefixes, *(f"{step.path}." for step in self.steps_for(side)))

    def accepts(self, argument: str) -> bool:
        """Return whether an argument may be passed though no step uses it: it is switched off, or acts later."""
        return argument in self.later_arguments or any(getattr(step, "ids", None) == argument for step in self.steps)
