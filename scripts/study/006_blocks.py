# %% [markdown]
# # BERT's blocks
#
# A block of BERT is attention and a feed-forward, each added to the vector that came in and followed by LayerNorm. This
# file computes one block, then all of them, and shows their use: the same word gets a different vector in each
# sentence. `sentence_vectors.py` goes on.
#
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).

# %%
from pathlib import Path

import numpy as np
import study
import texts
from safetensors import safe_open

import minibert
from minibert.equations.activations import gelu
from minibert.equations.blocks import bert_encoder, feed_forward, post_norm_block, self_attention
from minibert.equations.input_layer import layer_norm
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

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
blocks, heads = [study.plain_block(block) for block in encoder.stack.blocks], encoder.stack.heads
print(f"{len(blocks)} blocks, {heads} heads, feed-forward {len(blocks[0].up.bias)} wide")
assert tokens[2] == "bank" and len(blocks) == encoder.config.num_hidden_layers

# %% [markdown]
# ## Step 2: one block
#
#     x = LayerNorm(x + attention(x))
#     x = LayerNorm(x + feed_forward(x))        feed_forward(x) = gelu(x @ up^T + b1) @ down^T + b2
#
# Attention brings the tokens together; `005_attention.py` takes it apart. The feed-forward works on each token alone:
# to a larger width, through gelu, and back. (gelu keeps a large number and turns a number far below 0 into nearly 0;
# without this bend between them, the two maps would be a single map.)

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
# The feed-forward knows one token at a time: a token's row is the same, whether it is computed alone or with all
# tokens.

# %%
alone = feed_forward(middle[:, 2:3], first.up, first.down, gelu)
assert np.abs(alone - worked[:, 2:3]).max() < CLOSE

# %% [markdown]
# ## Step 3: all blocks
#
# The output of one block enters the next; there is nothing between them. These rows are the *hidden states*; the output
# of the last block is the last hidden state. (A BERT file may also hold a *pooler*: one more map, for the first row
# only. all-MiniLM-L6-v2 has a pooler, and its sentence vectors do not use it.)

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
# ## Step 4: the same row before, two vectors after
#
# "bank" is at the same place in both sentences, so the input layer gives it the same row, to the bit. Block 0 moves the
# two vectors apart, because their neighbours differ. Not every block moves them farther: in all-MiniLM-L6-v2 their
# cosine falls in blocks 0 to 2, rises in blocks 3 and 4, and falls most in the last block.

# %%
place = 2
vectors = [[found[f"hidden_states.{i}"][0, place] for found in traces] for i in range(len(blocks) + 1)]
assert np.array_equal(*vectors[0])
apart = [float(cosine_similarity(a[None], b[None])[0, 0]) for a, b in vectors]
print("cosine of the two banks, before block 0 and after each block:", np.round(apart, 3))
assert abs(apart[0] - 1) < 1e-6 and max(apart[1:]) < 0.99
if model.is_minilm:
    assert np.sign(np.diff(apart)).tolist() == [-1, -1, -1, 1, 1, -1] and np.diff(apart).argmin() == 5
ax = plot.similarity_matrix(cosine_similarity(trace[f"hidden_states.{len(blocks)}"][0]), labels=tokens, of="token")
ax.set_title("similarity of the tokens after the last block", loc="left")
study.show(ax, "tokens", of=model.name, alt="a square of colours: the cosine of every two tokens after the last block")

# %% [markdown]
# Do they move in the right direction? We try ten words with two meanings, each in four sentences: two with one meaning,
# two with the other. Before the blocks the word's row is the same in all four, except for its position. After the
# blocks of all-MiniLM-L6-v2 the nearest of the other three has the same meaning in 33 of 40 sentences. Six words are
# right in all four sentences, "bank" and "plant" among them; "match" (of a team, of fire) in one.


# %%
def vector_of(word: str, text: str) -> np.ndarray:
    """Compute the vector of a word's token after the last block."""
    batch = encoder.tokenize(text)
    return encoder(**batch)[0, encoder.tokens(batch["input_ids"][0]).index(word)]


parted = {}
for word, four in texts.MEANINGS.items():
    near = cosine_similarity(np.stack([vector_of(word, text) for text in four])) - 2 * np.eye(4)  # none is its own
    parted[word] = int(np.count_nonzero(near.argmax(axis=1) == [1, 0, 3, 2]))
    same, other = near[[0, 2], [1, 3]], near[:2, 2:]
    print(f"{word:6} same meaning {same.round(2)}, other meaning {texts.spread(other)}: right for {parted[word]} of 4")
print(f"{model.name}: the nearest has the same meaning for {sum(parted.values())} of {4 * len(parted)} sentences")
assert all(0 <= right <= 4 for right in parted.values())
if model.is_minilm:
    assert sum(parted.values()) == 33 and list(parted.values()).count(4) == 6
    assert (parted["bank"], parted["plant"], parted["match"]) == (4, 4, 1)

# %% [markdown]
# ## Exercises
#
# 1. Which part of a block has more weights, attention or the feed-forward?
# 2. If both parts of a block added nothing, would it change x?
