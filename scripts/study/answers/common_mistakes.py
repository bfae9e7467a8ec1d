# %% [markdown]
# ## Answers
#
# 1. By `sqrt((dim - 1) / dim)`: 0.99870 for 384 numbers, 0.99935 for 768. The factor is the same for every number, so
#    nothing looks strange.

# %%
x = np.random.default_rng(0).standard_normal((4, 384))
wrong = (x - x.mean(axis=-1, keepdims=True)) / np.std(x, axis=-1, ddof=1, keepdims=True)
factor = wrong / layer_norm(x, np.ones(384), eps=0.0)
print(f"wrong by the factor {factor.min():.5f} to {factor.max():.5f}")
assert np.allclose(factor, np.sqrt(383 / 384))
assert [round((1 - 1 / dim) ** 0.5, 5) for dim in (384, 768)] == [0.9987, 0.99935]

# %% [markdown]
# 2. "padding counted as tokens". A text alone has no padding, so nothing is counted wrongly. "positions from 0"
#    is wrong for a text alone too.

# %%
with study.tiny("roberta") as right:
    text, pad = np.array([[7, 8, 9]]), right.config["pad_token_id"]
    padded = np.array([[pad, pad, pad, 7, 8, 9]])
    for name in ("padding counted as tokens", "positions from 0"):
        mistake = mistaken(right, name)
        wrong = [traced(right, {"input_ids": ids}, mistake)["sum"] for ids in (text, padded)]
        alone = np.array_equal(wrong[0], right.trace(text)["sum"])
        left = np.array_equal(wrong[1][:, 3:], right.trace(padded)["sum"][:, 3:])
        print(f"{name}: {'right' if alone else 'wrong'} alone, {'right' if left else 'wrong'} with padding on the left")
        assert alone == (name == "padding counted as tokens") and not left

# %% [markdown]
# 3. The cell counts them: 8 of 19 in all-MiniLM-L6-v2. Some pass because the tolerance is too wide; it must be just
#    above what rounding explains, `2e-6` here. The rest pass because a plain batch cannot show them: it has no padding
#    and no cache. A test needs both: the right tolerance and the right batches.

# %%
with contextlib.nullcontext(model.layer) as right:
    plain = batches(right)["plain"]
    expected = list(trace(right, plain).values())[-1]
    wrong = {name: traced(right, plain, mistaken(right, name)) for name in ours}
passing = [name for name in ours if np.allclose(list(wrong[name].values())[-1], expected, rtol=0, atol=1e-2)]
print(f"{len(passing)} of {len(ours)} pass: {', '.join(passing)}")
assert {"variance divided by dim - 1", "rows added in the other order"} <= set(passing)
if model.is_minilm:
    assert (len(passing), len(ours)) == (8, 19)
assert "type rows left out" not in passing
