"""`bert-words` was trained here: a small BERT whose tokens are letters, some of them hidden.

    python scripts/study/masked.py      a few minutes on two cores; writes bert-words in build/study/

It learns the words of `training.py`, in the same two parts. The formulas are `minibert.equations`, forward and
backward, and `adam` for the step. BERT's paper leaves some of the hidden letters unchanged; here `[MASK]` replaces each
of them. gelu is computed with tanh, as in GPT-2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import block_gradients as backward
import numpy as np
import training
from gradients import bert_input_gradient, layer_norm_gradient
from model_gradients import adam
from training import vector_of

from minibert.equations.activations import gelu_tanh
from minibert.equations.blocks import (
    Affine,
    Block,
    Linear,
    additive_mask,
    feed_forward,
    linear,
    post_norm_block,
    self_attention,
)
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array, bert_input, layer_norm
from minibert.equations.whole_models import BertWeights

SHIPPED = Path(__file__).resolve().parent / "bert-words"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
VOCAB = len(SPECIAL) + len(training.LETTERS)
POSITIONS, DIM, BLOCKS, HEADS, EPS = training.LONGEST + 2, 32, 2, 4, 1e-12
STEPS, BATCH, HIDDEN = 2500, 128, 0.2


class Masked(NamedTuple):
    """Words with hidden letters: the ids that the model sees, the true ids, and a mask of the hidden; (words, seq)."""

    ids: Array
    targets: Array
    hidden: Array


def as_ids(words: Sequence[str]) -> Array:
    """Convert each word to ids: `[CLS]`, the letters, `[SEP]`, and padding: (words, 17)."""
    ids = np.full((len(words), POSITIONS), PAD)
    for row, word in zip(ids, words, strict=True):
        row[: len(word) + 2] = [CLS, *(len(SPECIAL) + training.LETTERS.index(letter) for letter in word), SEP]
    return ids


def masked(ids: Array, random: np.random.Generator) -> Masked:
    """Hide each letter with probability 1/5, and at least one letter of a word."""
    chance = np.where(ids >= len(SPECIAL), random.random(ids.shape), 1.0)
    hidden = chance <= np.maximum(HIDDEN, chance.min(axis=1, keepdims=True))
    return Masked(np.where(hidden, MASK, ids), ids, hidden)


def one_hidden(ids: Array) -> Masked:
    """Repeat each word once for each letter, and hide that letter."""
    words, places = np.nonzero(ids >= len(SPECIAL))
    hidden = np.arange(POSITIONS) == places[:, None]
    return Masked(np.where(hidden, MASK, ids[words]), ids[words], hidden)


def random_weights(
    seed: int = 0, vocab: int = VOCAB, positions: int = POSITIONS, dim: int = DIM, blocks: int = BLOCKS
) -> BertWeights:
    """Draw a BERT before training: normal noise, 0.02 wide in tables and 0.1 in maps, biases 0, norms 1 and 0."""
    random = np.random.default_rng(seed)

    def dense(out: int, into: int) -> Linear:
        return Linear(training.drawn(random, out, into, 0.1), np.zeros(out, np.float32))

    norm = Affine(np.ones(dim, np.float32), np.zeros(dim, np.float32))
    square, up, down = (dim, dim), (4 * dim, dim), (dim, 4 * dim)
    made = [Block(*(dense(*square) for _ in range(4)), norm, dense(*up), dense(*down), norm) for _ in range(blocks)]
    tables = [training.drawn(random, rows, dim, 0.02) for rows in (vocab, 2, positions)]
    return BertWeights(*tables, norm, made, dense(*square), norm, np.zeros(vocab, np.float32))


def model_of(vector: Array) -> BertWeights:
    """Split a vector into the arrays of a model: views, in the order of `vector_of`."""
    model: BertWeights = training.parted_like(vector, random_weights())
    return model


class Forward(NamedTuple):
    """Values of the forward pass that the backward pass needs: each block's input, the head's numbers at the masks."""

    entered: list[Array]
    taken: Array
    inner: Array
    last: Array
    logits: Array


def forward(weights: BertWeights, words: Masked) -> Forward:
    """Compute the logits of only the hidden letters."""
    types, mask = np.zeros_like(words.ids), _mask(words)
    x = bert_input(words.ids, types, weights.word, weights.token_type, weights.position, *weights.norm, EPS)
    entered = []
    for block in weights.blocks:
        entered.append(x)
        x = post_norm_block(x, block, HEADS, EPS, gelu_tanh, mask)
    taken = x[words.hidden]  # (letters, dim)
    inner = linear(taken, *weights.transform)
    last = layer_norm(gelu_tanh(inner), *weights.transform_norm, EPS)
    return Forward(entered, taken, inner, last, linear(last, weights.word, weights.bias))


def _mask(words: Masked) -> Array:
    return additive_mask((words.ids != PAD)[:, None, None, :])


def losses(weights: BertWeights, words: Masked) -> Array:
    """Compute the cross-entropy of each hidden letter, in nats: (letters,)."""
    return cross_entropy(forward(weights, words).logits, words.targets[words.hidden])


def block_gradient(grad: Array, x: Array, block: Block, mask: Array) -> tuple[Array, Block]:
    """Backward of `post_norm_block`: each norm, then the sum, which passes its gradient to x and to the sublayer."""
    added = x + self_attention(x, block, HEADS, mask)
    middle = layer_norm(added, *block.norm_1, EPS)
    worked = middle + feed_forward(middle, block.up, block.down, gelu_tanh)
    norm_2 = layer_norm_gradient(grad, worked, block.norm_2.weight, EPS)
    work = backward.feed_forward_gradient(norm_2.x, middle, block.up, block.down)
    norm_1 = layer_norm_gradient(norm_2.x + work.x, added, block.norm_1.weight, EPS)
    look = backward.self_attention_gradient(norm_1.x, x, block, HEADS, mask)
    own = Block(
        query=look.query, key=look.key, value=look.value, output=look.output, up=work.up, down=work.down,
        norm_1=Affine(norm_1.weight, norm_1.bias), norm_2=Affine(norm_2.weight, norm_2.bias),
    )  # fmt: skip
    return norm_1.x + look.x, own


def loss_and_gradient(weights: BertWeights, words: Masked) -> tuple[float, BertWeights]:
    """Compute the mean loss of the hidden letters, and its gradient: head, blocks and tables backward."""
    entered, taken, inner, last, logits = forward(weights, words)
    targets = words.targets[words.hidden]
    share = np.full(len(targets), 1 / len(targets), logits.dtype)
    decoder = backward.linear_gradient(backward.cross_entropy_gradient(share, logits, targets), last, weights.word)
    head_norm = layer_norm_gradient(decoder.x, gelu_tanh(inner), weights.transform_norm.weight, EPS)
    dense = backward.linear_gradient(backward.gelu_tanh_gradient(head_norm.x, inner), taken, weights.transform.weight)
    grad, found = np.zeros_like(entered[0]), list[Block]()
    grad[words.hidden] = dense.x
    for block, before in zip(reversed(weights.blocks), reversed(entered), strict=True):
        grad, own = block_gradient(grad, before, block, _mask(words))
        found.insert(0, own)
    tables = weights.word, weights.token_type, weights.position
    rows = bert_input_gradient(grad, words.ids, np.zeros_like(words.ids), *tables, weights.norm.weight, EPS)
    gradient = BertWeights(
        rows.word + decoder.weight, rows.token_type, rows.position, Affine(rows.weight, rows.bias), found,
        Linear(dense.weight, dense.bias), Affine(head_norm.weight, head_norm.bias), decoder.bias,
    )  # fmt: skip
    return float(cross_entropy(logits, targets).mean()), gradient


def train(ids: Array, steps: int = STEPS, seed: int = 0) -> Iterator[tuple[float, Array]]:
    """Yield after each step the loss before it and the weights after it, as one vector."""
    random, vector = np.random.default_rng(seed), vector_of(random_weights(seed))
    mean, square = np.zeros_like(vector), np.zeros_like(vector)
    for step in range(1, steps + 1):
        rows = ids[random.choice(len(ids), BATCH, replace=False)]
        rows = rows[:, : int((rows != PAD).sum(axis=1).max())]
        loss, gradient = loss_and_gradient(model_of(vector), masked(rows, random))
        vector, mean, square = adam(vector, vector_of(gradient), mean, square, step, training.rate_at(step, steps))
        yield loss, vector


CONFIG = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu_new", "vocab_size": VOCAB,
    "hidden_size": DIM, "max_position_embeddings": POSITIONS, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
    "intermediate_size": 4 * DIM, "type_vocab_size": 2, "layer_norm_eps": EPS, "pad_token_id": PAD,
    "tie_word_embeddings": True, "dtype": "float32",
}  # fmt: skip


def tensors_of(weights: BertWeights) -> dict[str, Array]:
    """Name the arrays as in BERT's files."""
    inputs, head = "bert.embeddings", "cls.predictions"
    maps = {f"{inputs}.LayerNorm": weights.norm, f"{head}.transform.dense": weights.transform}
    maps[f"{head}.transform.LayerNorm"] = weights.transform_norm
    parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
             "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")  # fmt: skip
    for i, block in enumerate(weights.blocks):
        maps |= {f"bert.encoder.layer.{i}.{name}": part for name, part in zip(parts, block, strict=True)}
    named = {f"{inputs}.word_embeddings.weight": weights.word, f"{head}.bias": weights.bias}
    named |= {f"{inputs}.token_type_embeddings.weight": weights.token_type}
    named |= {f"{inputs}.position_embeddings.weight": weights.position}
    for name, (weight, bias) in maps.items():
        named |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def save(weights: BertWeights, folder: Path) -> Path:
    """Write a checkpoint that any reader of BERT opens: weights, config and tokenizer."""
    tokenizer = training.tokenizer_of_letters(SPECIAL, "[UNK]", "[CLS] $A [SEP]")
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return training.save_checkpoint(folder, tensors_of(weights), CONFIG, tokenizer, named)


def main() -> None:
    to_learn, to_test = training.parted(training.words())
    test = one_hidden(as_ids(to_test))
    for step, (loss, vector) in enumerate(train(as_ids(to_learn)), 1):
        if step % 250 == 0:
            print(f"step {step:5,}: loss {loss:.3f}; one hidden letter of a test word ", end="")
            print(f"{losses(model_of(vector), test).mean():.4f}", flush=True)
    print(save(model_of(vector), Path(__file__).resolve().parents[2] / "build" / "study" / "bert-words"))


if __name__ == "__main__":
    main()
