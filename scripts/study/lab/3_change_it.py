# %% [markdown]
# # Lab 3: predict, and change it
#
# You predict with a GPT-2, remove parts of a BERT, and put values of one text into another. In each cell `...` marks a
# missing answer. Write it and run the cell: `check` tries your function on random models and inputs, and then on these
# models. It prints whether the answer is right, or names its mistake. Use only the arguments: the random models have
# other sizes. Grade 1 is one short expression, grade 2 needs one more step, grade 3 is a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import layer_norm

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
river, city = (encoder.tokenize(f"The bank of the {word} was muddy.") for word in ("river", "city"))
trace, heads = encoder.trace(**river), encoder.stack.heads
gpt2, ids = study.gpt2_encoder()
wte, ln_f = gpt2.embeddings.wte.weight, gpt2["ln_f"]
depth = len(gpt2.stack.blocks)
found = gpt2.trace([ids])
last = found[f"hidden_states.{depth}"][0]
next_logits = gpt2.logits([ids], head="next_word")[0]
print(f"BERT: {len(encoder.stack.blocks)} blocks of {heads} heads; GPT-2: {depth} blocks, {len(ids)} tokens")

# %% [markdown]
# ## Exercise 1 (grade 1): logits
#
# Each row of GPT-2's last hidden state, (seq, dim), is compared with each row of the word table `wte`, (vocab, dim).

# %%


def logits(last: np.ndarray, wte: np.ndarray) -> np.ndarray:
    return last @ wte.T  # blank: one matrix product of shape (seq, vocab)


check(logits, (last, wte), next_logits)

# %% [markdown]
# ## Exercise 2 (grade 1): the likeliest next token
#
# The logits of the last token predict the next token. Return the id of the likeliest.

# %%


def likeliest(logits: np.ndarray) -> int:
    return int(logits[-1].argmax())  # blank: argmax returns the place of the largest number


check(likeliest, (next_logits,), int(np.argsort(next_logits[-1])[-1]))

# %% [markdown]
# ## Exercise 3 (grade 1): knock a head out
#
# `minibert.knock_out(encoder, heads=[(block, head)])` makes a change; pass it to a call as `change=`. Run the text
# without this head. `text` holds the call's keywords: `encoder(**text)` runs it unchanged.

# %%


def without(encoder: minibert.Encoder, text: dict, block: int, head: int) -> np.ndarray:
    return encoder(**text, change=minibert.knock_out(encoder, heads=[(block, head)]))  # blank: encoder(**text, change=)


kept = np.arange(heads) != 3
wanted = encoder(**river, change={"attentions.1": lambda w: w * kept[:, None, None].astype(w.dtype)})
check(without, (encoder, river, 1, 3), wanted)

# %% [markdown]
# ## Exercise 4 (grade 2): write a change
#
# A change is a function of values. Write a change that makes *every* head of a block look only at the first token:
# weight 1 for it, 0 for every other token. The values are (texts, heads, query, key).

# %%


def only_first(weights: np.ndarray) -> np.ndarray:
    # blank: np.zeros_like makes zeros of the same shape; then [..., 0] is the first key
    weights = np.zeros_like(weights)
    weights[..., 0] = 1
    return weights
    # end


def look() -> None:
    looking = encoder.trace(**river, change={"attentions.0": only_first})["encoder.layer.0.attention.self.context"][0]
    print("now all tokens have one context:", bool(np.abs(looking - looking[0]).max() < 1e-6))


check(only_first, then=look)

# %% [markdown]
# ## Exercise 5 (grade 2): a lens
#
# What would GPT-2 predict after its first block? The last norm comes first: `layer_norm(x, weight, bias, eps)`, and
# `ln_f` has all three. Then comes the word table, as in exercise 1.

# %%


def lens(x: np.ndarray, ln_f: object, wte: np.ndarray) -> np.ndarray:
    return layer_norm(x, ln_f.weight, ln_f.bias, ln_f.eps) @ wte.T  # blank: norm, then table


gone = minibert.knock_out(gpt2, blocks=range(1, depth))
check(lens, (found["hidden_states.1"][0], ln_f, wte), gpt2.logits([ids], head="next_word", change=gone)[0])

# %% [markdown]
# ## Exercise 6 (grade 2): a share of the way
#
# There are three vectors: `start`, `goal`, and `between`; `way` is `goal - start`. The share of the way is the part of
# `between - start` in the direction of `way`, in lengths of `way`: `(between - start) . way / |way|^2`.

