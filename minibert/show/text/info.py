"""Describe a checkpoint's parts and uses as plain text: what `minibert info` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from minibert.errors import MinibertError
from minibert.families.parts.activations import activation_name
from minibert.families.parts.steps import Positions
from minibert.families.rows import BLOCKS
from minibert.families.static import STATIC
from minibert.files.checkpoint import Checkpoint, Tensor
from minibert.files.tokenizer_files import Find
from minibert.models.input_layer import EmbeddingLayer

if TYPE_CHECKING:
    from minibert.models.sentences.sentence_config import SentenceConfig

from .text import counted, size


def info(
    layer: EmbeddingLayer, find: Find | None = None, source: Checkpoint | None = None, where: str = "here"
) -> Iterator[str]:
    """Give the page line by line: the module tree, sizes, number formats, bytes on disk, tokenizer.

    find: the files of the folder, which say how a sentence vector is computed; None leaves that part out.
    source: names all tensors, and so tells which heads the file has.
    where: the model's name, for what is missing.
    """
    yield from repr(layer).split("\n")
    yield ""
    sides = f", {layer.side} side" if len(layer.family.sides) > 1 else ""
    on_disk = {tensor.name: tensor.stop - tensor.start for tensor in layer.tensors}
    files = {tensor.file: tensor.file_size for tensor in layer.tensors}
    formats = ", ".join(sorted({tensor.dtype for tensor in layer.tensors}))
    facts = {
        "family": layer.family.model_type + sides,
        "vocabulary": f"{layer.steps[0].module.table.shape[0]:,} rows",
        "width": f"{layer.dim} numbers a token",
        "longest sequence": "no limit" if layer.max_length is None else f"{layer.max_length} tokens",
        "positions here": _positions(layer),
        **_or_why("in attention", lambda: {"in attention": _in_attention(layer)}),
        "numbers": f"stored as {formats}, computed in {layer.dtype}",
        "on disk": f"{size(sum(on_disk.values()))} in {counted(len(on_disk), 'tensor')}, "
        f"of {size(sum(files.values()))} in {counted(len(files), 'file')}",
        "tokenizer": _tokenizer(layer),
        **_or_why("blocks", lambda: _blocks(layer)),
        **_or_why("heads", lambda: _heads(layer, source, where) if source else {}),
        **(_unread(layer, source) if source else {}),
        **_or_why("sentence vectors", lambda: _sentences(layer, find, where) if find else {}),
        **_same_bits(layer),
    }
    column = max(map(len, facts)) + 2
    yield from (f"{name:{column}}{fact}" for name, fact in facts.items())


def _or_why(name: str, tell: Callable[[], dict[str, str]]) -> dict[str, str]:
    """List some facts, or say why they are missing: the input layer does not need them."""
    try:
        return tell()
    except MinibertError as error:
        return {name: f"not available: {error}"}


def _positions(layer: EmbeddingLayer) -> str:
    for step, _ in layer.steps:
        if isinstance(step, Positions):
            said = {"count": "every token", "padding": "each token but padding", "mask": "each token that is kept"}
            kind = "learned" if step.generate is None else "sines and cosines"
            return f"added, {kind}; {said[step.rule]} counts, from row {step.first(layer.config) + step.extra}"
    return "none"


def _in_attention(layer: EmbeddingLayer) -> str:
    scheme = layer.attention_position
    return "none" if scheme is None else f"{scheme.offers} (layer.attention_position)"


def _blocks(layer: EmbeddingLayer) -> dict[str, str]:
    """Describe the blocks by config.json and the headers on this machine; no weight is read or fetched."""
    row, family = BLOCKS.get(layer.family.model_type), layer.family
    if family is STATIC:
        return {"blocks": "none: a static model is an input layer and nothing else"}
    if row is None:
        return {"blocks": f"not computed: minibert knows only the input layer of {family.model_type}"}
    config = row.configure(family, layer.config, "config.json")
    count, (heads, key_heads, head_dim) = row.count(config), row.attend.sizes(config)
    width, activation = row.feed.width(config), activation_name(config, row.feed.act)
    shared = f" that share {key_heads} key heads" if key_heads < heads else ""
    sizes = f"{count}, {heads} heads of {head_dim}{shared}, feed-forward {width} wide, {activation}"
    stored = stored_blocks(layer)
    if not stored:
        return {"blocks": f"{sizes}; their tensors are not in this file, which holds only the input layer"}
    known = [tensor.stop - tensor.start for tensor in stored.values() if tensor is not None]
    some = f"; {counted(len(stored), 'tensor')} in all, some in files not opened for this"
    more = some if len(known) < len(stored) else ""
    return {"blocks": sizes, "blocks on disk": f"{size(sum(known))} in {counted(len(known), 'tensor')}{more}"}


def _heads(layer: EmbeddingLayer, source: Checkpoint, where: str) -> dict[str, str]:
    """Name the heads that the file holds; no weight is read."""
    from minibert.models.heads.heads import Heads
    from minibert.models.open.binder import TensorBinder

    row, family = BLOCKS.get(layer.family.model_type), layer.family
    if row is None or not stored_blocks(layer):
        return {}
    config = row.configure(family, layer.config, "config.json")
    binder = TensorBinder(config, source, family.prefixes, layer.dtype, where)
    names = Heads(layer, config, binder, row.is_causal(config), where).names
    return {"heads": ", ".join(names) or "none in this file"}


def _unread(layer: EmbeddingLayer, source: Checkpoint) -> dict[str, str]:
    """Name the tensors that nothing here reads; without blocks that are all but the layer's."""
    from minibert.models.open.binder import unread

    left = unread(layer.family, layer.config, source) if layer.family.model_type in BLOCKS else ""
    return {"not read": left} if left else {}


