"""`load`: a folder or a Hub name -> its files -> an `EmbeddingLayer`, the family's steps bound to the tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from minibert.errors import CheckpointError, MinibertError, UnknownFamilyError
from minibert.families.family import Family
from minibert.families.parts.steps import Bound, Tokens
from minibert.families.rows import FAMILIES, UNCOMPUTED
from minibert.families.static import MODEL_TYPE, ROWS, STATIC
from minibert.files.checkpoint import ADAPTER, SINGLE, Checkpoint, open_folder
from minibert.files.reading import FileName, existing, mode_of, note_model_file, read_object
from minibert.files.tokenizer_files import TOKENIZER_FILES, Find, open_tokenizer, open_without_special_tokens
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.attributes import hinted
from minibert.models.sentences.folder import MODULES, STATIC_MODULE, FolderFiles, SavedFolder

from .binder import TensorBinder

T = TypeVar("T")
OpenTensors = Callable[[str], Checkpoint]  # a subfolder, "" for none -> its tensors

if TYPE_CHECKING:
    from .adapter import Adapter


@hinted
def load(
    name: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    lazy: bool = False,
    side: str | None = None,
    dtype: str = "float32",
    mmap: bool = True,
    family: Family | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    token: str | None = None,
) -> EmbeddingLayer:
    """Load the input layer of a checkpoint: a folder, or a Hub name, or without a name what MINIBERT_MODEL names.

    A folder is a PathLike, a string that starts with . / ~ or ends with / or has more than one slash, or the name of an
    existing folder or file. Loading a folder never uses the network. Tables are mapped, not read. A Hub name without an
    owner belongs to sentence-transformers, except for old names like "gpt2".

    revision, local_files_only: as in huggingface_hub, for Hub names. With a commit's forty digits, a name is looked up
    on the Hub even if a folder has the same name.
    lazy: for Hub names, fetch a table's rows when ids use them. No effect on a folder, or on a file that the Hub's
    cache holds completely.
    side: "encoder" or "decoder" if a family has both; None is the encoder, or the only side.
    dtype: the layer computes in "float32" or "float64".
    mmap: False reads the tables into memory now. Choose it for network disks, and if another program may change or
    shorten the file: a mapped table changes with its file, and reading a row after the file's new end stops the
    process (SIGBUS on Linux and macOS).
    family: a family that you describe yourself.
    cache_folder: the folder for the Hub's files, instead of SENTENCE_TRANSFORMERS_HOME and the Hub's own cache.
    token: used instead of HF_TOKEN; a pickle does not contain it.

    Raises CheckpointError, UnknownFamilyError, HubError; TokenizerError later, when text is first used.
    """
    check_dtype(dtype)
    if family is not None and not isinstance(family, Family):
        named = f" minibert.FAMILIES[{family!r}] is one, or" if isinstance(family, str) and family in FAMILIES else ""
        value = f"{type(family).__name__} {family!r:.40};{named} leave it out: config.json says which family it is"
        raise TypeError(f"family must be a minibert.Family, found {value}")
    files = open_model(
        name, revision=revision, local_files_only=local_files_only, lazy=lazy, mmap=mmap,
        cache_folder=cache_folder, token=token,
    )  # fmt: skip
    reopen = files.reopen(load, side=side, dtype=np.dtype(dtype).name, family=family)
    return assemble(files, files.source(), family or family_of(files), side, dtype, reopen)


def check_dtype(dtype: Any) -> None:
    """Raise ValueError unless dtype is float32 or float64."""
    if dtype not in ("float32", "float64", np.float32, np.float64):  # a np.dtype equals its name
        raise ValueError(f"dtype must be 'float32' or 'float64', found {dtype!r}; narrow files are converted")


class ModelFiles:
    """The files of one model, and its config.json.

    `where`: the name in errors. `lasting` and `commit` name the same model in another working directory, and
    after the Hub's branch has moved. `options`: the options of `load` with which the files were opened.
    """

    def __init__(
        self,
        find: Find,
        checkpoint: OpenTensors,
        where: str,
        lasting: str,
        commit: str | None,
        options: Mapping[str, Any],
        *,
        whole: bool,
        saved: bool,
        elsewhere: str,
    ) -> None:
        """`find` finds a file of the repository by name; `checkpoint` opens the tensors in one of its subfolders.

        whole: all tensors are needed. saved: read all settings of the folder; modules.json names the tensors'
        subfolder.
        elsewhere: for errors, how to load the Hub's model if a folder has the same name.
        """
        self._checkpoint = checkpoint
        self.where, self.lasting, self.commit, self.options = where, lasting, commit, options
        self.files = self._beside = FolderFiles(find, where)
        self._adapter: Adapter | None = None
        self.saved = SavedFolder.read(self.files) if saved else None  # all settings of the folder
        if self.saved:
            self._beside = self.saved.beside
        self.config = self._beside.object("config.json")
        known = str(self.config.get("model_type")) in FAMILIES
        self.static = (whole or not known) and self._has_static_rows()
        if not self.config and not self.static and self.find("config.json") is None:
            advice = "fetch it into that folder"
            # raises for modules that are not computed
            inside = self.files.modules() and (self.saved or SavedFolder.read(self.files)).beside.folder
            if inside:
                advice = f"{MODULES} says that it is in {inside!r}: load_encoder finds it there, load takes that folder"
            elif not elsewhere:
                self.source().close()  # raises if there are no tensors either
            raise CheckpointError(f"{where} has no config.json, which says what the tensors mean; {advice}{elsewhere}")
        # `load` does not list a Hub repository's files: a LoRA adapter does not change the input layer
        if (saved or commit is None) and (settings := self._beside.object(ADAPTER)):
            from .adapter import TENSORS, Adapter

            self._adapter = Adapter(settings, self.find(TENSORS), where, str(self.config.get("model_type")))
            self.config = {**self.config, **self._adapter.head_config()}

    def reopen(self, function: Callable[..., T], **more: Any) -> Callable[[], T]:
        """Return a call of `load` or `load_encoder` that opens the same files again, with these options."""
        return partial(function, self.lasting, revision=self.commit, **self.options, **more)

    def _has_static_rows(self) -> bool:
        """Return whether this is a static model, by modules.json, config.json, or else the names of the tensors."""
        modules, model_type = self.files.modules(), self.config.get("model_type")
        if modules:
            if modules[0].kind != STATIC_MODULE:
                return False
            self._beside = self.files.inside(modules[0].path)
            self.config = self._beside.object("config.json")
            return True
        if modules is None and model_type is None:
            with suppress(MinibertError):  # `source` raises this error later
                source = self.source()
                source.close()
                return not set(ROWS).isdisjoint(source.names)
        return bool(model_type == MODEL_TYPE)

    def find(self, file: str) -> FileName | None:
        """Return the path of a file beside the weights, or None."""
        return self._beside.path(file)

    def source(self) -> Checkpoint:
        """Open the tensors, with an adapter merged if one lies beside them."""
        source = self._checkpoint(self._beside.folder)
        if self._adapter is not None:
            self._adapter.put_on(source)
        return source


def open_model(
    name: str | os.PathLike[str] | None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    lazy: bool = False,
    mmap: bool | None = True,
    whole: bool = False,
    saved: bool = False,
    cache_folder: FileName | None = None,
    token: str | None = None,
) -> ModelFiles:
    """Open a folder or a Hub name, None for MINIBERT_MODEL's: see `load`; whole, saved: see `ModelFiles`."""
    name = os.environ.get("MINIBERT_MODEL") or None if name is None else name
    if name is None:
        advice = "pass a folder or a Hub name, as in load('bert-base-uncased'), or set MINIBERT_MODEL"
        raise ValueError(f"no model is named: {advice}")
    folder, where, commit = is_folder(name), os.fspath(name), cast("str | None", None)
    shadowed = folder and isinstance(name, str) and not _is_path(name)
    kind = "folder" if os.path.isdir(name) else "file"
    elsewhere = f"; for the Hub's model of this name run elsewhere, or rename the {kind}" if shadowed else ""
    if shadowed and revision is not None:
        from minibert.hub.repository import COMMIT

        folder = not COMMIT.fullmatch(revision)  # a pickle names a model like this, and so does a folder of `bulk`
    options: dict[str, Any] = dict(local_files_only=local_files_only, lazy=lazy, mmap=mmap)
    open_base = partial(open_model, **options, cache_folder=cache_folder, token=token, whole=whole)
    if folder:
        path = os.path.expanduser(where)
        _check_folder(path, elsewhere)
        lasting, local = os.path.abspath(path), LocalFolder(path, mmap is not False)
        find: Find = local.file
        checkpoint: OpenTensors = local.checkpoint
        if revision is not None:
            raise ValueError(f"revision is for a name on the Hub; {where} is a folder{elsewhere}")
    else:
        from minibert.hub.repository import full_name, resolve

        where = lasting = full_name(where)
        repository = resolve(where, revision, local_files_only, cache_folder, token)
        find, commit = repository.file, repository.commit
        checkpoint = partial(repository.checkpoint, lazy, mmap is not False, whole=whole and not lazy)
        if cache_folder is not None:
            options["cache_folder"] = os.fspath(repository.cache)
    # `load` lists no files of the Hub
    if (folder or saved) and (settings := find(ADAPTER)) and find("config.json") is None:
        adapter = _adapter_alone(find, settings, where, open_base)
        find, checkpoint = adapter.file, adapter.checkpoint
    return ModelFiles(find, checkpoint, where, lasting, commit, options, whole=whole, saved=saved, elsewhere=elsewhere)


