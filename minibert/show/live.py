"""The live page, `minibert explain --live`: its answers, JSON in and JSON out, and the server that sends them.

Every number comes from a `trace`, with `change=` for a head that is off or a token that is replaced, or from a formula
of `equations` on it. The page is the page of `minibert explain --html` with one more part, and draws each state as that
page does.

Only a caller who has the URL may ask: its token opens the page, and the script sends the token with each question. The
server refuses a request to a name that is not this machine's, and a request from a page of another origin.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Semaphore
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.heads import drawn, next_word_probabilities
from minibert.equations.input_layer import Array
from minibert.equations.sentences import cosine, mean
from minibert.equations.similarity import top_indices
from minibert.errors import MinibertError, Option, parts_of
from minibert.http_guard import LOCAL, PATIENCE, REST, Refusal, check_fields, has_token, host_name, read_json
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.patching import patching_map
from minibert.threads.computing import compute

from .attention import PARTS, named_kinds, opened_cell, shares_of, terms_of
from .live_state import SAVED, State, change_of, check_token, read_question, read_state, with_replaced
from .page import KEPT, Beside, Run, check_size, contents, first_choice, render_page, shown_tokens
from .page_parts import as_json, rendered
from .prediction import activation_of, names_of, shown_head, token_name
from .text import visible

MOST_TOKENS = 128
FEW_POSITIONS = 24
COMPARED = 5  # likeliest predictions of each of two runs
MAPPED = 32  # most tokens in a map: each token needs one run per block
REMEMBERED = 4  # runs kept for later questions
SHOWN = 12  # likeliest words shown with a sampled one
WORD_HEADS = ("masked_word", "next_word")  # heads with words as labels
SCRIPTS = ("live", "live_heads", "live_changes", "live_cell", "live_map", "live_sampling")

LONGEST_QUESTION = 1 << 18  # bytes
MOST_CONNECTIONS = 16  # at a time; a browser opens six
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class Runs(NamedTuple):
    """The run of a state, and the run of its text as typed."""

    run: Run
    typed: Run


class Live:
    """Answer a live page's requests with one model; safe to call from many threads at once.

    name  the model's name on the page
    """

    def __init__(self, model: EmbeddingLayer | Encoder, name: str | None = None) -> None:
        self.encoder: Encoder | None = None if isinstance(model, EmbeddingLayer) else model
        self.layer = model if isinstance(model, EmbeddingLayer) else model.embeddings
        self.name = name
        self.head, self.no_head = (None, "") if self.encoder is None else shown_head(self.encoder)
        self._runs = lru_cache(REMEMBERED)(self._computed)

    @property
    def answers(self) -> dict[str, Callable[[Any], Any]]:
        """Map each question's name to the method that answers it; the method raises ValueError for misuse."""
        methods = dict(state=self.state, sample=self.sample, cell=self.cell, map=self.map, saved=self.saved)
        return {name: partial(self._in_turn, method) for name, method in methods.items()}

    def _in_turn(self, method: Callable[[Any], Any], sent: Any) -> Any:
        """Answer through `compute`, as several questions may come at once: BLAS's threads would wait for each other."""
        answers: list[Any] = []
        threads = None if self.encoder is None else self.encoder.threads
        compute(lambda sent: answers.append(method(sent)), [sent], threads)
        return answers[0]

    def usual_text(self) -> str:
        """The initial text: with a mask if the model predicts masked words, and short if it has few positions."""
        longest = self.layer.max_length
        mask = self.layer.tokenizer.mask if self.head is not None and self.head.name == "masked_word" else None
        if longest is not None and longest < FEW_POSITIONS:
            return f"questi{mask}n" if mask else "wonderfu"
        return f"The bank of the river was {mask or 'muddy'}."

    def page(self, text: str, saved: dict[str, Any] | None = None) -> str:
        """Write the page, open at a text. saved: a question to `Live.saved`, whose page needs no server."""
        state = State(text) if saved is None else read_state(saved["state"])
        runs = self._runs(state)
        numbers = as_json(self._live(state, runs) | ({"saved": saved} if saved else {}))
        live = {
            "style": rendered("page_live.css"),
            "asked": rendered("page_asked.html"),
            "live": f'{rendered("page_live.html")}<script type="application/json" id="livedata">{numbers}</script>',
            "live_script": "\n".join(f"<script>\n{rendered(f'page_{name}.js')}</script>" for name in SCRIPTS),
            "connect": "" if saved else "; connect-src 'self'",
        }
        run = runs.run if self.encoder is None else runs.run._replace(beside=runs.run.beside or Beside("", [], {}))
        return render_page(run, visible(state.text, KEPT), self.name, self.no_head, live)

    def state(self, sent: Any) -> dict[str, Any]:
        """Compute the numbers that the page draws of a state."""
        state = read_state(sent)
        runs = self._runs(state)
        shown = contents(runs.run)
        numbers = {"besidedata": None} | shown.numbers | {"livedata": self._live(state, runs)}
        return shown._asdict() | {"numbers": numbers, "text": visible(state.text, KEPT)}

    def sample(self, sent: Any) -> dict[str, Any]:
        """Draw a word at a token's position by temperature, top-k and top-p, beside the likeliest words.

        k 0 leaves top-k out; temperature 0 returns the likeliest word. Raises ValueError for settings that
        `next_word_probabilities` refuses.
        """
        state, token, temperature, k, p, seed = read_question("sample", sent)
        runs = self._runs(state)
        if self.encoder is None or self.head is None or self.head.name not in WORD_HEADS:
            raise ValueError("this model has no head for words, so there is nothing to choose from")
        logits = runs.run.trace["logits"][0]
        check_token(token, len(logits))
        tokenizer, ids = self.layer.tokenizer, runs.run.batch["input_ids"][0].tolist()
        chosen = logits[token].astype(np.float64)
        if temperature == 0:  # the likeliest
            probabilities = np.eye(1, len(chosen), int(chosen.argmax()))[0]
        else:
            probabilities = next_word_probabilities(chosen, temperature, k or None, p)
        word, plain = drawn(probabilities, np.random.default_rng(seed).random()), softmax(chosen)
        likeliest = np.argsort(-chosen, kind="stable")[:SHOWN].tolist()
        last = self.head.name == "next_word" and token + 1 == len(ids)
        name = partial(token_name, self.encoder)
        return {
            "words": [[name(i), float(plain[i]), float(probabilities[i])] for i in likeliest],
            "kept": int(np.count_nonzero(probabilities)),
            "sampled": [name(word), float(probabilities[word])],
            "appended": tokenizer.decode([*ids, word])[len(tokenizer.decode(ids)) :] if last else None,
        }

    def cell(self, sent: Any) -> dict[str, Any]:
        """Compute one cell of attention, number by number: see `opened_cell`."""
        state, *numbers = read_question("cell", sent)
        runs = self._runs(state)
        if self.encoder is None:
            raise ValueError("this model has no blocks here, so it has no attention weights")
        cell, (block, *place) = opened_cell(self.encoder, runs.run.trace, *numbers), numbers
        for query, key in set(state.terms) if block == 0 else ():
            number = -float(terms_of(self.encoder, runs.run.batch)[(query, key, *place)])
            cell["terms"].append({"name": f"{PARTS[query]} with {PARTS[key]}, taken out", "number": number})
            cell["sum"] += number
        return cell

    def map(self, sent: Any) -> dict[str, Any]:
        """Compute which hidden states of the text restore its prediction at a token in the second text's run.

        Both texts are as typed: see `patching_map`.
        """
        state, token = read_question("map", sent)
        if self.encoder is None or not state.beside:
            raise ValueError("a map needs a model with blocks and a second text; write one at the top")
        count = self._batch(state.text, "the text")["input_ids"].shape[1]
        if count > MAPPED:
            raise ValueError(f"a map takes up to {MAPPED} tokens, found {count}: each needs runs; shorten the text")
        patched = patching_map(self.encoder, state.text, state.beside, token)
        name = partial(token_name, self.encoder)
        pairs = patched.ids.T.tolist()
        return {
            "shares": patched.shares.tolist(),
            "tokens": [name(one) if one == two else f"{name(one)} | {name(two)}" for one, two in pairs],
            "token": patched.token,
            "word": name(patched.label),
            "chances": np.exp([patched.clean, patched.corrupted]).tolist(),
        }

    def saved(self, sent: Any) -> dict[str, str]:
        """Write one state as a page that needs no server; the page contains the question."""
        fields = check_fields(SAVED, sent)
        return {"html": self.page("", {name: fields.get(name) for name in SAVED})}

    # -- runs ------------------------------------------------------------------------------------------------

    def _batch(self, text: str, title: str) -> dict[str, Any]:
        most = min(self.layer.max_length or MOST_TOKENS, MOST_TOKENS)
        try:
            batch: dict[str, Any] = self.layer.tokenize(text)
        except ValueError as error:
            if not any(isinstance(part, Option) for part in parts_of(error)):
                raise
            # the message names an argument of `tokenize`, which the page does not have
            raise ValueError(f"{title} has more tokens than the {most} that this page takes; shorten it") from None
        count = batch["input_ids"].shape[1]
        if not 0 < count <= MOST_TOKENS:
            raise ValueError(f"{title} has {count} tokens, but this page takes 1 to {most}; change it")
        check_size(self.encoder or self.layer, count)
        return batch

    def _computed(self, state: State) -> Runs:
        batch, causal = self._batch(state.text, "the text"), bool(self.encoder and self.encoder.stack.causal)
        first = first_choice(self.layer, batch["input_ids"][0], causal)
        if self.encoder is None:
            if state._replace(text="") != State(""):
                raise ValueError("this model has no blocks here, so only the text can be changed")
            typed = Run(self.layer, None, None, batch, self.layer.trace(**batch), first)
            return Runs(typed, typed)
        head = self.head and self.head.name
        other = None
        if state.beside:
            other_batch = self._batch(state.beside, "the other text")
            other = Beside(
                state.beside, shown_tokens(self.layer, other_batch["input_ids"]), self.encoder.trace(**other_batch)
            )
        batch["input_ids"] = with_replaced(self.layer, batch["input_ids"], state.replaced)
        change = change_of(self.encoder, state, other and other.trace, batch)
        trace = self.encoder.trace(**batch, change=change or None, head=head)
        adds_up = not (state.blocks or state.patches)
        run = Run(self.layer, self.encoder, self.head, batch, trace, first, other, adds_up)
        as_typed = state._replace(beside="") == state.typed
        return Runs(run, run._replace(beside=None) if as_typed else self._runs(state.typed).typed)

    def _live(self, state: State, runs: Runs) -> dict[str, Any]:
        numbers: dict[str, Any] = {
            "state": state.as_json,
            "family": self.layer.family.model_type,
            "half": len(self.layer.family.sides) > 1,
            "blocks": 0,
            "words": False,
        }
        if self.encoder is None:
            return numbers
        blocks = len(self.encoder.stack.blocks)
        weights = np.stack([runs.run.trace[f"attentions.{i}"][0] for i in range(blocks)])
        tokenizer, input_ids = self.layer.tokenizer, runs.run.batch["input_ids"][0]
        separator = tokenizer.named.get("sep")
        return numbers | {
            "blocks": blocks,
            "words": self.head is not None and self.head.name in WORD_HEADS,
            "kinds": named_kinds(weights, input_ids, tokenizer.id_of(separator) if separator else None, separator),
            "change": self._change(self.encoder, runs),
            "terms": _terms(self.encoder, runs.run.batch),
        }

    def _change(self, encoder: Encoder, runs: Runs) -> dict[str, Any]:
        """Compare the predictions of each token before and after the change; without a head, the mean vectors."""
        if self.head is None:
            last = f"hidden_states.{len(encoder.stack.blocks)}"
            means = [mean(run.trace[last]) for run in (runs.typed, runs.run)]
            return {"cosine": float(cosine(*means)[0, 0])}
        activate, chance = activation_of(encoder, self.head)
        logits = [run.trace["logits"].reshape(-1, self.head.labels) for run in runs]
        now, before = map(activate, logits)
        k = min(COMPARED, self.head.labels)
        likeliest = zip(*(top_indices(x, k) for x in logits), strict=True)
        labels = [np.concatenate([first, second[~np.isin(second, first)]]) for first, second in likeliest]
        names = names_of(encoder, self.head, np.concatenate(labels))
        rows = [
            [[names[i], float(before[row, i]), float(now[row, i])] for i in likely.tolist()]
            for row, likely in enumerate(labels)
        ]
        return {"each": self.head.pooling == "every", "chance": chance, "rows": rows}


