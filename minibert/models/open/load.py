"""Puts the parts together: a name, its config.json, its family's row and its tensors -> an `EmbeddingLayer`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
from minibert.models.sentences.folder import MODULES, STATIC_MODULE, FolderFiles

from .binder import TensorBinder

T = TypeVar("T")

if TYPE_CHECKING:
    from minibert.models.sentences.saved_folder import SavedFolder

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
    """Load the input layer of a checkpoint: a folder, or a name on the Hub; without a name, what MINIBERT_MODEL names.

    A folder is a PathLike, a string that starts with . / ~ or ends with / or has more than one slash, or the name of a
    folder or a file that is there. For a folder the network is never used. Tables are mapped, not read. A name without
    an owner is one of sentence-transformers', but for old ones such as "gpt2".

    revision, local_files_only: as in huggingface_hub, for Hub names. With the forty digits of a commit a name is the
    Hub's even if a folder has it too.
    lazy: for Hub names, fetch a table's rows when ids ask for them. No effect on a folder or on a file that is whole in
    the Hub's cache.
    side: "encoder" or "decoder" where a family has both; None is the encoder, or the only side there is.
    dtype: "float32" or "float64", in which the layer computes.
    mmap: False reads the tables into memory now. Choose it for network disks, and where another program may change or
    shorten the file: a mapped table changes with its file, and reading a row after the file's new end stops the
    process (SIGBUS on Linux and macOS).
    family: a row of your own.
    cache_folder: where the Hub's files are kept, in place of SENTENCE_TRANSFORMERS_HOME and of the Hub's own cache.
    token: in place of HF_TOKEN; a pickle does not hold it.

    Raises CheckpointError, UnknownFamilyError, HubError; TokenizerError later, when text is first used.
    """
    check_dtype(dtype)
    if family is not None and not isinstance(family, Family):
        named = f" minibert.FAMILIES[{family!r}] is one, or" if isinstance(family, str) and family in FAMILIES else ""
        raise TypeError(
            f"family must be a minibert.Family, found {type(family).__name__} {family!r:.40};{named} "
            "leave it out: config.json says which family it is"
        )
    opened = open_model(named_model(name), revision, local_files_only, lazy, mmap, False, False, cache_folder, token)
    again = opened.again(load, side=side, dtype=np.dtype(dtype).name, family=family)
    return assemble(opened, opened.source(), family or family_of(opened), side, dtype, again)


def named_model(name: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Give the name, or what MINIBERT_MODEL names where there is none. Raises ValueError where neither is there."""
    name = os.environ.get("MINIBERT_MODEL") or None if name is None else name
    if name is None:
        raise ValueError(
            "no model is named: pass a folder or a Hub name, as in load('bert-base-uncased'), or set MINIBERT_MODEL"
        )
    return name


def check_dtype(dtype: Any) -> None:
    """Refuse every dtype but float32 and float64. Raises ValueError."""
    if dtype not in ("float32", "float64", np.float32, np.float64):  # a np.dtype equals its name
        raise ValueError(
            f"dtype must be 'float32' or 'float64', found {dtype!r}; narrow files are converted automatically"
        )


