# %% [markdown]
# ## Answers
#
# 1. No: the sum is x.

# %%
from minibert.equations.blocks import pre_norm_block, softmax

x = found["hidden_states.0"]
silent = block.output._replace(weight=0 * block.output.weight, bias=0 * block.output.bias)
no_down = block.down._replace(weight=0 * block.down.weight, bias=0 * block.down.bias)
assert np.array_equal(pre_norm_block(x, block._replace(output=silent, down=no_down), heads), x)

# %% [markdown]
# 2. Not at all: softmax divides by the sum, and the factor `exp(number)` cancels.

# %%
assert np.allclose(softmax(logits[-1:] + 3), softmax(logits[-1:].copy()), rtol=0, atol=1e-6)
