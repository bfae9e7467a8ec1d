"""A name on the Hub -> a commit, its small files, and the needed bytes of tables.

The name is resolved to a commit first, and all files are of this commit. huggingface_hub fetches them, with its cache,
session and token. Its HTTP library takes half a second to import, so a cached file is found here by its path. Large
files that are not cached are fetched in parts, only the needed bytes, which are kept in the client's assets folder.

Source: huggingface_hub's guide "Understand caching".
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minibert.errors import HubError, MinibertError
from minibert.files.checkpoint import INDEX, SINGLE, Checkpoint, advice_for, read_index
from minibert.files.reading import FileName, mode_of, note_model_file

from .remote import RemoteCheckpoint, Span, write_cache

COMMIT = re.compile(r"[0-9a-f]{40}")
LIST = "files.json"  # beside the ranges: the names of all files of a commit
LONGEST_WORDS = 300  # letters of the client's message that are shown
PASSING = (408, 429, 500, 502, 503, 504)  # statuses after which the next try may succeed
RETRIES = 3  # tries again for a range, after the client's pauses of 1, 2 and 4 seconds
ORGANIZATION = "sentence-transformers/"
# models from before names on the Hub had an owner; sentence-transformers 6.2 has this list too
OLD = """
albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v1 albert-xlarge-v2 albert-xxlarge-v1
albert-xxlarge-v2 bert-base-cased-finetuned-mrpc bert-base-cased bert-base-chinese bert-base-german-cased
bert-base-german-dbmdz-cased bert-base-german-dbmdz-uncased bert-base-multilingual-cased bert-base-multilingual-uncased
bert-base-uncased bert-large-cased-whole-word-masking-finetuned-squad bert-large-cased-whole-word-masking
bert-large-cased bert-large-uncased-whole-word-masking-finetuned-squad bert-large-uncased-whole-word-masking
bert-large-uncased camembert-base ctrl distilbert-base-cased-distilled-squad distilbert-base-cased
distilbert-base-german-cased distilbert-base-multilingual-cased distilbert-base-uncased-distilled-squad
distilbert-base-uncased-finetuned-sst-2-english distilbert-base-uncased distilgpt2 distilroberta-base gpt2-large
gpt2-medium gpt2-xl gpt2 openai-gpt roberta-base-openai-detector roberta-base roberta-large-mnli
roberta-large-openai-detector roberta-large t5-11b t5-3b t5-base t5-large t5-small transfo-xl-wt103 xlm-clm-ende-1024
xlm-clm-enfr-1024 xlm-mlm-100-1280 xlm-mlm-17-1280 xlm-mlm-en-2048 xlm-mlm-ende-1024 xlm-mlm-enfr-1024 xlm-mlm-enro-1024
xlm-mlm-tlm-xnli15-1024 xlm-mlm-xnli15-1024 xlm-roberta-base xlm-roberta-large-finetuned-conll02-dutch
xlm-roberta-large-finetuned-conll02-spanish xlm-roberta-large-finetuned-conll03-english
xlm-roberta-large-finetuned-conll03-german xlm-roberta-large xlnet-base-cased xlnet-large-cased
"""
WITHOUT_OWNER = frozenset(OLD.split())


def full_name(name: str) -> str:
    """Return a model's name on the Hub with its owner; without one it is sentence-transformers' or an old model's.

    >>> full_name("all-MiniLM-L6-v2"), full_name("gpt2"), full_name("google/bert")
    ('sentence-transformers/all-MiniLM-L6-v2', 'gpt2', 'google/bert')
    """
    return name if "/" in name or name.lower() in WITHOUT_OWNER else ORGANIZATION + name


def resolve(
    name: str,
    revision: str | None = None,
    local_files_only: bool = False,
    cache_folder: FileName | None = None,
    token: str | None = None,
) -> Repository:
    """Resolve a name and a revision (a branch, a tag or a commit; by default "main") to a commit.

    It makes one request; none for the forty digits of a commit, with local_files_only or with HF_HUB_OFFLINE. If the
    Hub does not answer, its last answer is used, as in huggingface_hub.

    cache_folder: for whole files, before SENTENCE_TRANSFORMERS_HOME and the Hub's cache.

    Raises HubError, and CheckpointError for a cache that cannot be read.
    """
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    offline = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else ""
    offline = "you asked for local files only" if local_files_only else offline
    cache = Path(cache_folder or os.environ.get("SENTENCE_TRANSFORMERS_HOME") or HF_HUB_CACHE).expanduser().absolute()
    repository = Repository(name, revision or "main", cache, token, offline)
    if not offline and repository.revision != repository.commit:
        try:
            repository.ask()
        except HubError as error:
            if not repository.commit:
                raise
            repository.offline = f"the Hub refused or did not answer ({str(error).partition('; ')[0]})"
    if not repository.commit:
        raise repository.refusal("", f"it is not in the cache, and {offline}")
    return repository


class Repository:
    """One model at one commit: its files and its checkpoint. Threads may share it.

    commit: at first the last known commit, or "". offline: the reason why the Hub is not asked, "" if it is asked.
    """

    def __init__(self, name: str, revision: str, cache: Path, token: str | None = None, offline: str = "") -> None:
        from huggingface_hub import constants

        self.name, self.revision, self.cache, self.offline, self._token = name, revision, cache, offline, token
        if "@" in constants.ENDPOINT:  # messages would show it
            raise HubError("HF_ENDPOINT holds a name or a password; write only the address, and a token in HF_TOKEN")
        self._endpoint = constants.ENDPOINT
        self._folder = "--".join(("models", *name.split("/")))
        self._refs = cache / self._folder / "refs" / revision
        self.commit = revision if COMMIT.fullmatch(revision) else self._last_known()
        self._files: list[str] | None = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Ask the Hub for the revision's commit and for the names of its files. Raises HubError."""
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import RevisionNotFoundError

        with self._in_words():
            api, timeout = HfApi(self._endpoint, token=False, headers=self._headers()), constants.HF_HUB_ETAG_TIMEOUT
            try:
                model = api.model_info(self.name, revision=self.revision, expand=["sha", "siblings"], timeout=timeout)
            except RevisionNotFoundError:
                self.commit = ""  # no cached commit replaces it
                raise
            if not COMMIT.fullmatch(model.sha or ""):  # it becomes part of a path
                raise ValueError(f"this is not an answer of the Hub: {model.sha!r} is no commit")
            self.commit, self._files = str(model.sha), [file.rfilename for file in model.siblings or ()]
        write_cache(self.ranges(LIST), json.dumps(self._files).encode())
        if self.revision != self.commit:
            write_cache(self._refs, self.commit.encode())

    def file(self, name: str) -> Path | None:
        """Return the path of a file, which is fetched if it is not cached; None if there is none. Raises HubError."""
        return self.cached(name) or (self.download(name) if name in self._list(name) else None)

    def checkpoint(self, lazy: bool = False, mmap: bool = True, folder: str = "", whole: bool = False) -> Checkpoint:
        """Open `model.safetensors`, or the shards of its index, wherever their bytes are.

        A file in the Hub's cache is mapped there. If it is not cached, its header is fetched now, and each tensor when
        it is used; with `lazy`, tables over 256 kB row by row; with `whole`, the client fetches the file.

        folder: the subfolder of the repository that has the files; "" for its top.

        Raises HubError, CheckpointError.
        """
        above = f"{folder}/" if folder else ""
        return RemoteCheckpoint(self, self._weight_map(above), lazy, mmap, whole, above)

    def cached(self, name: str) -> Path | None:
        """Return a file's path in the Hub's cache, or None. Raises CheckpointError if its folder cannot be read."""
        path = self.cache / self._folder / "snapshots" / self.commit / name
        if not stat.S_ISREG(mode_of(path)):
            return None
        note_model_file(path)
        return path

    def download(self, name: str) -> Path:
        """Fetch a whole file into the Hub's cache. Raises HubError."""
        from huggingface_hub import hf_hub_download

        with self._in_words(name):
            source: dict[str, Any] = dict(revision=self.commit, cache_dir=self.cache, endpoint=self._endpoint)
            path = Path(hf_hub_download(self.name, name, **source, headers=self._headers(), token=False))
        note_model_file(path)
        return path

    def part(self, name: str, span: Span) -> tuple[bytes, int]:
        """Fetch the bytes span[0]..span[1]-1 of a file, fewer if it ends before, and return them with its size.

        An answer counts only with status 206, the requested Content-Range and a size below 10**13. Raises HubError.
        """
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import hf_raise_for_status, http_backoff  # type: ignore[attr-defined]

        agent = f"minibert/{sys.modules['minibert'].__version__}"
        headers = {"Range": f"bytes={span[0]}-{span[1] - 1}", "Accept-Encoding": "identity", "User-Agent": agent}
        with self._in_words(name):
            url = hf_hub_url(self.name, name, revision=self.commit, endpoint=self._endpoint)
            options: dict[str, Any] = dict(
                headers=headers | self._headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True,
                # retry as the newest client does by default; the oldest does not after 500, nor after a truncated body
                max_retries=RETRIES, retry_on_status_codes=PASSING, retry_on_exceptions=HfHubHTTPError.__bases__[0],
            )  # fmt: skip
            answer = http_backoff("GET", url, **options)
            hf_raise_for_status(answer)
            content_range = answer.headers.get("Content-Range", "none")
            known = re.fullmatch(r"bytes \d+-\d+/(\d{1,13})", content_range)
            size = int(known[1]) if known else span[1]
            last = min(span[1], size) - 1
            wanted = (206, f"bytes {span[0]}-{last}/{size}", last + 1 - span[0])
            if (answered := (answer.status_code, content_range, len(answer.content))) != wanted:
                template = "status {} with {} and {:,} bytes"
                raise ValueError(f"expected {template.format(*wanted)}, found {template.format(*answered)}")
        return answer.content, size

    def ranges(self, name: str) -> Path:
        """Return the folder of a file's ranges, in MINIBERT_CACHE or in `assets/minibert` of HF_HOME."""
        from huggingface_hub import constants

        root = Path(os.environ.get("MINIBERT_CACHE") or Path(constants.HF_ASSETS_CACHE, "minibert")).expanduser()
        return root / self._folder / self.commit / quote(name, safe="")

    def describe(self, name: str) -> str:
        """Return the name of a file for an error."""
        return _one_line(f"{self.name} at {self.revision}" + (f", {name}" if name else ""))

    def refusal(self, file: str, reason: str) -> HubError:
        """Return the error of a refusal by the client, the server or the disk, with the remedies."""
        name, page = self.name, f"{self._endpoint}/{self.name}"
        return HubError(
            f"{self.describe(file)}: {_one_line(reason)}; see {page} and check the spelling (a folder is written "
            f"./{name.removeprefix(ORGANIZATION)}); for a gated or private model accept its conditions there, and log "
            "in with `hf auth login` or set HF_TOKEN; without a network set HF_HUB_OFFLINE=1 for cached models, name a "
            f"mirror in HF_ENDPOINT, or copy a folder that `hf download {name} --local-dir FOLDER` or `minibert "
            "extract` wrote on another machine"
        )

    def _last_known(self) -> str:
        """Return the commit of the revision when a program last resolved it, or ""."""
        noted = ""
        if mode_of(self._refs):
            with suppress(OSError, ValueError):  # ValueError: bytes that are not UTF-8
                noted = self._refs.read_text(encoding="utf-8").strip()
        return noted if COMMIT.fullmatch(noted) else ""

    def _weight_map(self, above: str) -> dict[str, str] | None:
        """Read the index of shards; None if one file holds all tensors."""
        single, index_name = above + SINGLE, above + INDEX
        if self.cached(single) or (not self.cached(index_name) and single in self._list(single)):
            return None
        index = self.file(index_name)
        if index is not None:
            weight_map = read_index(index.read_bytes(), self.describe(index_name))
            for shard in set(weight_map.values()):
                self.cached(above + shard)  # notes every shard as a model file, even one that is never opened
            return weight_map
        names = self._list(index_name)
        foreign, advice = advice_for(names)
        file_names = (_one_line(", ".join((foreign or names)[:8])) or "nothing") + advice
        raise HubError(f"{self.describe(above)}: expected {SINGLE} or {INDEX}, found only {file_names}")

    def _list(self, name: str) -> list[str]:
        """Return the names of all files; the Hub is asked once for each commit. Raises HubError."""
        with self._lock:
            if self._files is None:
                with suppress(OSError, ValueError, RecursionError):
                    self._files = json.loads(self.ranges(LIST).read_bytes())
            if self._files is None and self.offline:
                # another program filled this cache: if it holds the model, a file that it lacks does not exist
                has_model = any(map(self.cached, ("config.json", "modules.json")))
                if not has_model or name.endswith((SINGLE, INDEX)):
                    raise self.refusal(name, f"it is not in the cache, and {self.offline}")
                return []
            if self._files is None:
                self.ask()
            return self._files or []

    def _headers(self) -> dict[str, str]:
        """Return the header with the user's token."""
        from huggingface_hub import constants, get_token

        if self._token is None and constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            return {}
        token = get_token() if self._token is None else self._token
        if token and not re.fullmatch(r"[!-~]+", token):  # else the HTTP library's message would show it
            advice = "copy it again from the settings of your account, or log in again with `hf auth login`"
            source = f"the token (of token=, of HF_TOKEN or in {constants.HF_TOKEN_PATH})"
            raise HubError(f"{source} has characters outside printable ASCII; {advice}")
        return {"authorization": f"Bearer {token}"} if token else {}

    @contextmanager
    def _in_words(self, file: str = "") -> Iterator[None]:
        """Refuse requests while offline; turn each failure into one HubError."""
        if self.offline:
            raise self.refusal(file, f"it is not in the cache, and {self.offline}")
        try:
            yield
        except MinibertError:
            raise
        except Exception as error:  # noqa: BLE001 - the client's, its HTTP library's, the disk's
            from huggingface_hub.errors import HfHubHTTPError

            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, HfHubHTTPError):
                cause = cause.__cause__  # the cause of the client's error
            raise self.refusal(file, f"{type(cause).__name__}: {cause}") from None


def _one_line(text: str) -> str:
    """Make a foreign text safe to print: one line, no escape sequences, not too long."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in " ".join(text.split()))
    return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS] + "..."
