# %% [markdown]
# ## Answers
#
# 1. The bias of its output map, the same for every token: the context is 0, and `0 @ weight^T + bias` is left.

# %%
gone = encoder.trace(**batch, change=minibert.knock_out(encoder, heads=[(0, h) for h in range(heads)]))
output = encoder.stack.blocks[0].attention.output
assert np.abs(gone[output][0] - encoder[output].bias).max() < CLOSE

# %% [markdown]
# 2. An encoder of the other blocks alone, one after the other: a vector leaves a knocked-out block as it entered.

# %%
kept = [study.plain_block(block) for i, block in enumerate(encoder.stack.blocks) if i not in (2, 3)]
entering, eps = plain["hidden_states.0"], encoder.config.layer_norm_eps
shorter = minibert.equations.bert_encoder(entering, batch["attention_mask"], kept, heads, eps)
without = encoder(**batch, change=minibert.knock_out(encoder, blocks=[2, 3]))
print(f"blocks 2 and 3 knocked out, and left out: at most {np.abs(shorter - without).max():.0e} apart")
assert np.abs(shorter - without).max() < CLOSE
