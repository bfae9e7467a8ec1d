"""The page that computes: how long `minibert explain --live` takes to answer: live."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import minibert
from minibert.commands.serve import listen
from minibert.show.live import Live, LiveServer

from .measure import Limit, Row, Settings, compare
from .models import real_model

SMALL_GPT2 = Path(__file__).resolve().parents[1] / "study" / "gpt2-words"
WITHIN = Limit("<=", 200, "ms")


def live(settings: Settings) -> Iterator[Row]:
    """Each kind of question, over HTTP, from the request to the last byte; beside one plain call of the model.

    Every round asks about another text, so that nothing is remembered. What the browser draws comes on top.
    """
    for name, folder, texts in (
        (
            "MiniLM",
            real_model(),
            [f"{' '.join(['we lived above the clouds'] * 3)} for {n} years" for n in range(10, 90)],
        ),
        ("gpt2-words", SMALL_GPT2, ["wonderful" + chr(97 + n % 26) * 3 + chr(97 + n // 26) * 3 for n in range(80)]),
    ):
        encoder = minibert.load_encoder(folder)
        count = encoder.tokenize(texts[0])["input_ids"].size
        questions: dict[str, tuple[str, Any]] = {
            "another text": ("state", lambda text: {"text": text}),
            "a head and a block switched off": ("state", lambda text: {"text": text, "heads": [[1, 2]], "blocks": [0]}),
            "values of a second text put in": ("state", lambda text: {
                "text": text, "beside": text.replace("e", "a"),
                "patches": [{"what": "stream", "block": 1, "place": 2, "source": 2}]}),
            "one cell, number by number": ("cell", lambda text: {
                "state": {"text": text}, "block": 1, "head": 2, "query": 5, "key": 4}),
        }  # fmt: skip
        if "next_word" in encoder.heads:
            drawn = {"token": 1, "temperature": 0.7, "k": 8, "p": 0.9, "seed": 0}
            questions["a word drawn"] = ("sample", lambda text, drawn=drawn: {"state": {"text": text}, **drawn})
        with answering(Live(encoder)) as ask:
            for what, (route, make) in questions.items():
                ours, plain = list[float](), list[float]()
                for text in texts[: settings.rounds(60) + 3]:
                    ids, question = encoder.tokenize(text), make(text)
                    began = perf_counter()
                    encoder(**ids)
                    between = perf_counter()
                    ask(route, question)
                    ours.append(perf_counter() - between)
                    plain.append(between - began)
                yield compare(f"{name}, {count} tokens: {what}", ours[3:], plain[3:], "one call of the model",
                              limit=WITHIN)  # fmt: skip


@contextmanager
def answering(page: Live) -> Iterator[Any]:
    """Serve the page meanwhile; give what asks one question."""
    with LiveServer(listen("127.0.0.1", 0), lambda: "", page.answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])

        def ask(route: str, question: Any) -> None:
            connection.request("POST", f"/{route}", json.dumps(question), {"Authorization": f"Bearer {server.token}"})
            answer = connection.getresponse()
            found = answer.read()
            if answer.status != 200:
                raise RuntimeError(found.decode())

        yield ask
        connection.close()
        server.shutdown()
        thread.join()
