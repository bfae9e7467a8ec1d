# %% [markdown]
# # Lab 3: predict, and change it
#
# A GPT-2 predicts; parts are taken out of a BERT, and values of one text put into another. In each cell an answer is
# missing, where `...` stands. Write it and run the cell: it says whether it is right. Grade 1 is one short expression,
# grade 2 one thought more, grade 3 a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import layer_norm

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
river, city = (encoder.tokenize(f"The bank of the {word} was muddy.") for word in ("river", "city"))
trace = encoder.trace(**river)
blocks, heads = len(encoder.stack.blocks), encoder.stack.heads
gpt2, ids = study.gpt2_encoder()
wte, ln_f, eps = gpt2.embeddings.wte.weight, gpt2["ln_f"], gpt2.config.layer_norm_epsilon
depth = len(gpt2.stack.blocks)
found = gpt2.trace([ids])
print(f"BERT: {blocks} blocks of {heads} heads; GPT-2: {depth} blocks, {len(ids)} tokens")

# %% [markdown]
# ## Exercise 1 (grade 1): logits
#
# Each row of GPT-2's last hidden state, (seq, dim), is compared with each row of the word table `wte`, (vocab, dim).

# %%
last = found[f"hidden_states.{depth}"][0]
logits = last @ wte.T  # blank: one matrix product gives (seq, vocab)
check("logits", logits, gpt2.logits([ids], head="next_word")[0])

# %% [markdown]
# ## Exercise 2 (grade 1): the likeliest next token
#
# The logits of the last token say what comes next. Give the id of the likeliest, as an `int`.

# %%
likeliest = int(logits[-1].argmax())  # blank: argmax gives the place of the largest number
check("likeliest", likeliest, int(np.argsort(gpt2.logits([ids], head="next_word")[0, -1])[-1]))

# %% [markdown]
# ## Exercise 3 (grade 1): knock a head out
#
# `minibert.knock_out(encoder, heads=[(block, head)])` makes a change; a call takes it as `change=`. Run `river` without
# head 3 of block 1.

# %%
without = encoder(**river, change=minibert.knock_out(encoder, heads=[(1, 3)]))  # blank: encoder(**river, change=...)
kept = np.arange(heads) != 3
check("without", without, encoder(**river, change={"attentions.1": lambda w: w * kept[:, None, None].astype(w.dtype)}))

# %% [markdown]
# ## Exercise 4 (grade 2): write a change
#
# A change is a function of values. Write one that makes *every* head of a block look at the first token alone: weight 1
# for it, 0 for all others. The values are (texts, heads, query, key).

# %%


def only_first(weights: np.ndarray) -> np.ndarray:
    # blank: np.zeros_like makes zeros of the same shape; then [..., 0] is the first key
    weights = np.zeros_like(weights)
    weights[..., 0] = 1
    return weights
    # end


weights = trace["attentions.0"]
wanted = np.broadcast_to(np.eye(weights.shape[-1])[0], weights.shape)
check("only_first", only_first(weights), wanted)
looking = encoder.trace(**river, change={"attentions.0": only_first})["encoder.layer.0.attention.self.context"][0]
print("now all tokens have one context:", bool(np.abs(looking - looking[0]).max() < 1e-6))

# %% [markdown]
# ## Exercise 5 (grade 2): a lens
#
# What would GPT-2 predict after its first block? The last norm comes first: `layer_norm(x, ln_f.weight, ln_f.bias,
# eps)`. Then the word table, as in exercise 1.

# %%
x = found["hidden_states.1"][0]
lens = layer_norm(x, ln_f.weight, ln_f.bias, eps) @ wte.T  # blank: norm, then table
gone = minibert.knock_out(gpt2, blocks=range(1, depth))
check("lens", lens, gpt2.logits([ids], head="next_word", change=gone)[0])

# %% [markdown]
# ## Exercise 6 (grade 2): a share of the way
#
# Three vectors: `start`, `goal`, and one between; `way` is `goal - start`. The share of the way is the part of `between
# - start` that lies in the direction of `way`, in lengths of it: `(between - start) . way / |way|^2`.

# %%
start, goal = (encoder(**text)[0].mean(axis=0) for text in (city, river))
way = goal - start
aside = np.roll(way, 1) - way * (np.roll(way, 1) @ way) / (way @ way)  # at a right angle to the way
between = start + 0.25 * way + aside
share = (between - start) @ way / (way @ way)  # blank: two products of vectors; one is way @ way
check("share", share, 0.25)

# %% [markdown]
# ## Exercise 7 (grade 3): patching
#
# Run `city`, but give the token at `place` the hidden state that it has in `river` before block `i`. Return the
# changed run's last hidden state (seq, dim). (`008_what_does_a_head_do.py` draws conclusions from it.)

# %%
(place,) = np.flatnonzero(river["input_ids"][0] != city["input_ids"][0])


def patched(i: int) -> np.ndarray:
    # blank: a function that writes trace[f"hidden_states.{i}"][0, place] into values[0, place], as change of that name
    def put(values: np.ndarray) -> np.ndarray:
        values[0, place] = trace[f"hidden_states.{i}"][0, place]
        return values

    return encoder(**city, change={f"hidden_states.{i}": put})[0]
    # end


mixed = encoder.trace(**city)["hidden_states.2"].copy()
mixed[0, place] = trace["hidden_states.2"][0, place]
check("patched", patched(2), encoder(**city, change={"hidden_states.2": mixed})[0])

# %% [markdown]
# ## Exercise 8 (grade 3): which head is needed most?
#
# Of each head of GPT-2's last block: by how much does the log of the likeliest token's probability fall without it?
# Give the list of falls, one for each head, in their order.

# %%


def falls() -> np.ndarray:
    # blank: a loop over gpt2.stack.heads: knock one out, take the logits of the last token, log of softmax
    def log_probability(change: dict | None) -> float:
        row = gpt2.logits([ids], head="next_word", change=change)[0, -1]
        return float(np.log(softmax(row.astype(np.float64))[likeliest]))

    changes = (minibert.knock_out(gpt2, heads=[(depth - 1, head)]) for head in range(gpt2.stack.heads))
    return np.array([log_probability(None) - log_probability(change) for change in changes])
    # end


def surprise(run: dict) -> float:
    row = run["logits"][0, -1].astype(np.float64)
    return float(np.log(np.exp(row - row[likeliest]).sum()))


name, wanted = f"attentions.{depth - 1}", []
for head in range(gpt2.stack.heads):
    silent = (np.arange(gpt2.stack.heads) != head)[:, None, None] * found[name]
    wanted.append(surprise(gpt2.trace([ids], head="next_word", change={name: silent.astype(np.float32)})))
check("falls", falls(), np.array(wanted) - surprise(gpt2.trace([ids], head="next_word")))
