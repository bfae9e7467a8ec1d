# %% [markdown]
# ## Answers
#
# 1. Yes: only the distance counts. So T5 needs no row for position 1,000, and no text is too long for it.

# %%
longer = layer.attention_position.relative_bias(1010, 1010)
assert np.array_equal(longer[:, 1000:, 1000:], longer[:, :10, :10])

# %% [markdown]
# 2. There are 255 distances, and they need at least 278 buckets. Each side has half of the buckets, 139. Half of these,
#    69, are for the distances 0 to 68. Then the ranges grow, but from 69 to 127 they are still narrower than one
#    distance. With 512 buckets the near distances alone would reach to 127, and no distance would be left for the
#    growing ranges: that is an error here. With T5's 32 buckets the 255 distances share 31 numbers.

# %%
near = np.arange(-127, 128)


def numbers(buckets: int) -> int:
    return len(set(relative_buckets(near, buckets=buckets, max_distance=128).tolist()))


assert numbers(278) == len(near) == 255
assert max(numbers(fewer) for fewer in range(4, 278)) < 255
try:
    numbers(512)
except ValueError as error:
    print(error)
else:
    raise AssertionError("512 buckets and a largest distance of 128 must be refused")
print(f"with 32 buckets these 255 distances have {numbers(32)} numbers")
assert numbers(32) == 31
