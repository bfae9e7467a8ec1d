"""`load_encoder`: a folder or a Hub name -> an `Encoder`, put together from its parts."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from minibert.errors import CheckpointError, UnknownFamilyError, warn
from minibert.families.parts.block_parts import Blocks
from minibert.families.parts.bound_blocks import BoundBlock, Dense, lay_out
from minibert.families.parts.config import Config
from minibert.families.parts.heads import architectures
from minibert.families.parts.modules import Embedding
from minibert.families.rows import BLOCKS
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import Heads
from minibert.models.heads.prediction import read_generation
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack
from minibert.models.sentences.sentence_config import (
    AS_THE_FOLDER_SAYS,
    SentenceConfig,
    SentenceOptions,
    accept_habits,
)
from minibert.threads.cores import cores, memory
from minibert.threads.kernels import kernel
from minibert.threads.pool import checked_threads, parallel_for

from .binder import TensorBinder, unread
from .load import Opened, assemble, check_dtype, family_of, load, named_model, open_model

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary

NO_BLOCKS = Blocks(parts=())  # behind the rows of a static model
# how the reference's classes of a model_type go on after its name
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

    A static model (sentence-transformers' StaticEmbedding, model2vec) is an input layer and nothing else: it has no
    blocks and no heads, and a text's vector is the mean over its tokens' rows.

    Arguments as of `load`. For a Hub name all weights are fetched into the Hub's own cache, unless they are there.
    float32 weights are mapped and not copied; narrower ones are converted once.

    mmap: with an AVX-512 kernel of NumPy's BLAS (SkylakeX, Cooperlake; `minibert info` names the kernel) None, the
    default, also copies the weights of the blocks' products into memory, laid out so that a text of up to 32 tokens is
    computed without packing them anew (`equations.fast.Panels`), unless they take more than half of the memory that
    this process may use. True leaves them mapped alone: for processes that share one copy, and for a model that is
    larger than memory. False reads the whole file into memory now: it may change afterwards. The bits are the same.

    low_memory: narrow weights (bfloat16, float16) stay mapped as they are stored. Each thread has one scratch
    buffer; a weight is converted to float32 there just before it is used. A head's words are converted piece by piece.
    No bit of a text's numbers changes; of words drawn one by one, the last bits. At the size of Qwen3-Embedding-0.6B,
    on two cores: 0.24 GB of memory beyond the mapped file of 1.2 GB, where converted weights take 1.9 GB; many texts
    take about the same time, one short text 1.3 times, one next word 2.1 (`python scripts/bench weights`).

    lazy: of a static model on the Hub, fetch rows when texts ask for them, as `load` does.

    same_bits: a text has the same vector, to the last bit, alone and in any batch, order and number of threads; so have
    its token vectors, logits, scores and sparse weights. With two of three kernels of NumPy's BLAS (for AVX-512 and
    AVX) vectors always have. With the third (AVX2) it costs time: each text is filled up to a multiple of 12 tokens; it
    is refused there for float64, and with other kernels (Apple's, MKL, ARM). `minibert info` says which this is. Two
    machines may have different bits all the same.

    threads: the largest number of threads on which a call computes; None is as many as there are cores for this process
    (affinity, a container's CPU quota, OMP_NUM_THREADS), or what the variable MINIBERT_THREADS says. NumPy's BLAS is
    held to one thread meanwhile, which Apple's cannot be: there a call computes on one thread, and its products on as
    many as BLAS takes. Calls that overlap take no more threads than there are cores in all: see
    `minibert.threads.computing`.

    prompts, default_prompt_name, truncate_dim, similarity_fn_name: as of sentence-transformers' constructors, for every
    later call. They go before what the folder says; its prompts of other names stay. A folder without a prompt "query"
    or "document" puts nothing before the texts of `encode_query` and `encode_document`: many models were trained with
    one all the same, which their page on the Hub shows.

    max_seq_length: as of `Encoder`.

    habits: other arguments of sentence-transformers' constructors, where they change nothing: `device="cpu"`,
    `trust_remote_code=False`, `backend="torch"`, `model_kwargs={}`, ... Any other is a TypeError.

    Raises as `load`; UnknownFamilyError for a model_type that has an input layer here, but no blocks; CheckpointError
    for modules.json or other settings of sentence vectors that ask for what is not computed here; ValueError for `lazy`
    with blocks, whose weights are all needed, where `same_bits` cannot be kept, and for an option of sentence vectors
    that this model cannot have.
    """
    accept_habits(load_encoder, habits)
    check_dtype(dtype)
    asked = SentenceOptions(prompts, default_prompt_name, truncate_dim, similarity_fn_name, max_seq_length).checked()
    threads = checked_threads(threads)
    opened = open_model(named_model(name), revision, local_files_only, lazy, mmap, True, True, cache_folder, token)
    if lazy and not opened.static:
        raise ValueError("lazy=True is for a static model, whose rows can be fetched one by one; leave it out")
    return encoder_of(opened, dtype, threads, low_memory, same_bits, asked)


