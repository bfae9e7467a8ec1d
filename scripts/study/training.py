"""Train the GPT-2 of 007: words as ids, random weights, loss and gradient, the steps, the saved folder.

The formulas are `minibert.equations`: `gpt2_model` forward, `gpt2_model_gradient` backward, `adam` for the step. All
weights are one long vector, and each array of the model is a view into it, so that one step of Adam moves them all.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from block_gradients import cross_entropy_gradient
from model_gradients import adam, gpt2_model_gradient

from minibert.equations.blocks import Affine, Block, Linear
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import Gpt2Weights, gpt2_model
from minibert.threads.computing import compute

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHIPPED = Path(__file__).resolve().parent / "gpt2-words"
END = "<|endoftext|>"  # before a word and after it, as between texts in GPT-2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = 1 + len(LETTERS)
POSITIONS, DIM, BLOCKS, HEADS = 16, 64, 3, 4
LONGEST = POSITIONS - 1  # letters; 14 of 21,719 words are longer
STEPS, BATCH, RATE, WARM_UP = 2000, 128, 3e-3, 100


class Sizes(NamedTuple):
    """The sizes of a GPT-2: those of `gpt2-words`, or of another one that is trained in the same way."""

    vocab: int = VOCAB
    positions: int = POSITIONS
    dim: int = DIM
    blocks: int = BLOCKS


SIZES = Sizes()


class Words(NamedTuple):
    """Words as rows: ids (words, 16) has the end token and the letters, targets the letters and the end token.

    `counts` is True for each target that counts; the rest of a row is padding.
    """

    ids: Array
    targets: Array
    counts: Array

    def of(self, rows: Array) -> Words:
        """Select these words, with as many columns as the longest needs."""
        width = int(np.flatnonzero(self.counts[rows].any(axis=0))[-1]) + 1
        return Words(*(each[rows, :width] for each in self))


def words() -> list[str]:
    """Read `words.txt`, the result of `whole_words` for all-MiniLM-L6-v2's vocabulary."""
    return (SHIPPED.parent / "words.txt").read_text("utf-8").split()


def whole_words(tokens: Sequence[str]) -> list[str]:
    """Select the words among a vocabulary's tokens: 2 to 15 letters and nothing else, in the vocabulary's order."""
    return [token for token in tokens if re.fullmatch(f"[a-z]{{2,{LONGEST}}}", token)]


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words: every tenth is kept for testing."""
    return [word for i, word in enumerate(words) if i % 10], list(words[::10])


def as_ids(words: Sequence[str]) -> Words:
    """Map each letter to its id, 1 to 26; the end token and padding have 0."""
    ids = np.zeros((len(words), POSITIONS + 1), np.int64)
    for row, word in zip(ids, words, strict=True):
        row[1 : len(word) + 1] = [LETTERS.index(letter) + 1 for letter in word]
    lengths = np.array([[len(word)] for word in words])
    return Words(ids[:, :-1], ids[:, 1:], np.arange(POSITIONS) <= lengths)


@cache
def random_model(seed: int = 0, sizes: Sizes = SIZES) -> Gpt2Weights:
    """Draw a GPT-2 before training: normal noise, biases 0, norms 1 and 0.

    As in GPT-2 the noise is 0.02 wide, and narrower for maps that add to the residual stream. A model is drawn once,
    since `model_of` asks for its shapes at each step: do not write into it.
    """
    random, dim = np.random.default_rng(seed), sizes.dim
    tables = drawn(random, sizes.vocab, dim, 0.02), drawn(random, sizes.positions, dim, 0.02)
    norm, last = Affine(np.ones(dim, np.float32), np.zeros(dim, np.float32)), 0.02 / math.sqrt(2 * sizes.blocks)

    def dense(out: int, into: int, width: float = 0.02) -> Linear:
        return Linear(drawn(random, out, into, width), np.zeros(out, np.float32))

    def block() -> Block:
        query, key, value = (dense(dim, dim) for _ in range(3))
        output, up, down = dense(dim, dim, last), dense(4 * dim, dim), dense(dim, 4 * dim, last)
        return Block(query, key, value, output, norm, up, down, norm)

    return Gpt2Weights(*tables, [block() for _ in range(sizes.blocks)], norm)


def drawn(random: np.random.Generator, out: int, into: int, width: float) -> Array:
    return (width * random.standard_normal((out, into))).astype(np.float32)


def random_weights(seed: int = 0, sizes: Sizes = SIZES) -> Array:
    """Draw one vector with all weights of a GPT-2 before training."""
    return vector_of(random_model(seed, sizes))


def model_of(vector: Array, sizes: Sizes = SIZES) -> Gpt2Weights:
    """Split the vector into the model's arrays: views, in the order of `vector_of`."""
    model: Gpt2Weights = parted_like(vector, random_model(sizes=sizes))
    return model


def parted_like(vector: Array, like: Any) -> Any:
    """Split a vector into arrays with the shapes of a model's: views."""
    if isinstance(like, np.ndarray):
        return vector.reshape(like.shape)
    ends = np.cumsum([sum(x.size for x in arrays_of(part)) for part in like])
    parts = [parted_like(*each) for each in zip(np.split(vector, ends[:-1]), like, strict=True)]
    return parts if isinstance(like, list) else type(like)(*parts)


def arrays_of(weights: Any) -> list[Array]:
    """List the arrays of a model, or of its gradient, from the first table to the last norm."""
    return [weights] if isinstance(weights, np.ndarray) else [x for part in weights for x in arrays_of(part)]


