"""The parts and uses of a checkpoint as plain text: what `minibert info` prints. Only the identity reads weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from minibert.errors import MinibertError
from minibert.families.parts.bound_blocks import activation_name
from minibert.families.parts.steps import Positions
from minibert.families.rows import BLOCKS
from minibert.families.static import STATIC
from minibert.files.checkpoint import Checkpoint, Tensor
from minibert.files.tokenizer_files import Find
from minibert.models.input_layer import EmbeddingLayer

if TYPE_CHECKING:
    from minibert.models.sentences.sentence_config import SentenceConfig

from .text import counted, size

MOST_BLOCKS = 256  # a damaged config may name any number of blocks; the sizes of the first ones are compared


def info(
    layer: EmbeddingLayer,
    find: Find | None = None,
    source: Checkpoint | None = None,
    where: str = "here",
    identity: Callable[[], str] | None = None,
) -> Iterator[str]:
    """Yield the page line by line: the layer's modules by path, then its facts, as `facts` returns them."""
    yield from repr(layer).split("\n")
    yield ""
    fact_of = facts(layer, find, source, where, identity)
    column = max(map(len, fact_of)) + 2
    yield from (f"{name:{column}}{fact}" for name, fact in fact_of.items())


def info_json(layer: EmbeddingLayer, *sources: Any) -> dict[str, Any]:
    """Return the same for JSON: `modules`, the sizes of each module by path, and each fact, with _ for a space."""
    modules = {path: repr(module) for path, module in layer.modules.items()}
    return {"modules": modules, **{name.replace(" ", "_"): fact for name, fact in facts(layer, *sources).items()}}


def facts(
    layer: EmbeddingLayer,
    find: Find | None = None,
    source: Checkpoint | None = None,
    where: str = "here",
    identity: Callable[[], str] | None = None,
) -> dict[str, str]:
    """Return sizes, number formats, tokenizer and uses, each under its name.

    find: reads the files of the folder that define sentence vectors; without it these facts are left out.
    source: the checkpoint, whose tensor names show which heads it has; without it these facts are left out.
    where: the model's name, for errors. identity: computes that of the whole model.
    """
    sides = f", {layer.side} side" if len(layer.family.sides) > 1 else ""
    on_disk = {tensor.name: tensor.stop - tensor.start for tensor in layer.tensors}
    files = {tensor.file: tensor.file_size for tensor in layer.tensors}
    formats = ", ".join(sorted({tensor.dtype for tensor in layer.tensors}))
    return {
        "family": layer.family.model_type + sides,
        "vocabulary": f"{layer.steps[0].module.table.shape[0]:,} rows",
        "width": f"{layer.dim} numbers a token",
        "longest sequence": "no limit" if layer.max_length is None else f"{layer.max_length} tokens",
        "positions here": _positions(layer),
        **_or_error("in attention", lambda: {"in attention": _in_attention(layer)}),
        "numbers": f"stored as {formats}, computed in {layer.dtype}",
        "on disk": f"{size(sum(on_disk.values()))} in {counted(len(on_disk), 'tensor')}, "
        f"of {size(sum(files.values()))} in {counted(len(files), 'file')}",
        "tokenizer": _tokenizer(layer),
        **_or_error("blocks", lambda: _blocks(layer)),
        **_or_error("heads", lambda: _heads(layer, source, where) if source else {}),
        **(_unread(layer, source) if source else {}),
        **_or_error("sentence vectors", lambda: _sentences(layer, find, where) if find else {}),
        **_or_error("identity", lambda: {"identity": identity()} if identity else {}),
        **_same_bits(layer),
    }


