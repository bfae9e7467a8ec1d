# %% [markdown]
# # BERT's blocks
#
# A block of BERT is attention and a feed-forward, each added to the vector that came in and followed by LayerNorm. This
# file computes one block, then all of them, and looks at what they are good for: the same word in two sentences gets
# two vectors, and sentences that mean the same come near each other.
#
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).

# %%
from pathlib import Path

import numpy as np
import study
from safetensors import safe_open

import minibert
from minibert.equations.activations import gelu
from minibert.equations.blocks import bert_encoder, feed_forward, post_norm_block, self_attention
from minibert.equations.input_layer import layer_norm
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot
from minibert.show.text.blocks import plain_block

# two right programs differ in the last bits of a matrix product; measured here, with two kernels of BLAS: 2e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: the model, and two sentences with "bank"

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
river, money = "The bank of the river was muddy.", "The bank raised its interest rates."
traces = [encoder.trace(**encoder.tokenize(text)) for text in (river, money)]
tokens = encoder.tokens(encoder.tokenize(river)["input_ids"][0])
blocks, heads = [plain_block(block) for block in encoder.stack.blocks], encoder.stack.heads
print(f"{len(blocks)} blocks, {heads} heads, feed-forward {len(blocks[0].up.bias)} wide")
assert tokens[2] == "bank" and len(blocks) == encoder.config.num_hidden_layers

# %% [markdown]
# ## Step 2: one block
#
#     x = LayerNorm(x + attention(x))
#     x = LayerNorm(x + feed_forward(x))        feed_forward(x) = gelu(x @ up^T + b1) @ down^T + b2
#
# Attention brings the tokens together; `005_attention.py` takes it apart. The feed-forward works on each token alone:
# to a larger width, through gelu, and back.

# %%
trace, first = traces[0], blocks[0]
x, eps = trace["hidden_states.0"], encoder.config.layer_norm_eps
attended = self_attention(x, first, heads)
middle = layer_norm(x + attended, *first.norm_1, eps)
worked = feed_forward(middle, first.up, first.down, gelu)
after = layer_norm(middle + worked, *first.norm_2, eps)
off = np.abs(after - trace["hidden_states.1"]).max()
print(f"block 0 by hand: at most {off:.0e} from the model's")
assert off < CLOSE
assert np.abs(post_norm_block(x, first, heads, eps, gelu) - after).max() < CLOSE

# %% [markdown]
# The feed-forward knows one token at a time: of all tokens or of one alone, its row is the same.

# %%
alone = feed_forward(middle[:, 2:3], first.up, first.down, gelu)
assert np.abs(alone - worked[:, 2:3]).max() < CLOSE

# %% [markdown]
# ## Step 3: all blocks
#
# What leaves one block enters the next; there is nothing between them. What leaves the last one is the last hidden
# state. (A BERT file may hold a *pooler* too: one more map, of the first row alone. all-MiniLM-L6-v2 has one, and its
# sentence vectors do not use it.)

# %%
for i, block in enumerate(blocks):
    x = post_norm_block(x, block, heads, eps, gelu)
    assert np.abs(x - trace[f"hidden_states.{i + 1}"]).max() < CLOSE
whole = encoder(**encoder.tokenize(river))
print(f"all {len(blocks)} blocks by hand: at most {np.abs(x - whole).max():.0e} from the model's")
assert np.abs(x - whole).max() < CLOSE
entering = trace["hidden_states.0"]
mask = np.ones(entering.shape[:2], np.int64)
assert np.abs(bert_encoder(entering, mask, blocks, heads, eps) - whole).max() < CLOSE
if model.is_minilm and Path(model.source).is_dir():
    with safe_open(Path(model.source) / "model.safetensors", "np") as stored:
        poolers = [name for name in list(stored.keys()) if "pooler" in name]
    assert poolers == ["pooler.dense.bias", "pooler.dense.weight"]

# %% [markdown]
# ## Step 4: one row before, two vectors after
#
# "bank" stands at the same place of both sentences, so the input layer gives it the same row, bit by bit. Each block
# moves the two vectors, for their neighbours differ.

# %%
place = 2
vectors = [[found[f"hidden_states.{i}"][0, place] for found in traces] for i in range(len(blocks) + 1)]
assert np.array_equal(*vectors[0])
apart = [float(cosine_similarity(a[None], b[None])[0, 0]) for a, b in vectors]
print("cosine of the two banks, before block 0 and after each block:", np.round(apart, 3))
assert abs(apart[0] - 1) < 1e-6 and max(apart[1:]) < 0.99
ax = plot.similarity_matrix(cosine_similarity(trace[f"hidden_states.{len(blocks)}"][0]), labels=tokens, of="token")
ax.set_title("similarity of the tokens after the last block", loc="left")
study.show(ax, "tokens", of=model.name, alt="a square of colours: the cosine of every two tokens after the last block")