class Opened:
    """A model's files before its parts are put together, and its config.json.

    `where` is its name for errors. `lasting` and `commit` name the same model in another working directory, and after
    the Hub's branch has moved; `options` are those of `load` with which its files were opened. `found`: every file that
    was found until now, by its name in the repository.
    """

    def __init__(
        self,
        every: Find,
        checkpoint: Callable[[str], Checkpoint],
        where: str,
        lasting: str,
        commit: str | None,
        options: Mapping[str, Any],
        whole: bool = False,
        saved: bool = False,
        elsewhere: str = "",
    ) -> None:
        """`every` finds the files of the whole repository; `checkpoint` opens the tensors in a subfolder of it.

        whole: all tensors are needed. saved: all that the folder says is read, and modules.json says where they are.
        elsewhere: how to name the Hub's model, where this folder has its name.
        """
        self._every, self._checkpoint = every, checkpoint
        self.where, self.lasting, self.commit, self.options = where, lasting, commit, options
        self.found: dict[str, FileName] = {}
        self.files = self._beside = FolderFiles(self.root, where)
        self._adapter: Adapter | None = None
        if saved:
            self._beside = self.saved.beside
        self.config = self._beside.object("config.json")
        known = str(self.config.get("model_type")) in FAMILIES
        self.static = (whole or not known) and self._has_static_rows()
        if not self.config and not self.static and self.find("config.json") is None:
            advice = "fetch it into that folder"
            if self.files.modules() and (inside := self.saved.beside.folder):  # raises for what is not computed
                advice = f"{MODULES} says that it is in {inside!r}: load_encoder finds it there, load takes that folder"
            elif not elsewhere:
                self.source().close()  # raises if there are no tensors either
            raise CheckpointError(f"{where} has no config.json, which says what the tensors mean; {advice}{elsewhere}")
        # of a Hub name the input layer alone asks for no list of files, and an adapter of linear maps leaves it alone
        if (saved or commit is None) and (settings := self._beside.object(ADAPTER)):
            from .adapter import TENSORS, Adapter

            self._adapter = Adapter(settings, self.find(TENSORS), where, str(self.config.get("model_type")))
            self.config = {**self.config, **self._adapter.head_config()}

    def again(self, function: Callable[..., T], **more: Any) -> Callable[[], T]:
        """Give a call of `load` or of its kin that opens the same files once more, with these options too."""
        return partial(function, self.lasting, revision=self.commit, **self.options, **more)

    @cached_property
    def saved(self) -> SavedFolder:
        """All that the folder says beside its tensors."""
        from minibert.models.sentences.saved_folder import SavedFolder

        return SavedFolder.read(self.files)

    def _has_static_rows(self) -> bool:
        """Whether it is a static model: modules.json says so, or config.json, or without either the tensors' names."""
        modules, model_type = self.files.modules(), self.config.get("model_type")
        if modules:
            if modules[0].kind != STATIC_MODULE:
                return False
            self._beside = self.files.inside(modules[0].path)
            self.config = self._beside.object("config.json")
            return True
        if modules is None and model_type is None:
            with suppress(MinibertError):  # what is wrong with the tensors is said when they are opened
                source = self.source()
                source.close()
                return not set(ROWS).isdisjoint(source.names)
        return bool(model_type == MODEL_TYPE)

    def root(self, file: str) -> FileName | None:
        """Find a file by its name in the repository."""
        at = self._every(file)
        if at is not None:
            self.found[file] = at
        return at

    def find(self, file: str) -> FileName | None:
        """Find a file beside the weights."""
        return self._beside.path(file)

    def source(self) -> Checkpoint:
        """Open the tensors, and an adapter that lies beside them."""
        source = self._checkpoint(self._beside.folder)
        if self._adapter is not None:
            self._adapter.put_on(source)
        return source


def open_model(
    name: str | os.PathLike[str],
    revision: str | None = None,
    local_files_only: bool = False,
    lazy: bool = False,
    mmap: bool | None = True,
    whole: bool = False,
    saved: bool = False,
    cache_folder: FileName | None = None,
    token: str | None = None,
) -> Opened:
    """Open a folder or a Hub name: see `load`; whole, saved: as of `Opened`."""
    folder, where, commit = is_folder(name), os.fspath(name), cast("str | None", None)
    shadowed = folder and isinstance(name, str) and not _is_path(name)
    kind = "folder" if os.path.isdir(name) else "file"
    elsewhere = f"; for the Hub's model of this name run elsewhere, or rename the {kind}" if shadowed else ""
    if shadowed and revision is not None:
        from minibert.hub.repository import COMMIT

        folder = not COMMIT.fullmatch(revision)  # so a pickle names it, and a folder of `bulk`
    options: dict[str, Any] = dict(local_files_only=local_files_only, lazy=lazy, mmap=mmap)
    open_base = partial(open_model, **options, cache_folder=cache_folder, token=token, whole=whole)
    if folder:
        path = os.path.expanduser(where)
        lasting, find = os.path.abspath(path), _open_local(path, elsewhere)
        if revision is not None:
            raise ValueError(f"revision is for a name on the Hub; {where} is a folder{elsewhere}")

        def checkpoint(sub: str) -> Checkpoint:
            return open_folder(os.path.join(path, sub) if sub else path, mmap is not False)
    else:
        from minibert.hub.repository import full_name, resolve

        where = lasting = full_name(where)
        repository = resolve(where, revision, local_files_only, cache_folder, token)
        find, commit = repository.file, repository.commit
        checkpoint = partial(repository.checkpoint, lazy, mmap is not False, whole=whole and not lazy)
        if cache_folder is not None:
            options["cache_folder"] = os.fspath(repository.cache)
    # of a Hub name the input layer alone asks for no list of files
    parts = _with_base(find, checkpoint, where, open_base) if folder or saved else (find, checkpoint)
    return Opened(*parts, where, lasting, commit, options, whole, saved, elsewhere)


def _with_base(
    find: Find, checkpoint: Callable[[str], Checkpoint], where: str, open_base: Callable[..., Opened]
) -> tuple[Find, Callable[[str], Checkpoint]]:
    """Take config.json and tensors from its base, where an adapter stands alone in a folder.

    The tokenizer's files are the adapter's or the base's, never some of each.
    """
    adapter = find(ADAPTER)
    if adapter is None or find("config.json") is not None:
        return find, checkpoint
    settings, own = read_object(adapter), any(map(find, TOKENIZER_FILES))
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{where}: {ADAPTER} names no base: 'base_model_name_or_path' is {base!r}")
    try:
        other = open_base(base, None if is_folder(base) else settings.get("revision"))
    except MinibertError as error:
        raise CheckpointError(f"{where} is an adapter alone, and its base {base!r} does not open: {error}") from None

    def beside(name: str) -> FileName | None:
        return other.find(name) if name == "config.json" or (name in TOKENIZER_FILES and not own) else find(name)

    return beside, lambda sub: other.source()


