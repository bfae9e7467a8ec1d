"""The two probes of Wang and Chen: they read a position from one row of a table, and the order from two.

A probe is a small model, trained to answer one question from the rows alone. If it answers right, the rows contain the
answer. A row has about as many numbers as there are rows to learn from, so a probe could learn its rows by heart. A
penalty on long weights prevents that. Its best strength depends on the table, so it is chosen on samples that are held
out of the training samples. Everything is computed in float64, with NumPy alone. `position_probes.py` explains both
probes and uses them first.

Source
    Wang and Chen 2020, "What Do Position Embeddings Learn?" (arXiv:2010.04903): the questions, the data
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from minibert.equations.input_layer import Array

# Newton stops after a step that should lower the loss by less than this part of it
PROMISE = 1e-12
# the penalties that a probe chooses from: linear regression, logistic regression
LINEAR = tuple(10.0**power for power in range(-6, 4))
LOGISTIC = tuple(10.0**power for power in range(-4, 3))

Weights = tuple[Array, float]  # w (features,) and the intercept b
Fit = Callable[[Array, Array, float], Weights]
Loss = Callable[[Array, Array], Array]


def k_folds(count: int, folds: int = 5) -> Iterator[tuple[Array, Array]]:
    """Split 0..count-1 into consecutive parts; each is tested once, after training on the rest: (train, test) ids.

    Nothing is shuffled here: the probes shuffle before. Raises ValueError for folds outside 2..count.

    >>> [test.tolist() for train, test in k_folds(5, folds=2)]
    [[0, 1, 2], [3, 4]]
    """
    if not 2 <= folds <= count:
        raise ValueError(f"folds must be in 2..{count}, the number of samples; found {folds}")
    samples = np.arange(count)
    for test in np.array_split(samples, folds):
        yield np.delete(samples, test), test


def chosen_penalty(fit: Fit, loss: Loss, x: Array, y: Array, penalties: Sequence[float]) -> float:
    """Choose the penalty whose fit to four fifths of the samples has the smallest loss on the remaining fifth.

    x (samples, features), y (samples,), in random order; `loss(f, y)` with f = x w + b is one number for each sample.

    >>> x, y = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> chosen_penalty(linear_regression, squared_error, x, y, penalties=(10.0, 0.1, 1.0))
    0.1
    """
    train, held_out = next(k_folds(len(x)))

    def mean_loss(penalty: float) -> float:
        w, b = fit(x[train], y[train], penalty)
        return float(loss(x[held_out] @ w + b, y[held_out]).mean())

    return min(penalties, key=mean_loss)


def squared_error(f: Array, y: Array) -> Array:
    """The loss of linear regression: `(f - y)^2`.

    >>> squared_error(np.array([1.0, 5.0]), np.array([1, 2]))
    array([0., 9.])
    """
    return (f - y) ** 2


def log_loss(f: Array, y: Array) -> Array:
    """The loss of logistic regression: `-log` of the probability that sigmoid(f) gives to the true y.

    >>> log_loss(np.array([0.0, 0.0]), np.array([True, False])).round(4)  # log 2
    array([0.6931, 0.6931])
    """
    return np.logaddexp(0, f) - y * f


def linear_regression(x: Array, y: Array, penalty: float = 0.0) -> Weights:
    """Ridge regression with an intercept: the w and b for which this is least:

        loss = sum((x w + b - y)^2) + penalty * |w|^2

    x (samples, features), y (samples,) -> w (features,), b. b has no penalty: both sides are centred first, so it is
    not part of w. Without a penalty many w fit exactly if there are more features than samples; then the shortest w is
    returned.

    >>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([5.0, 7.0, 9.0])
    >>> [(w.round(4), round(b, 4)) for w, b in (linear_regression(x, y), linear_regression(x, y, penalty=2.0))]
    [(array([2.]), 5.0), (array([1.]), 6.0)]
    """
    x_mean, y_mean = x.mean(axis=0), y.mean()
    x, y = x - x_mean, y - y_mean
    if penalty:
        w = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
    else:
        w = np.linalg.lstsq(x, y, rcond=None)[0]
    return w, float(y_mean - x_mean @ w)


def logistic_regression(x: Array, y: Array, penalty: float = 1.0) -> Weights:
    """The w and b whose `sigmoid(x w + b)` is nearest to the probability of y, with a short w.

        loss = sum(log(1 + exp(f)) - y f) + penalty * |w|^2 / 2,   f = x w + b

    x (samples, features), y (samples,) of bool -> w (features,), b. The intercept b has no penalty. The best w is a
    combination of the samples, so it is sought in their span: x = L Q^T with orthonormal columns in Q, and w = Q u has
    the length of u. So 1536 features of 410 samples become 410 unknowns. Newton's method computes them to rounding
    error in some ten steps.

    Raises ValueError if y has only one class (b would be infinite), x is not finite, or Newton does not converge.

    >>> w, b = logistic_regression(np.array([[-1.0], [1.0]]), np.array([False, True]))
    >>> w.round(4), round(b, 4)  # 2 / (1 + e^w) = w
    (array([0.6748]), 0.0)
    """
    if y.all() or not y.any() or not np.all(np.isfinite(x)):
        raise ValueError("need samples of both classes and finite features; draw more pairs or mend the table")
    q, r = np.linalg.qr(x.T)
    z = np.column_stack([r.T, np.ones(len(x))])
    cost = np.append(np.full(q.shape[1], penalty), 0.0)
    u = np.zeros(len(cost))

    def loss(u: Array) -> float:
        return float(np.sum(log_loss(z @ u, y)) + np.sum(cost * u * u) / 2)

    for _ in range(100):
        p = (1 + np.tanh(z @ u / 2)) / 2  # the sigmoid without overflow
        slope = (p - y) @ z + cost * u
        root = z * np.sqrt(p * (1 - p))[:, None]
        step = np.linalg.solve(root.T @ root + np.diag(cost), slope)
        promise, start = slope @ step, loss(u)
        if promise < PROMISE * (1 + start):
            return q @ (u - step)[:-1], float((u - step)[-1])
        while loss(u - step) > start:  # far from the minimum a whole step can be too long
            step /= 2
        u = u - step
    raise ValueError(f"Newton did not end in 100 steps, penalty = {penalty}; bring the features to a size near 1")


def absolute_position_data(table: Array, seed: int = 0) -> tuple[Array, Array]:
    """Samples for the absolute probe: the table's rows in random order (float64), and the position of each.

    >>> x, y = absolute_position_data(np.array([[0.5], [1.5], [2.5]]))
    >>> bool(np.all(x[:, 0] == y + 0.5))
    True
    """
    positions = np.random.default_rng(seed).permutation(len(table))
    return table[positions].astype(np.float64), positions


def absolute_position_error(table: Array, seed: int = 0, folds: int = 5, penalty: float | None = None) -> float:
    """Measure the error with which a linear function reads a row's position: the mean of |round(x w + b) - p|.

    table (positions, dim) -> the mean over the folds; each row is read by a regression that has not seen it. Without a
    penalty given, each fold chooses one of LINEAR on a part of its training rows. Measured over the seeds 0 to 9: 0.00
    for 512 sinusoids, 15.6 (14.5 to 17.0) for the 512 rows of all-MiniLM-L6-v2, 30.1 (28.0 to 36.3) for the rows of
    bert-base-uncased. The constant answer 256 is 128 off. Source: Wang and Chen 2020, with shuffled positions as in
    their code.

    >>> absolute_position_error(np.arange(10.0)[:, None])
    0.0
    """
    x, y = absolute_position_data(table, seed)
    errors = []
    for train, test in k_folds(len(x), folds):
        strength = penalty
        if strength is None:
            strength = chosen_penalty(linear_regression, squared_error, x[train], y[train], LINEAR)
        w, b = linear_regression(x[train], y[train], strength)
        errors.append(np.mean(np.abs(np.round(x[test] @ w + b) - y[test])))
    return float(np.mean(errors))


def relative_position_data(table: Array, seed: int = 0, pairs: int = 512) -> tuple[Array, Array]:
    """Samples for the relative probe: random pairs of rows side by side, and whether the second stands later.

    table (positions, dim) -> x (pairs, 2 dim) float64, y (pairs,) bool. The pairs are drawn without repetition from all
    positions * positions ordered ones, so (3, 3) can occur, and it counts as "not later".

    Raises ValueError if the table has fewer pairs than that.

    >>> x, y = relative_position_data(np.array([[0.0], [1.0]]), pairs=4)
    >>> sorted(zip(x.tolist(), y.tolist()))
    [([0.0, 0.0], False), ([0.0, 1.0], True), ([1.0, 0.0], False), ([1.0, 1.0], False)]
    """
    if pairs > len(table) ** 2:
        raise ValueError(f"pairs is {pairs}, but {len(table)} positions make only {len(table) ** 2}; ask for fewer")
    drawn = np.random.default_rng(seed).choice(len(table) ** 2, pairs, replace=False)
    first, second = np.divmod(drawn, len(table))
    return np.hstack([table[first], table[second]]).astype(np.float64), second > first


def later(f: Array) -> Array:
    """Check whether the log odds f mean "later". A tie, f = 0, means "not later", as in y for a row beside itself.

    >>> later(np.array([-1.0, 0.0, 1.0]))
    array([False, False,  True])
    """
    answer: Array = f > 0
    return answer


def relative_position_error(
    table: Array, seed: int = 0, pairs: int = 512, folds: int = 5, penalty: float | None = None
) -> float:
    """Compute the share of pairs of rows whose order logistic regression gets wrong.

    table (positions, dim) -> the mean over the folds of the share of pairs misjudged; a coin is wrong about 0.5.
    Without a penalty given, each fold chooses one of LOGISTIC on a part of its training pairs: one penalty for all
    would favour tables of large numbers. Measured over the seeds 0 to 9: 0.059 for 512 sinusoids of width 512 and 768,
    0.057 (0.039 to 0.072) for the 512 rows of all-MiniLM-L6-v2, 0.124 (0.104 to 0.143) for the rows of
    bert-base-uncased. Source: Wang and Chen 2020, with pairs as in their code.

    Raises the errors of `relative_position_data` and `logistic_regression`.

    >>> 0.0 <= relative_position_error(np.arange(40.0)[:, None], pairs=100) < 0.1
    True
    """
    x, y = relative_position_data(table, seed, pairs)
    errors = []
    for train, test in k_folds(len(x), folds):
        strength = penalty
        if strength is None:
            strength = chosen_penalty(logistic_regression, log_loss, x[train], y[train], LOGISTIC)
        w, b = logistic_regression(x[train], y[train], strength)
        errors.append(np.mean(later(x[test] @ w + b) != y[test]))
    return float(np.mean(errors))