# %% [markdown]
# Do they move in the right direction? Two more sentences, one with each kind of bank. The word row of "bank" is the
# same in all four. After the blocks of all-MiniLM-L6-v2 each is nearer to the bank of its own kind.

# %%
others = []
for text in ("They walked along the bank of the stream.", "The bank lent her money."):
    ids = encoder.tokenize(text)
    others.append(encoder(**ids)[0, encoder.tokens(ids["input_ids"][0]).index("bank")])
near = cosine_similarity(np.stack(vectors[-1]), np.stack(others))
print(f"{model.name}: lines are the banks of river and money, columns those of stream and loan\n{near.round(3)}")
if model.is_minilm:
    assert near[0, 0] > near[0, 1] + 0.05 and near[1, 1] > near[1, 0] + 0.05

# %% [markdown]
# ## Step 5: a vector for a sentence
#
#     sentence = mean of the tokens' vectors, divided by its length
#
# The mean is *mean pooling*; the division makes the length 1. `encode` does both where the model's folder says so.
# Padding is left out of the mean.

# %%
mean = whole[0].mean(axis=0)
pooled = mean / np.linalg.norm(mean)
assert abs(np.linalg.norm(pooled) - 1) < 1e-6
if model.is_minilm:
    assert np.abs(encoder.encode(river) - pooled).max() < CLOSE

# %% [markdown]
# ## Step 6: shared words or shared meaning
#
# Three first sentences. The second of each shares words with it, the third shares its meaning. By the mean of the input
# layer's rows the one with the same words is nearer. By the whole encoder the one with the same meaning is, in these
# three.
#
# It does not always work. Two things that all-MiniLM-L6-v2 misses:
#
# * a negation: to "The movie was not good." it finds "The movie was good." nearer than "I did not enjoy the film."
# * who does what: "The cat chased the mouse." and "The mouse chased the cat." have a cosine of 0.985.

# %%
contrasts = (
    ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
    ("The bank raised its interest rates.", "The bank of the river was muddy.", "Loans have become more expensive."),
    ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
    ("The movie was not good.", "The movie was good.", "I did not enjoy the film."),
)
expected = np.array([
    [[0.734, 0.593], [0.177, 0.678]],
    [[0.608, 0.499], [0.294, 0.454]],
    [[0.785, 0.610], [0.521, 0.642]],
])  # fmt: skip
found = []
for texts in contrasts:
    by_layer = encoder.embeddings.embed(texts)
    by_encoder = np.stack([encoder(**encoder.tokenize(text))[0].mean(axis=0) for text in texts])
    found.append([cosine_similarity(rows[:1], rows[1:])[0] for rows in (by_layer, by_encoder)])
    (words, meaning), (words_after, meaning_after) = found[-1]
    print(f"{texts[0]:36} input layer {words:.3f}, {meaning:.3f}; whole encoder {words_after:.3f}, {meaning_after:.3f}")
found = np.array(found)
assert found.shape == (4, 2, 2)
if model.is_minilm:
    assert np.abs(found[:3] - expected).max() <= 5e-4 + 1e-6, "three digits"
    assert np.all(found[:3, 0, 0] > found[:3, 0, 1]) and np.all(found[:3, 1, 0] < found[:3, 1, 1])
    assert found[3, 1, 0] > found[3, 1, 1], "it misses the negation"
    cat, mouse = encoder.encode(["The cat chased the mouse.", "The mouse chased the cat."])
    print(f"who does what: {cat @ mouse:.3f}")
    assert abs(cat @ mouse - 0.985) <= 5e-4 + 1e-6

# %% [markdown]
# ## Exercises
#
# 1. Which part of a block has more weights, attention or the feed-forward?
# 2. If both parts of a block added nothing, would it change x?

# %% [markdown]
# ## Answers
#
# 1. The feed-forward, where it is four times as wide as the model: 8 dim^2 against 4 dim^2.

# %%
sizes = [sum(part.weight.size for part in parts) for parts in (blocks[0][:4], (blocks[0].up, blocks[0].down))]
assert sizes[0] == 4 * encoder.dim**2 and sizes[1] == 2 * len(blocks[0].up.bias) * encoder.dim

# %% [markdown]
# 2. Yes: LayerNorm is applied to the sum, and the sum is then x.

# %%
x = traces[0]["hidden_states.0"]
silent = blocks[0].output._replace(weight=0 * blocks[0].output.weight, bias=0 * blocks[0].output.bias)
no_down = blocks[0].down._replace(weight=0 * blocks[0].down.weight, bias=0 * blocks[0].down.bias)
nothing = blocks[0]._replace(output=silent, down=no_down)
assert np.abs(post_norm_block(x, nothing, encoder.stack.heads) - x).max() > 0.01
