# %% [markdown]
# # Lab 4: words, from a gradient to a table
#
# This notebook is about cutting, predicting, drawing and learning words, about GPT-2's block, and about a static table
# made from a whole model. In each cell `...` marks a missing answer. Write it and run the cell: `check` tries your
# function on random inputs, and prints whether the answer is right, or names its mistake. Use only the arguments. Grade
# 1 is one short expression, grade 2 needs one more step, grade 3 is a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.activations import gelu, gelu_tanh
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import layer_norm

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
gpt2, ids = study.gpt2_encoder()
found = gpt2.trace([ids])
next_logits = gpt2.logits([ids], head="next_word")[0]

# %% [markdown]
# ## Exercise 1 (grade 1): a gradient
#
# The loss of a prediction is `-log(softmax(logits)[target])`. How does it change with each logit? Its gradient is
# `p - 1` at the target and `p` at all other places, where `p` is `softmax(logits)`. You may call `softmax`.

# %%


def logits_gradient(logits: np.ndarray, target: int) -> np.ndarray:
    return softmax(logits) - (np.arange(len(logits)) == target)  # blank: np.arange(len(logits)) == target is True once


check(logits_gradient)

# %% [markdown]
# ## Exercise 2 (grade 2): a masked word
#
# BERT's head for a masked word starts from the last hidden state of the token at `place`, a row of `x`. Then follow a
# map (`dense` has `weight` (out, in) and `bias`), gelu, LayerNorm (`norm` has `weight`, `bias` and `eps`), the product
# with each row of the word table `words`, and the sum with `bias`. Return the logits of all words. You may call `gelu`
# and `layer_norm`.

# %%