class LocalFolder(NamedTuple):
    """A folder on a disk; `mapped`: its tensors are mapped, not read."""

    path: str
    mapped: bool

    def file(self, name: str) -> FileName | None:
        """Return the path of a file in it, or None."""
        path = os.path.join(self.path, name)
        if not existing(path):
            return None
        note_model_file(path)
        return path

    def checkpoint(self, folder: str) -> Checkpoint:
        """Open the tensors in one of its subfolders."""
        return open_folder(os.path.join(self.path, folder) if folder else self.path, self.mapped)


class AdapterAlone(NamedTuple):
    """A folder that holds only an adapter: its base has config.json and the tensors.

    The tokenizer's files are the adapter's or the base's, never a mixture.
    """

    find: Find
    base: ModelFiles
    has_tokenizer: bool

    def file(self, name: str) -> FileName | None:
        """Return the path of a file of the adapter or of its base, or None."""
        of_base = name == "config.json" or (name in TOKENIZER_FILES and not self.has_tokenizer)
        return self.base.find(name) if of_base else self.find(name)

    def checkpoint(self, folder: str) -> Checkpoint:
        """Open the base's tensors."""
        return self.base.source()


def _adapter_alone(find: Find, file: FileName, where: str, open_base: Callable[..., ModelFiles]) -> AdapterAlone:
    """Open the base model of an adapter whose folder holds no model; `file`: the adapter's settings."""
    settings = read_object(file)
    name = settings.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{where}: {ADAPTER} names no base: 'base_model_name_or_path' is {name!r}")
    try:
        base = open_base(name, revision=None if is_folder(name) else settings.get("revision"))
    except MinibertError as error:
        raise CheckpointError(f"{where} has only an adapter, and its base {name!r} does not open: {error}") from None
    return AdapterAlone(find, base, any(map(find, TOKENIZER_FILES)))