def encoder_of(
    opened: Opened,
    dtype: str = "float32",
    threads: int | None = None,
    low_memory: bool = False,
    same_bits: bool = False,
    asked: SentenceOptions = AS_THE_FOLDER_SAYS,
) -> Encoder:
    """Put a whole model together from its opened parts: see `load_encoder`."""
    family, mmap = family_of(opened), opened.options["mmap"]
    blocks = NO_BLOCKS if opened.static else BLOCKS.get(family.model_type)
    if blocks is None:
        raise UnknownFamilyError(
            f"{opened.where}: model_type {family.model_type!r} has an input layer here, but no blocks; those with "
            f"blocks are {', '.join(sorted(BLOCKS))}; minibert.load loads the input layer"
        )
    place = f"{opened.where}: config.json"
    config = family.configure(opened.config, place) if opened.static else blocks.configure(family, opened.config, place)
    source, dtype = opened.source(), np.dtype(dtype).name
    layer = assemble(opened, source, family, "encoder", dtype, opened.again(load, dtype=dtype))
    bind = partial(TensorBinder, config, source, family.prefixes, layer.dtype, opened.where, low_memory)
    if opened.static:
        stack = Stack((), 0, False, "", None, {}, same_bits)
    else:
        stack = _bind(blocks, config, bind(), layer, same_bits, mmap, threads)
        if left := unread(family, config, source):
            warn(
                f"{opened.where} has tensors that minibert does not read: {left}; a model whose own code uses them "
                "has other vectors"
            )
    # found when they are asked for: `encode` needs none
    heads = cache(partial(Heads, layer, config, bind(), stack.causal, opened.where))
    if mmap is False:  # a file that may change later is read now
        heads().read()
    sentences = SentenceConfig.of(opened.saved, layer, config, layer.dtype)
    if blocks.vector is not None and not sentences.kind:
        sentences = sentences._replace(**blocks.vector.bind(config, bind()))
    if stack.causal and not opened.static:
        _warn_of_own_code(config, family.model_type, place, "mean" in sentences.poolings)
    options: dict[str, Any] = dict(dtype=dtype, threads=threads, low_memory=low_memory, same_bits=same_bits)
    reopen = opened.again(load_encoder, **options, **asked.given())
    encoder = Encoder(
        layer, blocks, stack, config, heads, threads, again=reopen, sentence_config=asked.applied_to(sentences),
        ends=cache(partial(read_generation, opened.find, opened.config, opened.where)),
    )  # fmt: skip
    if asked.max_seq_length is not None:
        encoder.max_seq_length = asked.max_seq_length
    return encoder


def _warn_of_own_code(config: Config, kind: str, place: str, by_mean: bool) -> None:
    """Warn where a causal model's class is one of the folder's own code, which is not run."""
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
    mmap: bool | None,
    threads: int | None,
) -> Stack:
    bias = f"{blocks.relative.format(i=0)}.weight"  # which a file of the input layer has too
    if all(name.endswith(bias) and blocks.relative for name in binder.stored_under(blocks.begins)):
        raise CheckpointError(
            f"{binder.where}: there is no tensor of the blocks, only the input layer, as after `extract`; "
            "name the whole model; minibert.load loads the input layer"
        )
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
    if kernel().small:
        _lay_out(bound, mmap is None, threads)
    stack = Stack(bound, heads, causal, blocks.last_norm.path, rotary, others, same_bits)
    binder.refuse_leftovers(blocks.checked_prefixes, layer.family.unused_endings, "the blocks")
    return stack


def _lay_out(blocks: tuple[BoundBlock, ...], copied: bool, threads: int | None) -> None:
    """Lay the weights of products out as panels, on up to `threads` threads: see `equations.fast.Panels`.

    copied: also weights that have to be copied for it, if all take at most half of the memory of this process.
    """
    shared: dict[int, list[Dense]] = {}  # a weight -> the maps that have it: blocks may share a module
    for module in (module for block in blocks for module in block.modules.values()):
        if isinstance(module, Dense):
            shared.setdefault(id(module.source), []).append(module)
    halved = {id(block.modules[own.up].source) for block in blocks if (own := block.feed_forward).up == own.gate}
    size = sum(math.prod(maps[0].shape) * maps[0].dtype.itemsize for maps in shared.values())
    copied = copied and size <= memory() // 2
    parallel_for(
        lambda weight: lay_out(shared[weight], weight in halved, copied),
        [*shared],
        cores() if threads is None else threads,
    )