def masked_word(
    x: np.ndarray, place: int, dense: object, norm: object, words: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    row = gelu(x[place] @ dense.weight.T + dense.bias)
    return layer_norm(row, norm.weight, norm.bias, norm.eps) @ words.T + bias  # blank: map, gelu, norm, then the table


check(masked_word)

# %% [markdown]
# ## Exercise 3 (grade 3): sampling
#
# Draw next tokens. Divide the logits by the temperature, keep the `k` likeliest tokens, and compute their
# probabilities, with sum 1. Each number of `chances` is between 0 and 1 and draws one token: add up the probabilities
# of the ids, from id 0 on; the drawn id is the first for which the sum is above the chance. Return an id for each
# chance.

# %%


def sampled(logits: np.ndarray, temperature: float, k: int, chances: np.ndarray) -> list[int]:
    # blank: np.sort(logits)[-k] is the smallest logit that stays; np.cumsum adds up; then one id for each chance
    kept = np.where(logits >= np.sort(logits)[-k], logits / temperature, -np.inf)
    sums = np.cumsum(softmax(kept))
    return [int((sums > chance).argmax()) for chance in chances]
    # end


row, chances = next_logits[0], np.linspace(0.05, 0.95, 8)
check(sampled, then=lambda: print("first letters of a word:", gpt2.tokens(sampled(row, 1.0, 5, chances))))

# %% [markdown]
# ## Exercise 4 (grade 3): tokenization
#
# WordPiece cuts a word into pieces that are in the vocabulary. It cuts off the longest piece that fits, from the
# beginning, and continues after it; a piece that does not begin the word has `##` before it in the vocabulary. If no
# piece fits, the whole word is `["[UNK]"]`. Return the pieces.

# %%


def wordpiece(word: str, vocab: set[str]) -> list[str]:
    # blank: a loop while letters are left; inside, a loop over ends, from the last letter to the first; ## after the
    # start
    pieces, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = "##" * (begin > 0) + word[begin:end]
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        begin = end
    return pieces
    # end


word = "embeddings"
vocab = set(encoder.embeddings.tokenizer.names().values())
check(wordpiece, (word, vocab), encoder.tokens(encoder.tokenize(word)["input_ids"][0])[1:-1])

# %% [markdown]
# ## Exercise 5 (grade 3): GPT-2's block
#
#     x = x + attention(LayerNorm(x))        x = x + down(gelu_tanh(up(LayerNorm(x))))
#
# No token sees later tokens. `block` has `norm_1`, `query`, `key`, `value`, `output`, `norm_2`, `up` and `down`, each
# with `weight` (out, in) and `bias`. You may call `softmax`, `gelu_tanh` and `layer_norm(x, *block.norm_1, eps)`.

# %%


def gpt2_block(x: np.ndarray, block: object, heads: int, eps: float) -> np.ndarray:
    # blank: like attend of lab 2, with the scores of later tokens at -1e9; the norms come first, and are not added
    entered = layer_norm(x, *block.norm_1, eps)
    q, k, v = (
        (entered @ each.weight.T + each.bias).reshape(len(x), heads, -1).swapaxes(0, 1)
        for each in (block.query, block.key, block.value)
    )
    scores = np.where(np.tri(len(x), dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -1e9)
    context = (softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), -1)
    x = x + context @ block.output.weight.T + block.output.bias
    hidden = gelu_tanh(layer_norm(x, *block.norm_2, eps) @ block.up.weight.T + block.up.bias)
    return x + hidden @ block.down.weight.T + block.down.bias
    # end


first = study.plain_block(gpt2.stack.blocks[0])
arguments = (found["hidden_states.0"][0], first, gpt2.stack.heads, gpt2.config.layer_norm_epsilon)
check(gpt2_block, arguments, found["hidden_states.1"][0])

# %% [markdown]
# ## Exercise 6 (grade 3): distilling
#
# A static model is a table. `x` has one row for each token, an encoder's vector for the token alone, (vocab, dim).
# Subtract the mean of all rows; project the rows onto their first `count` principal components, which have the most
# variance; and multiply row `i` by `a / (a + p[i])`. Here `p[i]` is proportional to `1 / (i + 2)`, and the sum of all
# `p` is 1. Return the rows, (vocab, count); the sign of a component does not count. (`009_static_models.py` explains
# why.)

# %%


def static_rows(x: np.ndarray, count: int, a: float) -> np.ndarray:
    # blank: np.linalg.svd(rows, full_matrices=False)[2] has the components as rows, the first ones first
    rows = x - x.mean(axis=0)
    rows = rows @ np.linalg.svd(rows, full_matrices=False)[2][:count].T
    p = 1 / (np.arange(len(x)) + 2)
    p = p / p.sum()
    return rows * (a / (a + p))[:, None]
    # end


check(static_rows)

# %% [markdown]
# ## Exercise 7 (grade 2): a step of Adam
#
#     mean = 0.9 mean + 0.1 grad        square = 0.999 square + 0.001 grad^2
#     weight = weight - rate * (mean / (1 - 0.9^step)) / (sqrt(square / (1 - 0.999^step)) + 1e-8)
#
# Return the weights after the step.

# %%


def adam_step(
    weight: np.ndarray, grad: np.ndarray, mean: np.ndarray, square: np.ndarray, step: int, rate: float
) -> np.ndarray:
    # blank: both averages first, in new arrays; then the formula
    mean = 0.9 * mean + 0.1 * grad
    square = 0.999 * square + 0.001 * grad**2
    return weight - rate * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    # end


check(adam_step)

# %% [markdown]
# ## Exercise 8 (grade 3): a training step
#
# A model's last rows `h`, (tokens, dim), are compared with every row of `table`, (vocab, dim): the logits. The loss is
# the mean over the tokens of `-log(softmax(logits)[target])`, with one target for each token in `targets`. Compute the
# gradient of `table`, and return the table after one step of plain gradient descent with this `rate`. Exercise 1 has
# the gradient of the logits. You may call `softmax`.

# %%


def training_step(h: np.ndarray, table: np.ndarray, targets: np.ndarray, rate: float) -> np.ndarray:
    # blank: p of all tokens, minus 1 at the targets; the chain rule: each row of table meets each row of h
    g = softmax(h @ table.T)
    g[np.arange(len(h)), targets] -= 1
    return table - rate * g.T @ h / len(h)
    # end


def loss(table: np.ndarray) -> float:
    p = softmax(h @ table.T)
    return float(-np.log(p[np.arange(len(h)), targets]).mean())


h, table, targets = found[f"hidden_states.{len(gpt2.stack.blocks)}"][0, :-1], gpt2.embeddings.wte.weight, ids[1:]
check(
    training_step,
    then=lambda: print(f"{loss(table):.3f}, after a step {loss(training_step(h, table, targets, 0.1)):.3f}"),
)
