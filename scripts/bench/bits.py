"""The section bits: what the same bits cost, this state beside an older one, and what BLAS's threads give one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from .children import Contender, contenders
from .measure import OURS, Figures, Limit, Row, Settings, in_turn
from .models import real_model, short_texts
from .turns import CALLERS, EACH, two_busy

SAME, BEFORE, ONE = "same_bits=True", "the state before", "threads=1"
LENGTHS = range(5, 33)  # tokens of one text
AROUND = 3  # of them the model's own two and the full stop
MANY = {16: 15, 600: 7}  # texts of a call, and its rounds


def bits(settings: Settings) -> Iterable[Row]:
    """MiniLM on two threads, each contender in a process of its own."""
    with ExitStack() as stack:
        made = {}
        for who, where in {OURS: {}, SAME: {}, BEFORE: {"beside": settings.beside}}.items():
            if who != BEFORE or settings.beside:
                made[who] = stack.enter_context(Contender("bits.on_lengths", who, real_model(), **where))
        lengths = LENGTHS[:: 9 if settings.quick else 1]
        yield from _rows("encode 1 text of 5 to 32 tokens", _one(made, lengths, settings.rounds(9)),
                         "geometric mean over the lengths")  # fmt: skip
        for count, rounds in MANY.items():
            asked = {who: partial(each.ask, count, 5, 40) for who, each in made.items()}
            yield from _rows(f"encode {count} texts", Figures(in_turn(asked, settings.rounds(rounds))))
    yield from _threads(settings)


def _one(made: dict[str, Contender], lengths: Iterable[int], rounds: int) -> Figures:
    """The geometric mean of the lengths' times in each round: the ratio of two such is the mean of the ratios."""
    asked = {}
    for words in (tokens - AROUND for tokens in lengths):
        asked |= {(words, who): partial(each.ask, 1, words, words) for who, each in made.items()}
    times = in_turn(asked, rounds)
    own = {who: [times[key] for key in times if key[1] == who] for who in made}
    return Figures({who: list(map(geometric_mean, zip(*each, strict=True))) for who, each in own.items()})


def _rows(what: str, times: Figures, note: str = "") -> Iterator[Row]:
    yield times.row(f"{what}, {SAME}", OURS, SAME, "the usual", note=note)
    if BEFORE in times:
        yield times.row(what, BEFORE, faster=True, limit=Limit(">=", 0.98), note=note)


def _threads(settings: Settings) -> Iterator[Row]:
    """What it gives that one text may leave BLAS its threads, beside the same on one thread of ours."""
    with contenders("turns.on_callers", [OURS], real_model()) as made:
        for what, callers, around in (
            ("encode 1 text", 1, nullcontext),
            ("encode 1 text beside two busy processes", 1, two_busy),
            (f"{CALLERS} callers at once, a text each", CALLERS, nullcontext),
        ):
            with around():
                asked = {who: partial(made[OURS].ask, EACH, callers, threads) for who, threads in ((OURS, 0), (ONE, 1))}
                times = Figures(in_turn(asked, settings.rounds(15)))
            yield times.row(what, ONE, faster=True)


def on_lengths(who: str, folder: str) -> Callable[[int, int, int], tuple[Callable[[], Any], int]]:
    """Case [texts, fewest words, most words]: a text or a list of them, to vectors."""
    import minibert

    if not Path(minibert.__file__).is_relative_to(Path.cwd()):
        raise RuntimeError(f"expected minibert in {Path.cwd()}, found {minibert.__file__}")
    encoder = minibert.load_encoder(folder, **({"same_bits": True} if who == SAME else {}))

    def case(count: int, fewest: int, most: int) -> tuple[Callable[[], Any], int]:
        texts = short_texts(folder, count, fewest, most)
        return partial(encoder.encode, texts[0] if count == 1 else texts), 1

    return case