def _sentences(layer: EmbeddingLayer, find: Find, where: str) -> dict[str, str]:
    """Describe the vectors of `encode`; no weight is read."""
    from minibert.models.sentences.folder import USES, FolderFiles
    from minibert.models.sentences.saved_folder import SavedFolder
    from minibert.models.sentences.sentence_config import SentenceConfig

    if layer.family is not STATIC and not stored_blocks(layer):
        return {}
    saved = SavedFolder.read(FolderFiles(find, where))
    own = SentenceConfig.of(saved, layer, layer.config, None)
    if own.late:
        return {"made for": f"{USES[own.kind]}, as a {own.kind}", **_late(own), **_prompts(own)}
    row = BLOCKS.get(layer.family.model_type)
    if row is not None and row.vector is not None and not own.kind:
        stored = (tensor for name, tensor in layer.stored().items() if name.endswith(f"{row.vector.projection}.weight"))
        own = own._replace(poolings=("lasttoken",), dim=next((each.shape[0] for each in stored if each), layer.dim))
    if own.kind not in ("", "SentenceTransformer"):
        return {"made for": f"{USES[own.kind]}, as a {own.kind}"}
    longest = "no limit" if own.longest is None else f"{own.longest} tokens ({own.longest_from})"
    numbers = f"{own.width()} numbers, {' and '.join(own.poolings)} over a text's tokens"
    return {"sentence vectors": f"{numbers}; by {own.measure}", "longest sentence": longest, **_prompts(own)}


def _late(own: SentenceConfig) -> dict[str, str]:
    """Describe late interaction: which tokens have a vector."""
    assert own.late is not None
    lengths = {task: own.lengths.get(task, own.longest) for task in ("query", "document")}
    said = {task: "no limit" if most is None else f"at most {most} tokens" for task, most in lengths.items()}
    if filled := own.late.expansion:
        seen = "seen" if filled.attend else "not seen"
        said["query"] += f", filled up to {filled.length} with {filled.token or 'mask tokens'}, {seen} by the others"
    if own.late.skipped:
        for task in own.late.skips:
            said[task] = f"{said.get(task, '')}, without {' '.join(own.late.skipped)}"
    return {
        "token vectors": f"{own.dim} numbers for each token; by {own.measure}",
        "queries": said["query"],
        "documents": said["document"],
    }


def _prompts(own: SentenceConfig) -> dict[str, str]:
    usual = {own.default_prompt: " (if none is named)"}
    prompts = [f"{name} {prompt!r}{usual.get(name, '')}" for name, prompt in own.prompts.items() if prompt]
    missing = [task for task in ("query", "document") if not own.prompts.get(task)]
    return {"prompts": ", ".join([*prompts, *([f"none for {' and '.join(missing)}"] if missing else [])])}


def _same_bits(layer: EmbeddingLayer) -> dict[str, str]:
    """Say whether the bits of a text's vector depend on the texts around it, with the kernel of this process."""
    from minibert.threads.kernels import kernel

    if not any(tensor is not None and len(tensor.shape) == 2 for tensor in stored_blocks(layer).values()):
        return {}
    found = kernel()
    said = "always" if found.always else "no" if found.same is None else "with same_bits=True"
    return {"same bits": f"{said}; BLAS kernel {found.name}"}


def stored_blocks(layer: EmbeddingLayer) -> dict[str, Tensor | None]:
    """Give the blocks' tensors of the layer's checkpoint by name; None for one in a file that is not opened."""
    row = BLOCKS.get(layer.family.model_type)
    if row is None:
        return {}
    owned = tuple(prefix + part for prefix in ("", *layer.family.prefixes) for part in row.checked_prefixes)
    named = {name: tensor for name, tensor in layer.stored().items() if name.startswith(owned)}
    return {name: tensor for name, tensor in named.items() if not name.endswith(row.unused_endings)}


def _tokenizer(layer: EmbeddingLayer) -> str:
    try:
        said = f"{layer.tokenizer.kind}, {layer.tokenizer.size:,} tokens"
        if layer.adds_types and layer.tokenizer.leaves_types_out:
            said += (
                "; its class gives a second text type 0, as transformers does, where tokenizer.json has another: "
                'tokenize(a, b, types="file")'
            )
        return said
    except MinibertError as error:  # ids work without one; an error comes when a text is given
        return f"none: {str(error).partition(';')[0]}"
