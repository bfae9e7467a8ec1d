# %% [markdown]
# ## Answers
#
# 1. The feed-forward, if it is four times as wide as the model: 8 dim^2 against 4 dim^2.

# %%
sizes = [sum(part.weight.size for part in parts) for parts in (blocks[0][:4], (blocks[0].up, blocks[0].down))]
assert sizes[0] == 4 * encoder.dim**2 and sizes[1] == 2 * len(blocks[0].up.bias) * encoder.dim

# %% [markdown]
# 2. Yes: the sum would be x, and LayerNorm would still normalise it.

# %%
x = traces[0]["hidden_states.0"]
silent = blocks[0].output._replace(weight=0 * blocks[0].output.weight, bias=0 * blocks[0].output.bias)
no_down = blocks[0].down._replace(weight=0 * blocks[0].down.weight, bias=0 * blocks[0].down.bias)
nothing = blocks[0]._replace(output=silent, down=no_down)
assert np.abs(post_norm_block(x, nothing, encoder.stack.heads) - x).max() > 0.01