def _or_error(name: str, compute: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return some facts, or the error that prevents them: the input layer works without them."""
    try:
        return compute()
    except MinibertError as error:
        return {name: f"not available: {error}"}


def _positions(layer: EmbeddingLayer) -> str:
    for step, _ in layer.steps:
        if isinstance(step, Positions):
            counted_tokens = {
                "count": "every token", "padding": "each token but padding", "mask": "each token that is kept",
            }  # fmt: skip
            kind = "learned" if step.generate is None else "sines and cosines"
            first = step.first(layer.config) + step.extra
            return f"added, {kind}; {counted_tokens[step.rule]} counts, from row {first}"
    return "none"


def _in_attention(layer: EmbeddingLayer) -> str:
    scheme = layer.attention_position
    return "none" if scheme is None else f"{scheme.offers} (layer.attention_position)"


def _blocks(layer: EmbeddingLayer) -> dict[str, str]:
    """Describe the blocks by config.json and the headers of the files that are open."""
    row, family = BLOCKS.get(layer.family.model_type), layer.family
    if family is STATIC:
        return {"blocks": "none: a static model is an input layer and nothing else"}
    if row is None:
        return {"blocks": f"not computed: minibert knows only the input layer of {family.model_type}"}
    config = row.configure(family, layer.config, "config.json")
    count, width = row.count(config), row.feed.width(config)
    kinds = sorted({row.attend.sizes(config, i) for i in range(min(count, MOST_BLOCKS))}, reverse=True)
    head_text = " or ".join(
        f"{heads} heads of {head_dim}" + f" that share {counted(key_heads, 'key head')}" * (key_heads < heads)
        for heads, key_heads, head_dim in kinds
    )
    sizes = f"{count}, {head_text}, feed-forward {width} wide, {activation_name(config, row.feed.act)}"
    stored = stored_blocks(layer)
    if not stored:
        return {"blocks": f"{sizes}; their tensors are not in this file, which holds only the input layer"}
    known = [tensor.stop - tensor.start for tensor in stored.values() if tensor is not None]
    some = f"; {counted(len(stored), 'tensor')} in all, some in files not opened for this"
    more = some if len(known) < len(stored) else ""
    return {"blocks": sizes, "blocks on disk": f"{size(sum(known))} in {counted(len(known), 'tensor')}{more}"}


def _heads(layer: EmbeddingLayer, source: Checkpoint, where: str) -> dict[str, str]:
    """Name the heads that the file holds."""
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
    """Name the tensors that minibert does not read, if it computes this family's blocks."""
    from minibert.models.open.binder import unread

    names = unread(layer.family, layer.config, source) if layer.family.model_type in BLOCKS else ""
    return {"not read": names} if names else {}


def _sentences(layer: EmbeddingLayer, find: Find, where: str) -> dict[str, str]:
    """Describe the model's use and the vectors of `encode`."""
    from minibert.models.sentences.folder import USES, FolderFiles, SavedFolder
    from minibert.models.sentences.sentence_config import SentenceConfig

    if layer.family is not STATIC and not stored_blocks(layer):
        return {}
    saved = SavedFolder.read(FolderFiles(find, where))
    row = BLOCKS.get(layer.family.model_type)
    config = SentenceConfig.of(saved, layer, layer.config, None, row.dim(layer.config) if row else layer.dim)
    if config.late:
        return {"made for": f"{USES[config.kind]}, as a {config.kind}", **_late(config), **_prompts(config)}
    if row is not None and row.vector is not None and not config.kind:
        end = f"{row.vector.projection}.weight"
        widths = (tensor.shape[0] for name, tensor in layer.stored().items() if tensor and name.endswith(end))
        config = config._replace(poolings=("lasttoken",), dim=next(widths, layer.dim))
    if config.kind not in ("", "SentenceTransformer"):
        return {"made for": f"{USES[config.kind]}, as a {config.kind}"}
    longest = "no limit" if config.longest is None else f"{config.longest} tokens ({config.longest_from})"
    numbers = f"{config.width()} numbers, {' and '.join(config.poolings)} over a text's tokens"
    return {"sentence vectors": f"{numbers}; by {config.measure}", "longest sentence": longest, **_prompts(config)}


def _late(config: SentenceConfig) -> dict[str, str]:
    """Describe late interaction: which tokens of queries and documents have a vector."""
    assert config.late is not None
    lengths = {task: config.lengths.get(task, config.longest) for task in ("query", "document")}
    lines = {task: "no limit" if most is None else f"at most {most} tokens" for task, most in lengths.items()}
    if filling := config.late.expansion:
        seen = "seen" if filling.attend else "not seen"
        lines["query"] += f", filled up to {filling.length} with {filling.token or 'mask tokens'}, {seen} by the others"
    if config.late.skipped:
        for task in config.late.skips:
            lines[task] = f"{lines.get(task, '')}, without {' '.join(config.late.skipped)}"
    vectors = f"{config.dim} numbers for each token; by {config.measure}"
    return {"token vectors": vectors, "queries": lines["query"], "documents": lines["document"]}


def _prompts(config: SentenceConfig) -> dict[str, str]:
    default = {config.default_prompt: " (if none is named)"}
    prompts = [f"{name} {prompt!r}{default.get(name, '')}" for name, prompt in config.prompts.items() if prompt]
    missing = [task for task in ("query", "document") if not config.prompts.get(task)]
    return {"prompts": ", ".join([*prompts, *([f"none for {' and '.join(missing)}"] if missing else [])])}


def _same_bits(layer: EmbeddingLayer) -> dict[str, str]:
    """State whether the bits of a text's vector depend on the texts around it, with the kernel of this process."""
    from minibert.threads.kernels import kernel

    if not any(tensor is not None and len(tensor.shape) == 2 for tensor in stored_blocks(layer).values()):
        return {}
    current = kernel()
    kept = "always" if current.always else "no" if current.same is None else "with same_bits=True"
    return {"same bits": f"{kept}; BLAS kernel {current.name}"}


def stored_blocks(layer: EmbeddingLayer) -> dict[str, Tensor | None]:
    """Return the blocks' tensors of the layer's checkpoint by name; None for a tensor in a file that is not open."""
    row = BLOCKS.get(layer.family.model_type)
    if row is None:
        return {}
    owned = tuple(prefix + part for prefix in ("", *layer.family.prefixes) for part in row.checked_prefixes)
    named = {name: tensor for name, tensor in layer.stored().items() if name.startswith(owned)}
    return {name: tensor for name, tensor in named.items() if not name.endswith(layer.family.unused_endings)}


def _tokenizer(layer: EmbeddingLayer) -> str:
    another = 'tokenizer.json gives it another: tokenize(a, b, types="file")'
    types = f"; its class gives a second text type 0, as transformers does, but {another}"
    try:
        leaves_out = layer.adds_types and layer.tokenizer.leaves_types_out
        return f"{layer.tokenizer.kind}, {layer.tokenizer.size:,} tokens{types * leaves_out}"
    except MinibertError as error:  # ids work without a tokenizer
        return f"none: {str(error).partition(';')[0]}"