def _terms(encoder: Encoder, batch: Mapping[str, Array]) -> dict[str, Any] | None:
    """Compute each term's share by head, None if a head's scores are all equal; None if there are no nine terms."""
    try:
        shares = shares_of(encoder, terms_of(encoder, batch))
    except ValueError:
        return None
    numbers = shares.astype(object)
    numbers[~np.isfinite(shares)] = None
    return {"parts": PARTS, "shares": numbers.tolist()}


# -- the server -------------------------------------------------------------------------------------------------------


class LiveServer(ThreadingHTTPServer):
    """Serve the page at a listening socket.

    page     returns the page, as HTML
    answers  name of a question -> the function that answers it: JSON to JSON; it raises ValueError for misuse
    """

    daemon_threads, block_on_close = True, False  # an open connection does not keep the server running

    def __init__(
        self, listening: socket.socket, page: Callable[[], str], answers: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.answers = page, answers
        self.token = secrets.token_urlsafe(16)
        self.lock = Lock()  # for one computation at a time: each takes all cores
        self.free = Semaphore(MOST_CONNECTIONS)

    @property
    def url(self) -> str:
        """The address that opens the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.token}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection once one is free; until then it waits in the listening socket's queue."""
        if not self.free.acquire(timeout=0.5):
            raise TimeoutError  # the loop continues, and can end
        try:
            return super().get_request()
        except OSError:
            self.free.release()
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a connection, unless its client has left: a browser does that at any time."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version, timeout, server_version, sys_version = "HTTP/1.1", PATIENCE, "minibert", ""
    server: LiveServer

    def do_GET(self) -> None:
        self._answer(self._page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        self._answer(self._answered, "application/json")

    def _page(self) -> str:
        address = urlsplit(self.path)
        if address.path != "/":
            raise Refusal(404, "this server serves only its page")
        if not has_token(f"Bearer {parse_qs(address.query).get('token', [''])[0]}", self.server.token):
            raise Refusal(401, "open this page by the whole address that `minibert explain --live` has printed")
        with self.server.lock:
            return self.server.page()

    def _answered(self) -> str:
        if not has_token(self.headers.get("authorization", ""), self.server.token):
            raise Refusal(401, "a question needs the token of the page's address: Authorization: Bearer TOKEN")
        answer = self.server.answers.get(self.path.removeprefix("/"))
        if answer is None:
            raise Refusal(404, "this server serves only its page")
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LONGEST_QUESTION):
            raise Refusal(413, f"the question has more than {LONGEST_QUESTION} bytes; shorten it")
        question = read_json(self.rfile.read(int(length)))
        with self.server.lock:
            return json.dumps(answer(question), allow_nan=False, separators=(",", ":"))

    def _answer(self, make: Callable[[], str], kind: str) -> None:
        try:
            self._check_host()
            body = make()
        except Refusal as error:
            return self.send_error(error.status, str(error))
        except (MinibertError, ValueError, IndexError, RecursionError) as error:
            return self.send_error(400, str(error))
        except OSError:  # the client has left, or is silent
            self.close_connection = True
            return None
        except Exception as error:  # noqa: BLE001  the page shows it
            return self.send_error(500, f"an error of the server: {type(error).__name__}")
        return self._send(200, kind, body)

    def _check_host(self) -> None:
        """Refuse foreign Host headers (DNS rebinding) and foreign origins."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        if host_name(host) not in LOCAL:
            raise Refusal(403, f"this page answers only at 127.0.0.1 and localhost, found {host!r:.80}")
        if origin is not None and origin != f"http://{host}":
            raise Refusal(403, f"this server answers only its own page, found a page of {origin!r:.80}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a refusal, and close the connection, so that unread bytes are not read as a second request.

        The rest of the request is read and dropped: if the connection closed before, the client might lose the answer.
        """
        self.close_connection = True
        self._send(code, "application/json", json.dumps({"error": {"message": message or "not answered here"}}))
        self.connection.shutdown(socket.SHUT_WR)
        left = REST
        while left > 0 and (dropped := len(self.connection.recv(1 << 16))):
            left -= dropped

    def _send(self, status: int, kind: str, body: str) -> None:
        written = body.encode("utf-8", "backslashreplace")
        self.send_response(status)
        closing = {"Connection": "close"} if self.close_connection else {}
        content = {"Content-Type": kind, "Content-Length": str(len(written))}
        for name, value in (content | HEADERS | closing).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Write no line for each request."""
