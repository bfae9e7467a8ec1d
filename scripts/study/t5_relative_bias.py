# %% [markdown]
# # T5's relative bias
#
# T5 adds no positions to its word rows (`002_sinusoids_t5.py`). The order enters in attention: each score of a query
# and a key gets a learned number, which depends only on their distance. This page looks at that number.
#
# * Raffel et al. 2019, T5 ([arXiv:1910.10683](https://arxiv.org/abs/1910.10683)), section 2.1

# %%
import numpy as np
import study

from minibert.equations.attention_positions import relative_buckets
from minibert.show import plot

# %% [markdown]
# ## Step 1: a T5, and where the table is
#
# In each head, attention computes a score for every pair of a query (the token that is computed) and a key (a token
# that it may use). T5 adds a learned number to that score. The number depends only on how far the key is from the
# query, and on which side. The table of these numbers is `relative_attention_bias`, in block 0; all other blocks use
# the same bias.

# %%
model = study.load("t5")

# %%
layer, config = model.layer, model.layer.config
print(layer)  # only the table of words
print(layer.attention_position.table.shape, "(buckets, heads)")
assert layer.family.model_type == config.model_type == "t5"

# %% [markdown]
# ## Step 2: distances share rows, the buckets
#
# The distances share the 32 rows of the table, the buckets. In the encoder half of them are for keys before the query
# (and the query itself), half for keys after it. Near distances have a bucket each; farther distances share a bucket,
# in ever wider ranges; all distances from 91 on share the last bucket. Bucket 16 is never used: it would mean a key
# after the query at distance 0. (T5's decoder only looks back. All its 32 buckets are for keys before the query, and
# the last bucket begins at distance 113.)

# %%
distances = np.arange(-400, 401)  # key - query
encoder, decoder = relative_buckets(distances), relative_buckets(distances, bidirectional=False)
assert sorted(set(range(32)) - set(encoder.tolist())) == [16] and sorted(set(decoder.tolist())) == list(range(32))
assert distances[encoder == 31].min() == 91 and distances[encoder == 15].max() == -91
assert distances[decoder == 31].max() == -113

# %% [markdown]
# ## Step 3: the bias that is added to the scores
#
# The stripes of the picture are the buckets. Without a trained T5 their numbers are random: no head has learned them.

# %%
bias = layer.attention_position.relative_bias(160, 160)
print("relative bias", bias.shape, "(heads, query, key)")
alt = "a line of colours for each head: the bias by the distance from query to key, a stripe for each bucket"
study.show(plot.relative_bias(bias), "t5-bias", of=f"relative bias of {model.name}", alt=alt)
assert np.array_equal(bias[:, :-1, :-1], bias[:, 1:, 1:]), "one step further for both changes nothing"
if (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128):
    assert np.ptp(bias[:, 0, 91:], axis=1).max() == 0.0, "keys 91 and more after the query share one row"
    assert np.any(bias[:, 0, 90] != bias[:, 0, 91])

# %% [markdown]
# ## Exercises
#
# 1. Do two tokens get the same bias if both stand 1,000 tokens later?
# 2. How many buckets would T5's encoder need so that every distance from -127 to 127 has its own bucket? (Its largest
#    distance stays 128.)