def is_folder(name: str | os.PathLike[str]) -> bool:
    """Return whether a name means a folder, which is opened without the network.

    >>> is_folder("./bert"), is_folder("~/bert"), is_folder("a/b/c"), is_folder("google/bert"), is_folder("gpt2")
    (True, True, True, False, False)
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"the model must be a folder or a Hub name, as str or PathLike, found {type(name).__name__}")
    if not isinstance(name, str):
        if not isinstance(os.fspath(name), str):
            raise TypeError(f"the model's path must be text, found {os.fspath(name)!r}; decode it with os.fsdecode")
        return True
    if not name:
        raise ValueError("the model's name is empty; give a folder or a Hub name such as 'bert-base-uncased'")
    try:
        return _is_path(name) or mode_of(name) > 0
    except CheckpointError:  # the path exists but may not be read; the error at opening explains it
        return True


def _is_path(name: str) -> bool:
    """Return whether a name is a path: no model on the Hub can have it."""
    slashed = name.replace(os.sep, "/")
    return name[0] in "./~" or slashed[-1] == "/" or slashed.count("/") > 1 or os.path.isabs(name)


def _check_folder(folder: str, elsewhere: str) -> None:
    mode_of(os.path.join(folder, "config.json"))  # raises if the folder may not be read: it is not missing
    if not os.path.isdir(folder):
        kind, above = "no such folder", os.path.dirname(folder)
        if "://" in folder:
            kind = "an address, not a folder; a model on the Hub is named OWNER/NAME"
        if os.path.exists(folder):
            kind = "a file, not a folder"
            if any(os.path.isfile(os.path.join(above, name)) for name in ("config.json", SINGLE)):
                elsewhere = f"; name its folder, {above or '.'}"
        raise CheckpointError(f"{folder}: {kind}; expected a folder with config.json and model.safetensors{elsewhere}")
    with suppress(OSError):  # listing the folder may be forbidden
        for module in os.listdir(folder):  # the weights of modules belong to the model too
            note_model_file(os.path.join(folder, module, SINGLE))


def family_of(files: ModelFiles) -> Family:
    """Return the family of config.json's model_type. Raises UnknownFamilyError, CheckpointError."""
    if files.static:
        return STATIC
    model_type, where = files.config.get("model_type"), files.where
    if not isinstance(model_type, str):
        above = os.path.dirname(os.path.abspath(where))
        if files.commit is None and os.path.isfile(os.path.join(above, MODULES)):
            raise CheckpointError(f"{where} is a module of the model in {above}; name that folder")
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"{where}: config.json has no model_type; add the one it was saved from: {known}")
    if model_type in UNCOMPUTED:
        reason = f"{UNCOMPUTED[model_type]}, which minibert does not compute"
        raise UnknownFamilyError(f"{where}: model_type {model_type!r} is {reason}")
    if model_type not in FAMILIES:
        advice = "to describe another: load(..., family=Family(...)), see minibert/families/README.md"
        known = f"known are {', '.join(sorted(FAMILIES))}"
        raise UnknownFamilyError(f"{where}: model_type {model_type!r} is not known; {known}; {advice}")
    return FAMILIES[model_type]