def is_folder(name: str | os.PathLike[str]) -> bool:
    """Whether a name means a folder; for a folder the network is never used.

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
    except CheckpointError:  # it is there, and may not be read: so says who opens it
        return True


def _is_path(name: str) -> bool:
    """Whether no model on the Hub could have this name."""
    slashed = name.replace(os.sep, "/")
    return name[0] in "./~" or slashed[-1] == "/" or slashed.count("/") > 1 or os.path.isabs(name)


def _open_local(folder: str, elsewhere: str) -> Find:
    mode_of(os.path.join(folder, "config.json"))  # a folder that may not be read is not taken for an absent one
    if not os.path.isdir(folder):
        kind, above = "no such folder", os.path.dirname(folder)
        if "://" in folder:
            kind = "an address, not a folder; a model on the Hub is named OWNER/NAME"
        if os.path.exists(folder):
            kind = "a file, not a folder"
            if any(os.path.isfile(os.path.join(above, name)) for name in ("config.json", SINGLE)):
                elsewhere = f"; name its folder, {above or '.'}"
        raise CheckpointError(f"{folder}: {kind}; expected a folder with config.json and model.safetensors{elsewhere}")

    def find(name: str) -> str | None:
        path = os.path.join(folder, name)
        if not existing(path):
            return None
        note_model_file(path)
        return path

    with suppress(OSError):  # a folder may forbid to be listed
        for module in os.listdir(folder):  # whose weights are the model's too, read here or not
            note_model_file(os.path.join(folder, module, SINGLE))
    return find


def family_of(opened: Opened) -> Family:
    """Find the row of FAMILIES that config.json's model_type names. Raises UnknownFamilyError, CheckpointError."""
    if opened.static:
        return STATIC
    model_type, where = opened.config.get("model_type"), opened.where
    if not isinstance(model_type, str):
        above = os.path.dirname(os.path.abspath(where))
        if opened.commit is None and os.path.isfile(os.path.join(above, MODULES)):
            raise CheckpointError(f"{where} is a module of the model in {above}; name that folder")
        raise CheckpointError(
            f"{where}: config.json has no model_type; add the one it was saved from: {', '.join(sorted(FAMILIES))}"
        )
    if model_type in UNCOMPUTED:
        raise UnknownFamilyError(
            f"{where}: model_type {model_type!r} is {UNCOMPUTED[model_type]}, which minibert does not compute"
        )
    if model_type not in FAMILIES:
        raise UnknownFamilyError(
            f"{where}: model_type {model_type!r} is not known; known are {', '.join(sorted(FAMILIES))}; "
            "another one can be described: load(..., family=Family(...)), see minibert/families/README.md"
        )
    return FAMILIES[model_type]


def assemble(
    opened: Opened,
    source: Checkpoint,
    family: Family,
    side: str | None = None,
    dtype: np.dtype[Any] | str = "float32",
    again: Callable[[], EmbeddingLayer] | None = None,
) -> EmbeddingLayer:
    """Bind a family's steps to a checkpoint's tensors: nothing missing, nothing left over."""
    data, where = opened.config, opened.where
    side = family.sides[0] if side is None else side
    if side not in family.sides:
        raise ValueError(f"side must be {' or '.join(map(repr, family.sides))} for {family.model_type}, found {side!r}")
    config, dtype = family.configure(data, f"{where}: config.json"), np.dtype(dtype)
    binder = TensorBinder(config, source, family.prefixes, dtype, where)
    taken = [step for step in family.steps_for(side) if step.when(config)]
    if not taken or not isinstance(taken[0], Tokens):
        found = f"a {type(taken[0]).__name__}" if taken else "no step"
        raise ValueError(
            f"the first step of {family.model_type} must be Tokens, whose rows all others work on; found {found}"
        )
    steps = [Bound(step, step.bind(binder)) for step in taken]
    binder.refuse_leftovers(family.scope_for(side), family.unused_endings)
    pad_id, named = config.get("pad_token_id"), data.get("tokenizer_class")
    if type(pad_id) is not int or not 0 <= pad_id < steps[0].module.table.shape[0]:
        pad_id = None  # null, or -1 as in some files: there is no such row, and mask 0 makes any other harmless
    usual = family.tokenizer, pad_id, where, named
    tokenizer = partial(open_tokenizer, opened.find, *usual, always_usual=family.always_usual)
    if family is STATIC:
        tokenizer = partial(open_without_special_tokens, opened.find, where)
    return EmbeddingLayer(
        family,
        config,
        steps,
        dtype,
        side,
        tokenizer=tokenizer,
        attention_position=None if family.attention is None else partial(family.attention, config, binder, side),
        closing=source.close,
        tensors=binder.taken(),
        stored=source.known,
        again=again,
    )