def vector_of(weights: Any) -> Array:
    """Join the arrays of a model, or of its gradient, to one vector."""
    return np.concatenate([x.ravel() for x in arrays_of(weights)])


def losses(model: Gpt2Weights, words: Words) -> Array:
    """Compute the cross-entropy of each letter and of each word's end, in nats: (letters,)."""
    logits = gpt2_model(words.ids, np.ones_like(words.ids), model, HEADS)
    return cross_entropy(logits, words.targets)[words.counts]


def loss_and_gradient(vector: Array, words: Words, places: int, sizes: Sizes = SIZES) -> tuple[float, Array]:
    """Compute the sum of the losses divided by `places`, and its gradient."""
    model = model_of(vector, sizes)
    logits = gpt2_model(words.ids, np.ones_like(words.ids), model, HEADS)
    loss = cross_entropy(logits, words.targets)[words.counts].sum() / places
    share = words.counts.astype(logits.dtype) / logits.dtype.type(places)  # padding has no share in the mean
    grad = cross_entropy_gradient(share, logits, words.targets)
    return float(loss), vector_of(gpt2_model_gradient(grad, words.ids, model, HEADS))


def rate_at(step: int, steps: int) -> float:
    """Compute a step's learning rate: it rises linearly for 100 steps, then falls along a cosine to a tenth."""
    done = step / steps
    return RATE * min(step / WARM_UP, 1.0) * (0.55 + 0.45 * math.cos(math.pi * done))


def batch_gradient(vector: Array, words: Words, rows: Array, sizes: Sizes = SIZES) -> tuple[float, Array]:
    """Compute the mean loss over the letters of these words, and its gradient.

    Two halves of the words are computed at the same time, each with one thread of BLAS, by `minibert.threads`. On one
    core the halves are computed one after the other, to the same bits.
    """
    places = int(words.counts[rows].sum())
    found: dict[int, tuple[float, Array]] = {}

    def half(i: int) -> None:
        found[i] = loss_and_gradient(vector, words.of(rows[i::2]), places, sizes)

    compute(half, range(2), blas="held")
    return found[0][0] + found[1][0], found[0][1] + found[1][1]


def train(
    vector: Array, words: Words, steps: int = STEPS, batch: int = BATCH, sizes: Sizes = SIZES
) -> Iterator[tuple[float, Array]]:
    """Yield after each step, of `batch` rows of words, the loss before it and the weights after it."""
    random = np.random.default_rng(0)
    mean, square = np.zeros_like(vector), np.zeros_like(vector)
    for step in range(1, steps + 1):
        rows = random.choice(len(words.ids), batch, replace=False)
        loss, gradient = batch_gradient(vector, words, rows, sizes)
        vector, mean, square = adam(vector, gradient, mean, square, step, rate_at(step, steps))
        yield loss, vector


def tensors_of(model: Gpt2Weights) -> dict[str, Array]:
    """Name the arrays as in GPT-2's files; weights as (in, out), query, key and value side by side."""
    named = {"wte.weight": model.wte, "wpe.weight": model.wpe}
    for i, block in enumerate(model.blocks):
        three = block.query, block.key, block.value
        together = Linear(np.concatenate([one.weight for one in three]), np.concatenate([one.bias for one in three]))
        maps = {"attn.c_attn": together, "attn.c_proj": block.output, "mlp.c_fc": block.up, "mlp.c_proj": block.down}
        for name, (weight, bias) in maps.items():
            named |= {f"h.{i}.{name}.weight": weight.T, f"h.{i}.{name}.bias": bias}
        for name, (weight, bias) in {"ln_1": block.norm_1, "ln_2": block.norm_2}.items():
            named |= {f"h.{i}.{name}.weight": weight, f"h.{i}.{name}.bias": bias}
    named |= {"ln_f.weight": model.last_norm.weight, "ln_f.bias": model.last_norm.bias}
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "vocab_size": VOCAB,
    "n_embd": DIM, "n_positions": POSITIONS, "n_layer": BLOCKS, "n_head": HEADS, "layer_norm_epsilon": 1e-5,
    "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True, "dtype": "float32",
}  # fmt: skip


def save(model: Gpt2Weights, folder: Path) -> Path:
    """Write a checkpoint that any reader of GPT-2 opens: weights, config and tokenizer."""
    from tokenizers import decoders

    tokenizer = tokenizer_of_letters((END,), END, f"{END} $A")
    tokenizer.decoder = decoders.Fuse()
    named = {"bos_token": END, "eos_token": END, "unk_token": END}
    return save_checkpoint(folder, tensors_of(model), CONFIG, tokenizer, named)


def save_checkpoint(
    folder: Path, tensors: dict[str, Array], config: dict[str, Any], tokenizer: Tokenizer, named: dict[str, str]
) -> Path:
    """Write the weights, the config, and the tokenizer, whose special tokens are `named`."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    longest = config.get("n_positions", config.get("max_position_embeddings"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **named, "model_max_length": longest}
    about["clean_up_tokenization_spaces"] = False
    for name, content in {"config.json": config, "tokenizer_config.json": about}.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tokenizer_of_letters(special: Sequence[str], unknown: str, around: str) -> Tokenizer:
    """Make a tokenizer of letters: `unknown` replaces all other characters, `around` a text stand special tokens."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

    vocab = {token: i for i, token in enumerate((*special, *LETTERS))}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[], unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    ends = [(token, vocab[token]) for token in around.split() if token in vocab]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ends)
    return tokenizer
