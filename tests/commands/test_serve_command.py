"""`minibert serve` as a process: its address, its errors at the start, and its end."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed, failure
from limits import until
from reference_files import REFERENCE
from served import EMBEDDINGS, MODEL, SECONDS, Address, needs_server, serving

import minibert
from minibert.cli import main
from minibert.serve.options import from_variables

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

MANY = 2048  # texts that keep the server at work for a while
RERANKER = str(REFERENCE / "uses-reranker")
HALF = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"


@contextmanager
def half_a_request(address: Address) -> Iterator[socket.socket]:
    """Be a client that the server waits for, for longer than the test."""
    with socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
        client.sendall(HALF)
        until(lambda: address.ask("/info").json["requests_inside"] >= 2)
        yield client
        assert client.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_it_answers_and_ends_with_exit_code_0(tmp_path: Path) -> None:
    """SIGTERM comes in the middle of a request: that is answered first."""
    (tmp_path / "token").write_text("geheim\n")
    options = "--reranker", RERANKER, "--token-file", str(tmp_path / "token"), "--threads", "1", "--max-grace", "600"
    names = "--name", "small", "--name", f"best={RERANKER}", "--name", "tiny"
    with serving(*options, *names, said="small, best") as (process, address):
        token = {"Authorization": "Bearer geheim"}
        assert address.embed("dog").status == 401
        for name in ("small", "tiny", "sentences-last-token", MODEL):
            assert address.ask(EMBEDDINGS, {"input": "dog", "model": name}, **token).status == 200
        found = address.ask(EMBEDDINGS, {"input": "dog"}, **token).json["data"][0]["embedding"]
        assert np.allclose(found, minibert.load_encoder(MODEL).encode("dog"), atol=1e-6)
        assert len(address.ask("/rerank", {"query": "a", "texts": ["b", "c"]}, **token).json) == 2
        with ThreadPoolExecutor(1) as pool:
            texts = [f"we lived above the clouds {i}" for i in range(MANY)]
            waiting = pool.submit(address.ask, EMBEDDINGS, {"input": texts}, **token)
            while address.ask("/info", **token).json["requests_inside"] < 2 and not waiting.done():
                pass
            process.send_signal(signal.SIGTERM)
            assert len(waiting.result().json["data"]) == MANY
        assert process.wait(SECONDS) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_options_of_sentence_vectors_and_a_model_without_a_prompt() -> None:
    """Asked for once, at the start; the first line says where nothing is put before a query."""
    folder, where = str(REFERENCE / "sentences-dense"), f"{EMBEDDINGS}; the model has no prompt for queries"
    with serving("--truncate-dim", "4", models=(folder,), said="sentences-dense", path=where) as (_, address):
        found = address.ask(EMBEDDINGS, {"input": "we", "task": "query"}).json["data"][0]["embedding"]
        assert np.allclose(found, minibert.load_encoder(folder).encode("we")[:4], atol=1e-6)
    options = "--prompts", "query=the clouds ", "--default-prompt-name", "query", "--max-seq-length", "6"
    with serving(*options, models=(folder,), said="sentences-dense") as (_, address):
        long = "we lived above the clouds"
        answer = address.ask(EMBEDDINGS, {"input": long}).json
        want = minibert.load_encoder(folder, max_seq_length=6).encode(long, prompt="the clouds ")
        assert np.allclose(answer["data"][0]["embedding"], want, atol=1e-6) and answer["truncated"] == 1


def test_its_warnings_have_no_colour(monkeypatch: Patch) -> None:
    """uvicorn would colour its own on a terminal, whatever NO_COLOR says."""
    seen: list[bool | None] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: seen.append(self.config.use_colors))
    assert main(["serve", MODEL, "--port", "0"]) == 0
    assert seen == [False]


def test_what_is_not_done_in_time_shows_in_the_exit_code() -> None:
    with serving("--max-grace", "1") as (process, address):
        with half_a_request(address):
            process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 1
        assert process.stderr.read() == "ERROR:    Cancel 1 running task(s), timeout graceful shutdown exceeded\n"


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_ends_it_without_a_traceback(twice: bool) -> None:
    with serving() as (process, address), half_a_request(address) if twice else nullcontext():
        process.send_signal(signal.SIGINT)
        if twice:
            with suppress(ConnectionError):
                while address.ask("/health"):  # until nothing new is taken
                    pass
            process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr.read() == ""


@pytest.mark.parametrize("content", ["", " \n", "two words", "schl\u00fcssel", "a\nb", "a\x00b"])
def test_a_token_that_is_none(content: str, tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")
    said = failure(capsys, "serve", "/nowhere", "--token-file", str(tmp_path / "token"))
    assert said.startswith("the file that --token-file names must hold a token")
    if "\x00" not in content:
        monkeypatch.setenv("TOKEN", content)
        said = failure(capsys, "serve", "/nowhere", "--token-env", "TOKEN")
        assert said.startswith("the variable that --token-env names must hold a token")


@pytest.mark.parametrize("option", ["token-file", "token-env"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_token_for_its_name_is_not_printed(
    by_variable: bool, option: str, capsys: Printed, monkeypatch: Patch
) -> None:
    given = () if by_variable else (f"--{option}", "geheim")
    if by_variable:
        monkeypatch.setenv(f"MINIBERT_SERVE_{option.replace('-', '_').upper()}", "geheim")
    for more in (("--port", "8000"), ("--port", "70000"), ("--token-file", "geheim", "--token-env", "geheim")):
        said = failure(capsys, "serve", "/nowhere", *given, *more)
        assert option in said and "geheim" not in said


AGAIN, OTHER = MODEL + "/../sentences-last-token", str(REFERENCE / "sentences-prompts")
ONE = "is an option of one model, found 2; leave it out, or serve one"
STARTS: list[tuple[tuple[str, ...], str]] = [
    *((("/nowhere", "--host", host), "other machines can reach this server: name a token with --token-file or --token-")
      for host in ("0.0.0.0", "::", "192.168.0.7", "")),  # before anything is opened
    *(((MODEL, RERANKER, "--port", "0", option, value), f"{option} {ONE}")
      for option, value in (("--truncate-dim", "4"), ("--prompts", "query=a"), ("--revision", "main"))),
    ((MODEL, "--token-env", "A", "--token-file", "/b"), "two tokens are named"),
    ((MODEL, "--token-file", "/b"), "the file that --token-file names cannot be read: No such file or directory"),
    ((MODEL, "--port", "70000"), "--port must be an integer from 0 to 65535"),
    *(((MODEL, "--port", "0", "--name", odd), f"--name must be NAME or NAME=MODEL with one of {MODEL}; found {odd!r}")
      for odd in ("=x", f"a={RERANKER}", "")),
    ((MODEL, AGAIN, "--port", "0"), "two models are called 'sentences-last-token'; give one another name: --name"),
    # a request for it would get the first model's vectors
    *(((MODEL, OTHER, "--port", "0", "--name", "small", "--name", f"b={OTHER}", "--name", f"{alias}={OTHER}"),
       f"two models are called {alias!r}; give") for alias in ("small", "sentences-last-token")),
    ((MODEL, "--model", RERANKER), "is named too; leave one out"),
    *(((MODEL, "--port", "0", "--reranker", str(REFERENCE / name)), expected) for name, expected in (
        ("sentences-last-token", "name the folder of a CrossEncoder with --reranker"),
        ("sentences-bare", "name a model with that head with --reranker"),  # which says nothing of its use
        ("uses-inference", "this model has 3 labels; predict gives all"))),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), STARTS, ids=lambda value: f"{value!r:.40}")
def test_what_is_refused_at_the_start(arguments: tuple[str, ...], message: str, capsys: Printed) -> None:
    said = failure(capsys, "serve", *arguments)
    assert message in said
    if "--reranker" in arguments:
        assert said.startswith("--reranker: ") and said.endswith(message) and "--model" not in said


def test_what_this_machine_has_not_is_refused_at_the_start(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("waiting", "body", "texts", "grace"):
        assert main(["serve", MODEL, f"--max-{name}", "0"]) == 2
        assert f"argument --max-{name}: expected an integer >= 1, found '0'" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("serve", MODEL), ("explain", "--model", MODEL, "--live", "--no-browser")):
            said = failure(capsys, *command, "--port", port)
            assert re.fullmatch(rf"cannot listen at 127.0.0.1, port {port}: .* --port, a free one by --port 0", said)
    monkeypatch.setenv("TOKEN", "geheim")
    said = failure(capsys, "serve", MODEL, "--token-env", "TOKEN", "--host", "h" * 300)
    assert said.endswith("hhh, port 8000: each part of a host's name has 1 to 63 letters")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert "serve needs starlette and uvicorn: pip install 'starlette>=" in failure(capsys, "serve", MODEL)


def test_each_request_has_a_line(monkeypatch: Patch) -> None:
    """By variables of the environment; an option goes before. No text is written, and no line break of a path."""
    variables = ("SAME_BITS", "0"), ("PROMPTS", "query=a, b: ;document="), ("MODEL", "/nowhere"), ("NAME", "a;b")
    for name, value in (*variables, ("LOG_LEVEL", "debug"), ("MAX_TEXTS", "1")):
        monkeypatch.setenv(f"MINIBERT_SERVE_{name}", value)
    bounds = "--max-texts", "3", "--max-body", "2000", "--max-waiting", "4", "--max-grace", "7"
    with serving(*bounds, said="a") as (process, address):
        limits = address.ask("/info").json["limits"]
        assert [limits[name] for name in ("waiting", "body", "texts", "grace")] == [4, 2000, 3, 7]
        assert address.embed(["dog", "the clouds " * 40], model="b").status == 200
        assert address.ask("/no%0Asuch").status == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        first, second, third = process.stderr.read().splitlines()
    assert re.search(r" client=127\.0\.0\.1 method=GET path=/info status=200 ms=[\d.]+$", first)
    assert re.search(r" path=/v1/embeddings status=200 ms=[\d.]+ model=a texts=2 tokens=34 truncated=1$", second)
    assert re.search(r" path=/no%0Asuch status=404 ms=[\d.]+$", third)


def test_wrong_variables(capsys: Printed, monkeypatch: Patch) -> None:
    for name, value, expected in (
        ("PORT", "many", "invalid int value: 'many'"), ("SAME_BITS", "perhaps", "must be 1 or 0, found 'perhaps'"),
        ("LOG_LEVEL", "all", "invalid choice: 'all' (choose from "), ("PROMPTS", "query=a;c", "NAME=TEXT, found 'c'"),
        ("MAX_TEXTS", "0", "expected an integer >= 1, found '0'"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(f"MINIBERT_SERVE_{name}", value)
            said = failure(capsys, "serve", "/nowhere")
            assert said.startswith(f"the variable MINIBERT_SERVE_{name}") and expected in said
    for value in ("0", "1"):
        monkeypatch.setenv("MINIBERT_SERVE_SAME_BITS", value)
        assert from_variables()["same_bits"] is (value == "1")


def test_variables_of_no_option(capsys: Printed, monkeypatch: Patch) -> None:
    """It is named, but one that holds the token and those that Kubernetes sets for a service are not."""
    for name, value in (("PROT", "9000"), ("TOKEN", "geheim"), ("SERVICE_HOST", "80"), ("PORT_80_TCP_PROTO", "tcp")):
        monkeypatch.setenv(f"MINIBERT_SERVE_{name}", value)
    monkeypatch.setenv("MINIBERT_SERVE_PORT", "tcp://10.0.0.9:80")
    assert main(["serve", "/nowhere", "--port", "0", "--token-env", "MINIBERT_SERVE_TOKEN"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "minibert: no option has the variable MINIBERT_SERVE_PROT: it is ignored"
    assert "/nowhere" in second
    monkeypatch.setenv("MINIBERT_SERVE_PORT", "many")
    assert main(["help"]) == main(["help", "serve"]) == 0


@pytest.mark.parametrize("option", [(), ("--reranker",)])
def test_a_reranker_alone(option: tuple[str, ...], monkeypatch: Patch) -> None:
    """Without the default model of sentence vectors beside it, which would come from the Hub."""
    monkeypatch.delenv("MINIBERT_MODEL", raising=False)
    with serving("--name", "r", models=(*option, RERANKER), said="r", path="/rerank") as (_, address):
        assert len(address.ask("/rerank", {"query": "a", "texts": ["b", "c"], "model": RERANKER}).json) == 2
        assert "no model of this server computes vectors; it was started with" in address.embed("dog").error


def test_the_model_of_a_request_for_scores_is_the_first_that_can_answer() -> None:
    with serving(models=(RERANKER, MODEL), said="uses-reranker, sentences-last-token", path="/rerank") as (_, address):
        assert len(address.ask("/rerank", {"query": "a", "texts": ["b", "c"]}).json) == 2
