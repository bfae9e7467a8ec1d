# %% [markdown]
# # GPT-2's blocks
#
# GPT-2's blocks have the same parts as BERT's (`006_blocks.py`), in another order, and a mask: no token sees later
# tokens. This page reads a whole GPT-2 line by line, from the rows that enter its first block to the numbers that
# predict the next token.
#
# * Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*: GPT-2.

# %%
import numpy as np
import study
import texts

import minibert
from minibert.equations.activations import gelu, gelu_tanh
from minibert.equations.blocks import additive_mask, feed_forward, gpt2_blocks, self_attention
from minibert.equations.input_layer import layer_norm

# two right programs differ in the last bits of a matrix product; measured here, with two kernels of BLAS: 2e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: how the weights are stored
#
# GPT-2 stores each weight as (in, out), so a map is `x @ weight` and not `x @ weight^T`; query, key and value are the
# three thirds of one matrix.

# %%
gpt2, ids = study.gpt2_encoder()
found = gpt2.trace([ids])
x = found["hidden_states.0"]
normed = found["h.0.ln_1"]
stored = gpt2["h.0.attn.c_attn"]
dim = gpt2.dim
print(f"{len(ids)} tokens, {len(gpt2.stack.blocks)} blocks; c_attn holds {stored.weight.shape}, (in, 3 * out)")
assert stored.weight.shape == (dim, 3 * dim)
mapped = found["h.0.attn.c_attn"]
assert np.abs(normed @ stored.weight + stored.bias - mapped).max() < CLOSE * np.abs(mapped).max()

# %% [markdown]
# ## Step 2: line by line, what differs from BERT's block
#
#     BERT     x = LayerNorm(x + attention(x))        x = LayerNorm(x + feed_forward(x))
#     GPT-2    x = x + attention(LayerNorm(x))        x = x + feed_forward(LayerNorm(x))
#
# LayerNorm comes before the two parts, and x itself is never normalised: from the first block to the last it is a sum,
# the *residual stream*, which each part reads and adds to. No token sees later tokens. gelu is computed with tanh,
# which differs from the exact gelu by up to 5e-4.

# %%
block, heads = study.plain_block(gpt2.stack.blocks[0]), gpt2.stack.heads
eps = gpt2.config.layer_norm_epsilon
mask = additive_mask(np.tri(len(ids), dtype=bool))
x = x + self_attention(layer_norm(x, *block.norm_1, eps), block, heads, mask)
size = np.abs(found["h.0.mlp.sum"]).max()
assert np.abs(x - found["h.0.attn.sum"]).max() < CLOSE * size
x = x + feed_forward(layer_norm(x, *block.norm_2, eps), block.up, block.down, gelu_tanh)
off = np.abs(x - found["h.0.mlp.sum"]).max()
print(f"block 0 by hand: at most {off:.0e} from the model's, of numbers up to {size:.2g}")
assert off < CLOSE * size
assert np.all(np.triu(found["attentions.0"], 1) == 0), "a later token gets no weight"
numbers = np.linspace(-6, 6, 2001)
assert 3e-4 < np.abs(gelu(numbers) - gelu_tanh(numbers)).max() < 5e-4

# %% [markdown]
# ## Step 3: the beginning stays
#
# Because no token sees later tokens, the vectors of a text's beginning do not change when the text goes on. So GPT-2
# can write word by word and keep the keys and values that it has computed: a *cache*. In BERT a new word changes all
# vectors: the cell adds the word "today" to the end of ten sentences, and every token of each sentence moves.

# %%
begun = gpt2([ids[:-1]])[0]
off = np.abs(begun - gpt2([ids])[0, :-1]).max()
print(f"GPT-2: one token more moves those before it by up to {off:.0e}")
assert off < CLOSE * np.abs(begun).max()
bert, moved = minibert.load_encoder(study.load("bert").source), []
for text in texts.SENTENCES:
    shorter, longer = (bert(**bert.tokenize(each))[0] for each in (text, f"{text} Today"))
    moved.append(np.abs(longer[: len(shorter) - 1] - shorter[:-1]).max(axis=1).min())  # but for [SEP]
print(f"BERT: one word more moves every token; in ten texts the one that moves least by {texts.spread(moved)}")
assert min(moved) > 100 * CLOSE

# %% [markdown]
# ## Step 4: the last norm, and the next token
#
# After the last block comes one more LayerNorm, `ln_f`. Each row is then compared with every word row. The results are
# the logits, one number for each token that might come next. The word table is used twice, at the input and here.
#
#     logits = LayerNorm(x) @ wte^T

# %%
plain = [study.plain_block(block) for block in gpt2.stack.blocks]
norm = gpt2["ln_f"]
last = gpt2_blocks(found["hidden_states.0"], np.ones((1, len(ids))), plain, (norm.weight, norm.bias), heads, eps)
assert np.abs(last - gpt2([ids])).max() < CLOSE * np.abs(last).max()
logits = last[0] @ gpt2.embeddings.wte.weight.T
print(f"logits {logits.shape}: the largest of the last token is that of id {logits[-1].argmax()}")
assert logits.shape == (len(ids), gpt2.config.vocab_size)

# %% [markdown]
# ## Exercises
#
# 1. If both parts of a block added nothing, BERT's block would still normalise x. Would GPT-2's change it?
# 2. Add the same number to every logit of a token. How do the probabilities change?
