"""The section static: a static model that `distill` makes of MiniLM, beside model2vec and beside MiniLM itself.

Nothing heavy is imported here (see children.process).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .children import Contender, processes, python, there
from .measure import MIB, OURS, Figures, Limit, Row, Settings, compare, in_turn
from .models import once, real_model, short_texts
from .processes import NUMPY, TEXT

if TYPE_CHECKING:
    from .contenders import Call, Prepare

PEER, WHOLE = "model2vec", "MiniLM"
# its own threads, from 10,000 texts on, or the tokenizer's; the faster one is the peer
IN_THREADS, ONE_BY_ONE = f"{PEER}, batches in threads", f"{PEER}, one batch after another"
TEXTS, FEWER = 20_000, 600  # of a call; the whole model, a hundred times as slow, gets fewer
CODES = {
    NUMPY: "import numpy",
    OURS: "import minibert; minibert.load_encoder({folder!r}).encode({text!r})",
    PEER: "from model2vec import StaticModel; StaticModel.from_pretrained({folder!r}).encode({text!r})",
    WHOLE: "import minibert; minibert.load_encoder({whole!r}).encode({text!r})",
}

MAKING = """
import minibert, tempfile
with tempfile.TemporaryDirectory() as folder, minibert.load_encoder({whole!r}) as encoder:
    minibert.distill(encoder, folder + "/static")
"""


def static(settings: Settings) -> Iterator[Row]:
    """How fast it is, how large, how soon it is there, and what it takes to make one."""
    folder, whole = once(settings.models / "static", "write_static", real_model()), real_model()
    for threads in (1, 2):
        yield from _texts(settings, folder, threads)
    sizes = [float(sum(path.stat().st_size for path in each.iterdir() if path.is_file())) for each in (folder, whole)]
    yield compare("its folder on the disk", sizes[:1], sizes[1:], WHOLE, unit="B", note="of the space, not of memory")
    given = {"folder": str(folder), "whole": str(whole), "text": TEXT}
    commands = {who: python(code, **given) for who, code in CODES.items() if there(who)}
    seconds, peaks = processes(commands, settings.rounds(15))
    for who in (NUMPY, PEER, WHOLE):
        yield seconds.row("import, load, encode one sentence", who, faster=who != NUMPY)
        yield peaks.row("its peak memory", who, unit="B")
    seconds, peaks = processes({NUMPY: commands[NUMPY], OURS: python(MAKING, **given)}, settings.rounds(3))
    yield seconds.row("distill MiniLM", NUMPY, limit=Limit("<=", 30_000, "ms"))
    yield peaks.row("its peak memory", NUMPY, unit="B", limit=Limit("<=", 400e6 / MIB, "MiB"))


def _texts(settings: Settings, folder: Path, threads: int) -> Iterator[Row]:
    """Seconds of a text in a call of many, and of one text by itself, everybody on so many threads."""
    on = {"RAYON_NUM_THREADS": str(threads), "MINIBERT_THREADS": str(threads)}
    peers = (ONE_BY_ONE, IN_THREADS)[:threads]
    with ExitStack() as stack:
        made = {}
        for who in filter(there, (OURS, *peers, WHOLE)):
            each = Contender("static.on_texts", who, real_model() if who == WHOLE else folder, **on)
            made[who] = stack.enter_context(each)
        for count in (TEXTS, 1):
            times = Figures(in_turn({who: partial(each.ask, count) for who, each in made.items()}, settings.rounds(9)))
            what = f"encode {count:,} text{'s' * (count > 1)}, {threads} thread{'s' * (threads > 1)}"
            note = f"{1 / statistics.median(times[OURS]):,.0f} texts a second"
            yield times.row(what, times.fastest(*peers), faster=True, limit=Limit(">=", 1), note=note)
            yield times.row(what, WHOLE, faster=True, note=f"its call has {FEWER} texts" if count > 1 else "")


# -- what a contender does: case [texts] -------------------------------------------------------------------------------


def on_texts(who: str, folder: str) -> Prepare:
    """Of many texts one call; one text stands for nine, one after another. Divided by their number."""
    from .contenders import SINGLE

    if who in (ONE_BY_ONE, IN_THREADS):
        from model2vec import StaticModel

        encode = partial(StaticModel.from_pretrained(folder).encode, use_multiprocessing=who == IN_THREADS)
    else:
        import minibert

        encode = minibert.load_encoder(folder).encode

    def prepare(count: int) -> tuple[Call, int]:
        texts = short_texts(folder, FEWER if who == WHOLE and count > FEWER else max(count, SINGLE), 5, 40)
        return (lambda: encode(texts) if count > 1 else [encode(text) for text in texts]), len(texts)

    return prepare