def assemble(
    files: ModelFiles,
    source: Checkpoint,
    family: Family,
    side: str | None = None,
    dtype: np.dtype[Any] | str = "float32",
    reopen: Callable[[], EmbeddingLayer] | None = None,
) -> EmbeddingLayer:
    """Bind a family's steps to a checkpoint's tensors; raise CheckpointError if one is missing or left over."""
    data, where = files.config, files.where
    side = family.sides[0] if side is None else side
    if side not in family.sides:
        raise ValueError(f"side must be {' or '.join(map(repr, family.sides))} for {family.model_type}, found {side!r}")
    config, dtype = family.configure(data, f"{where}: config.json"), np.dtype(dtype)
    binder = TensorBinder(config, source, family.prefixes, dtype, where)
    recipe = [step for step in family.steps_for(side) if step.when(config)]
    if not recipe or not isinstance(recipe[0], Tokens):
        first = f"a {type(recipe[0]).__name__}" if recipe else "no step"
        expected = "must be Tokens, which gives the others their rows"
        raise ValueError(f"the first step of {family.model_type} {expected}; found {first}")
    steps = [Bound(step, step.bind(binder)) for step in recipe]
    binder.refuse_leftovers(family.scope_for(side), family.unused_endings)
    pad_id, named = config.get("pad_token_id"), data.get("tokenizer_class")
    if type(pad_id) is not int or not 0 <= pad_id < steps[0].module.table.shape[0]:
        pad_id = None  # null, or -1 in some files: no row; any other id is harmless, with mask 0
    usual = family.tokenizer, pad_id, where, named
    tokenizer = partial(open_tokenizer, files.find, *usual, always_usual=family.always_usual)
    if family is STATIC:
        tokenizer = partial(open_without_special_tokens, files.find, where)
    return EmbeddingLayer(
        family,
        config,
        steps,
        dtype,
        side,
        tokenizer=tokenizer,
        attention_position=None if family.attention is None else partial(family.attention, config, binder, side),
        closing=source.close,
        tensors=tuple(source.requested_tensors.values()),
        stored=source.known,
        reopen=reopen,
    )
