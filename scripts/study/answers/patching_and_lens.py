# %% [markdown]
# ## Answers
#
# 1. Yes: it still has its mask. The last token sees all tokens, and does not know their order at block 0. But a token
#    in the middle sees only earlier tokens, so its vector depends on them, and the next block sees that. Without
#    positions *and* mask the order is lost.

# %%
turned = [*ids[-2::-1], ids[-1]]
for mask in (False, True):
    change = minibert.knock_out(gpt2, positions=True, mask=mask)
    apart = np.abs(gpt2([ids], change=change)[0, -1] - gpt2([turned], change=change)[0, -1]).max()
    print(f"without positions{' and mask' if mask else ''}: the last vectors are up to {apart:.1e} apart")
    assert (apart < 1e-3) == mask

# %% [markdown]
# 2. The output for the first text: between two blocks the hidden states hold all that the model knows of a text.

# %%
theirs = encoder.trace(**first)
for i in range(blocks + 1):
    found = encoder(**second, change={f"hidden_states.{i}": theirs[f"hidden_states.{i}"]})
    assert np.abs(found - encoder(**first)).max() < CLOSE
