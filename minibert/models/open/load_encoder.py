"""`load_encoder`: a folder or a Hub name -> an `Encoder`; `open_vectors`: the same for the vectors of many texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from minibert.equations.fast import cut_of_blas
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, UnknownFamilyError, warn
from minibert.families.parts.block_parts import Blocks
from minibert.families.parts.bound_blocks import BoundBlock, fills_panels, lay_out, panel_numbers
from minibert.families.parts.config import Config
from minibert.families.parts.heads import architectures
from minibert.families.parts.modules import Embedding, Linear
from minibert.families.rows import BLOCKS
from minibert.files.checkpoint import INDEX, SINGLE
from minibert.files.reading import sha256_of
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import Heads
from minibert.models.heads.prediction import read_generation
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack
from minibert.models.run.pipeline import TextPipeline
from minibert.models.sentences.sentence_config import AS_THE_FOLDER_SAYS, SentenceConfig, SentenceOptions, accept_habits
from minibert.threads.computing import checked_threads, cores, memory
from minibert.threads.kernels import kernel
from minibert.threads.pool import parallel_for

from .binder import TensorBinder, unread
from .load import ModelFiles, assemble, check_dtype, family_of, load, open_model

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary

NO_BLOCKS = Blocks(parts=())  # a static model is only an input layer
# the end of transformers' class name, after the model_type
REFERENCE_CLASS = re.compile(r"(Text)?(Model|PreTrainedModel|LMHeadModel|DoubleHeadsModel|For[A-Z]\w+)")


def load_encoder(
    name: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    dtype: str = "float32",
    mmap: bool | None = None,
    threads: int | None = None,
    low_memory: bool = False,
    lazy: bool = False,
    same_bits: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    truncate_dim: int | None = None,
    similarity_fn_name: str | None = None,
    max_seq_length: int | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    token: str | None = None,
    **habits: Any,
) -> Encoder:
    """Load a whole model, the input layer and all blocks: a folder, or a name on the Hub.

    A static model (sentence-transformers' StaticEmbedding, model2vec) is only an input layer: it has no blocks and no
    heads, and a text's vector is the mean over its tokens' rows.

    Arguments as in `load`. For a Hub name, all weights are fetched into the Hub's own cache if they are not there yet.
    float32 weights are mapped and not copied; narrower weights are converted once.

    mmap: None, the default, also copies the weights of the blocks' matrix products into memory if NumPy's BLAS has an
    AVX-512 kernel (SkylakeX, Cooperlake; `minibert info` shows the kernel); for sparse vectors the map to words too.
    The copy is laid out so that its products need no packing (`equations.fast.Panels`). It is not made if it needs more
    than half of the memory that this process may use. True only maps the weights: for processes that share one copy,
    and for models larger than memory. False reads the whole file into memory now; the file may change afterwards. The
    bits are the same.

    low_memory: narrow weights (bfloat16, float16) stay mapped as stored. Each thread has one scratch buffer and
    converts a weight to float32 there just before using it; the word table of a head is converted piece by piece. No
    bit of a text's vector changes; the last bits of words drawn one by one may. It saves most of the memory of
    converted weights; one short text takes about 1.3 times as long, one next word twice (`python scripts/bench
    narrow`).

    lazy: for a static model on the Hub, fetch rows when texts use them, as in `load`.

    same_bits: a text has the same vector, to the last bit, alone and in any batch, order and number of threads; the
    same holds for token vectors, logits, scores and sparse weights. With NumPy's BLAS kernels for AVX-512 and AVX this
    is always so. With the kernel for AVX2 it costs time, since each text is padded to a multiple of 12 tokens, and
    float64 is refused; other kernels (Apple's, MKL, ARM) refuse it. `minibert info` shows the kernel. Two machines may
    still have different bits.

    threads: the largest number of threads of a call; None is the number of cores that this process may use (affinity, a
    container's CPU quota, OMP_NUM_THREADS), or MINIBERT_THREADS. NumPy's BLAS is held to one thread meanwhile. Apple's
    BLAS cannot be held: a call then computes on one thread, and BLAS uses its own threads for the products. Overlapping
    calls together use no more threads than there are cores: see `minibert.threads.computing`.

    prompts, default_prompt_name, truncate_dim, similarity_fn_name: as in sentence-transformers' constructors, for every
    later call. They override the folder's settings; prompts of other names stay. If a folder has no prompt "query" or
    "document", `encode_query` and `encode_document` add nothing to a text: many models were trained with a prompt all
    the same, shown on their page on the Hub.

    max_seq_length: see `Encoder`.

    habits: other arguments of sentence-transformers' constructors, if they change nothing: `device="cpu"`,
    `trust_remote_code=False`, `backend="torch"`, `model_kwargs={}`, ... Every other argument is a TypeError.

    Raises as `load`; UnknownFamilyError for a model_type that has an input layer here, but no blocks; CheckpointError
    for modules or settings of sentence vectors that are not computed here; ValueError for `lazy` with blocks, which
    need all weights, for `same_bits` that cannot be kept, and for an option of sentence vectors that this model cannot
    have.
    """
    accept_habits(load_encoder, habits)
    overrides = SentenceOptions(
        prompts, default_prompt_name, truncate_dim, similarity_fn_name, max_seq_length
    ).checked()
    threads = checked_threads(threads)
    check_dtype(dtype)
    files = open_model(
        name, revision=revision, local_files_only=local_files_only, lazy=lazy, mmap=mmap, whole=True,
        saved=True, cache_folder=cache_folder, token=token,
    )  # fmt: skip
    if lazy and not files.static:
        raise ValueError("lazy=True is only for a static model, whose rows can be fetched one by one; leave it out")
    return encoder_of(files, dtype, threads, low_memory, same_bits, overrides)


def encoder_of(
    files: ModelFiles,
    dtype: str = "float32",
    threads: int | None = None,
    low_memory: bool = False,
    same_bits: bool = False,
    overrides: SentenceOptions = AS_THE_FOLDER_SAYS,
) -> Encoder:
    """Build an encoder from its files: see `load_encoder`."""
    family, mmap = family_of(files), files.options["mmap"]
    blocks = NO_BLOCKS if files.static else BLOCKS.get(family.model_type)
    if blocks is None:
        known = f"those with blocks are {', '.join(sorted(BLOCKS))}; minibert.load loads the input layer"
        has = f"model_type {family.model_type!r} has an input layer here, but no blocks"
        raise UnknownFamilyError(f"{files.where}: {has}; {known}")
    place = f"{files.where}: config.json"
    config = family.configure(files.config, place) if files.static else blocks.configure(family, files.config, place)
    source, dtype = files.source(), np.dtype(dtype).name
    layer = assemble(files, source, family, "encoder", dtype, files.reopen(load, dtype=dtype))
    bind = partial(TensorBinder, config, source, family.prefixes, layer.dtype, files.where, low_memory)
    if files.static:
        stack = Stack((), 0, False, "", None, {}, same_bits)
    else:
        stack = _bind(blocks, config, bind(), layer, same_bits)
        if left := unread(family, config, source):
            differ = "if the folder's own code uses them, its vectors differ"
            warn(f"{files.where} has tensors that minibert does not read: {left}; {differ}")
    settings = {**layer.config.read, **config.read}  # before a head is bound, whose settings depend on its use
    # read at first use: `encode` needs no head
    heads = cache(partial(Heads, layer, config, bind(), stack.causal, files.where))
    if mmap is False:  # the file may change later
        heads().read()
    assert files.saved is not None  # both callers had it read
    sentence_config = SentenceConfig.of(files.saved, layer, config, layer.dtype, stack.width(layer.dim))
    if blocks.vector is not None and not sentence_config.kind:
        sentence_config = sentence_config._replace(**blocks.vector.bind(config, bind()))
    if kernel().small:
        words = None
        if sentence_config.result == "sparse":
            with suppress(CheckpointError):  # a file without this head: an error at its use
                words = heads()["masked_word"].last
        _lay_out(stack.blocks, words, mmap is None, threads)
    if stack.causal and not files.static:
        _warn_of_own_code(config, family.model_type, place, "mean" in sentence_config.poolings)
    options: dict[str, Any] = dict(dtype=dtype, threads=threads, low_memory=low_memory, same_bits=same_bits)
    reopen = files.reopen(load_encoder, **options, **overrides.passed())
    encoder = Encoder(
        layer, blocks, stack, config, heads, threads, reopen=reopen,
        sentence_config=overrides.applied_to(sentence_config),
        ends=cache(partial(read_generation, files.find, files.config, files.where)), settings=settings,
    )  # fmt: skip
    if overrides.max_seq_length is not None:
        encoder.max_seq_length = overrides.max_seq_length
    return encoder


class TextModel(NamedTuple):
    """A model for the vectors of many texts, its files, and the pipeline from texts to vectors."""

    model: Encoder
    opened: ModelFiles
    pipeline: TextPipeline

    @property
    def result(self) -> str:
        """The result for a text: one "dense" or "sparse" vector, or one vector for each of its "tokens"."""
        return self.model.result

    @property
    def width(self) -> int:
        """The width of each vector, whether of a text or of a token."""
        if self.result == "sparse":
            return len(self.model.embeddings.word_embeddings.weight)
        return self.model.get_embedding_dimension()

    @property
    def compared(self) -> dict[str, Any]:
        """The measure, a name in `SIMILARITIES` (for tokens in `MAXSIMS`), and whether vectors have length 1."""
        sentence_config = self.model.sentence_config
        return {"similarity": sentence_config.measure, "normalized": sentence_config.normalizes()}

    def named_in(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry of a shard that names this model: its identity; in older shards the sha256 of its files."""
        return {"model_sha256": self.sha256()} if "model_sha256" in metadata else {"identity": self.model.identity}

    def sha256(self) -> dict[str, str]:
        """Return the sha256 of each file that was found while opening the model, and so of every file read."""
        opened, source = self.opened, self.opened.source()
        try:
            shards = {source.tensor(name).file for name in source.names}
        finally:
            source.close()
        for file in shards:
            name = os.path.basename(file)
            if opened.find(name) is None:  # a folder with only an adapter: take the base's file
                opened.files.found[name] = file
        if not opened.find(SINGLE):
            opened.find(INDEX)
        return {name: sha256_of(path) for name, path in sorted(opened.files.found.items())}


def open_vectors(
    name: str | os.PathLike[str] | None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    overrides: SentenceOptions = AS_THE_FOLDER_SAYS,
    revision: str | None = None,
    local_files_only: bool = False,
    threads: int | None = None,
    same_bits: bool = False,
    mmap: bool | None = None,
) -> TextModel:
    """Open a model for the vectors of many texts.

    It is opened from whole files on this machine's disk, fetched first if they are on the Hub: all processes of a
    machine then share one map of the weights.

    overrides, threads, same_bits, mmap: see `load_encoder`; here no bit of a vector depends on `threads`. Raises as
    `load_encoder`.
    """
    threads = checked_threads(threads)
    opened = open_model(name, revision=revision, local_files_only=local_files_only, mmap=mmap, whole=True, saved=True)
    encoder = encoder_of(opened, same_bits=same_bits, overrides=overrides.checked())
    prompts, task = encoder.sentence_config.prompts, None
    if encoder.result != "dense":  # these models encode queries and documents differently
        task = "document"
        prompt_name = task if prompt_name is None and prompt is None and task in prompts else prompt_name
    pipeline = encoder.pipeline(prompt_name, prompt, task=task, threads=threads, single_threaded=True)
    return TextModel(encoder, opened, pipeline)


def _warn_of_own_code(config: Config, kind: str, place: str, by_mean: bool) -> None:
    """Warn if a causal model's class is in the folder's own code, which is not run."""
    names, begin = architectures(config), kind.partition("_")[0]
    known = [name for name in names if name.lower().startswith(begin) and REFERENCE_CLASS.fullmatch(name[len(begin) :])]
    if not config.get("auto_map") or len(known) == len(names):
        return
    foreign = next(name for name in names if name not in known)
    why = f"as {foreign} says" if "Bidirectional" in foreign else "as a mean over tokens suggests" if by_mean else ""
    hint = f'; if each token sees all others, {why}, set "is_causal": false in config.json' if why else ""
    warn(
        f"{place} names the folder's own code for {foreign} ('auto_map'), which is not run: the model is computed as "
        f"transformers' {kind}, in which no token sees those after it{hint}"
    )


def _bind(
    blocks: Blocks,
    config: Config,
    binder: TensorBinder,
    layer: EmbeddingLayer,
    same_bits: bool,
) -> Stack:
    bias = f"{blocks.relative.format(i=0)}.weight"  # a file of the input layer has it too
    if all(name.endswith(bias) and blocks.relative for name in binder.stored_under(blocks.begins)):
        problem = "there is no tensor of the blocks, only the input layer, as after `extract`"
        raise CheckpointError(f"{binder.where}: {problem}; name the whole model; minibert.load loads the input layer")
    scheme = layer.attention_position
    bound = blocks.bind_all(config, binder, scheme)
    others = blocks.last_norm.bound(config, binder, "", config.integer("hidden_size"))
    for path in dict.fromkeys(blocks.relative.format(i=i) for i in range(len(bound)) if blocks.relative):
        sizes = config.integer("relative_attention_num_buckets"), config.integer("num_attention_heads")
        others[path] = Embedding(binder.table((f"{path}.weight",), sizes))
    others |= blocks.others(config, binder)
    rotated = any(block.attention.rotated for block in bound)
    rotary = cast("Rotary | None", scheme if rotated else None)
    heads, causal = config.integer("num_attention_heads"), blocks.is_causal(config)
    binder.expect()
    stack = Stack(bound, heads, causal, blocks.last_norm.path, rotary, others, same_bits, blocks.last_map)
    binder.refuse_leftovers(blocks.checked_prefixes, layer.family.unused_endings, "the blocks")
    return stack


def _lay_out(blocks: tuple[BoundBlock, ...], words: Linear | None, copied: bool, threads: int | None) -> None:
    """Lay out the weights of matrix products as panels, on up to `threads` threads: see `equations.fast.Panels`.

    words: the map to a word's logits, if it is computed for each token of each text, as for sparse vectors. Other
    heads compute few rows or few outputs.
    copied: also weights that must be copied for this, if all together need at most half of this process's memory.
    """
    shared: dict[int, list[Linear]] = {}  # a weight -> its linear layers: blocks may share a module
    for module in (module for block in blocks for module in block.modules.values()):
        if isinstance(module, Linear):
            shared.setdefault(id(module.source), []).append(module)
    halved = {id(block.modules[ffn.up].source) for block in blocks if (ffn := block.feed_forward).up == ffn.gate}
    if not all(fills_panels(maps[0], weight in halved) for weight, maps in shared.items()):
        shared = {}  # a run uses panels for all products of blocks or for none
    if words and words.dtype == np.float32 and not words.stored:
        shared[id(words.source)] = [words]
    sizes = {weight: panel_numbers(maps[0]) for weight, maps in shared.items() if not maps[0].column_major}
    parts: dict[int, Array] = {}  # a weight -> the memory for its copy
    if copied and sizes and sum(sizes.values()) * np.dtype(np.float32).itemsize <= memory() // 2:
        # one large buffer, since NumPy asks the system for huge pages from 4 MiB on, and from the beginning of a cache
        # line of 64 bytes: a short text's products then take two thirds of the time
        buffer = np.empty(sum(sizes.values()) + 16, np.float32)
        begin = -buffer.ctypes.data % 64 // buffer.itemsize
        for weight, size in sizes.items():
            parts[weight] = buffer[begin : (begin := begin + size)]
    laid = [weight for weight, maps in shared.items() if weight in parts or maps[0].column_major]
    if laid and cut_of_blas():  # else their bits would not be those of products without panels
        count = cores() if threads is None else threads
        parallel_for(lambda weight: lay_out(shared[weight], parts.get(weight)), laid, count)