# %%


def share(start: np.ndarray, goal: np.ndarray, between: np.ndarray) -> float:
    way = goal - start
    return (between - start) @ way / (way @ way)  # blank: two products of vectors; one is way @ way


start, goal = (encoder(**text)[0].mean(axis=0) for text in (city, river))
check(share, (start, goal, start + 0.25 * (goal - start)), 0.25)

# %% [markdown]
# ## Exercise 7 (grade 3): patching
#
# Run `text`, but replace the hidden state of the token at `place`, before block `i`, by its hidden state in `other`.
# Return the changed run's last hidden state (seq, dim). (`patching_and_lens.py` uses this.)

# %%


def patched(encoder: minibert.Encoder, text: dict, other: dict, i: int, place: int) -> np.ndarray:
    # blank: trace other, and write its hidden_states.i at place into values[0, place], as change of that name
    source = encoder.trace(**other)[f"hidden_states.{i}"]

    def put(values: np.ndarray) -> np.ndarray:
        values[0, place] = source[0, place]
        return values

    return encoder(**text, change={f"hidden_states.{i}": put})[0]
    # end


(place,) = np.flatnonzero(river["input_ids"][0] != city["input_ids"][0])
mixed = encoder.trace(**city)["hidden_states.2"].copy()
mixed[0, place] = trace["hidden_states.2"][0, place]
check(patched, (encoder, city, river, 2, place), encoder(**city, change={"hidden_states.2": mixed})[0])

# %% [markdown]
# ## Exercise 8 (grade 3): which head is needed most?
#
# For each head of one block of GPT-2: by how much does the log of the likeliest next token's probability fall without
# the head? Return one fall for each head, in order. You may call `softmax`.

# %%


def falls(gpt2: minibert.Encoder, ids: list, block: int) -> np.ndarray:
    # blank: a loop over gpt2.stack.heads: knock one out, compute the logits of the last token, log of softmax
    def log_probabilities(change: dict | None) -> np.ndarray:
        return np.log(softmax(gpt2.logits([ids], head="next_word", change=change)[0, -1].astype(np.float64)))

    before = log_probabilities(None)
    word = before.argmax()
    changes = (minibert.knock_out(gpt2, heads=[(block, head)]) for head in range(gpt2.stack.heads))
    return np.array([before[word] - log_probabilities(change)[word] for change in changes])
    # end


check(falls, then=lambda: print(f"heads of block {depth - 1}, falls:", np.round(falls(gpt2, ids, depth - 1), 3)))

# %% [markdown]
# ## Exercise 9 (grade 3): the patching map
#
# `ids` and `other` are two texts of as many tokens. For each state `i`, from 0 to the number of blocks, and each token:
# run `other`, but with `hidden_states.i` of `ids` at this token. How much of the prediction of `word` after the last
# token does this restore?
#
#     share = (patched - corrupted) / (clean - corrupted)
#
# Each is the log of the probability of `word`: `clean` in a run of `ids`, `corrupted` in a run of `other`, `patched` in
# the changed run. Return the shares, (blocks + 1, seq). You may call `softmax`.

# %%


def carried(gpt2: minibert.Encoder, ids: list, other: list, word: int) -> np.ndarray:
    # blank: a function for the log probability, as in exercise 8; then a loop over states and tokens, as in exercise 7
    def log_probability(ids: list, change: dict | None = None) -> float:
        return np.log(softmax(gpt2.logits([ids], head="next_word", change=change)[0, -1].astype(np.float64)))[word]

    source, shares = gpt2.trace([ids]), np.empty((len(gpt2.stack.blocks) + 1, len(ids)))
    clean, corrupted = log_probability(ids), log_probability(other)
    for i, place in np.ndindex(*shares.shape):

        def put(values: np.ndarray, i: int = i, place: int = place) -> np.ndarray:
            values[0, place] = source[f"hidden_states.{i}"][0, place]
            return values

        shares[i, place] = (log_probability(other, {f"hidden_states.{i}": put}) - corrupted) / (clean - corrupted)
    return shares
    # end


two = [ids, [*ids[:-2], ids[-2] + 1, ids[-1]]]
word = int(next_logits[-1].argmax())
check(carried, then=lambda: print(carried(gpt2, *two, word).round(2)))
