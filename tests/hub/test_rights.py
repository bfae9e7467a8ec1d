"""Files of another user: the error names the path that cannot be read, and never calls a file absent or damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from encoder_files import CASE
from fake_hub import FakeHub, environment
from limits import CHILD_SECONDS

NOBODY = 65534
SNAPSHOTS = "home/hub/models--org--bert/snapshots"
PATHS = {  # the closed path, the model's name, the path in the message
    "a folder": ("models/bert", "./models/bert", "./models/bert;"),
    "a folder above": ("models", "./models/bert", "./models/bert;"),
    "a name that is a folder": ("models/bert", "models/bert", "models/bert;"),
    "a config": ("models/bert/config.json", "./models/bert", "./models/bert/config.json;"),
    "the weights": ("models/bert/model.safetensors", "./models/bert", "./models/bert/model.safetensors;"),
    "the Hub's cache": ("home/hub", "org/bert", "{}/home/hub/models--org--bert/refs;"),
    "a model in the cache": (SNAPSHOTS, "org/bert", f"{{}}/{SNAPSHOTS}"),
}
FILL = "import minibert, sys; minibert.load_encoder(sys.argv[1])"
LOAD_AS_NOBODY = f"""
import minibert, os, sys
minibert.load_encoder({str(CASE["bert"].folder)!r})  # what is imported on the way may be closed to the other user
import minibert.hub.repository, huggingface_hub.constants
os.setuid({NOBODY})
try: minibert.load_encoder(sys.argv[1], local_files_only=True)
except minibert.CheckpointError as error: print(error)
"""


def run(code: str, name: str, where: Path, endpoint: str) -> str:
    env = environment(endpoint, where / "home", HF_HUB_DISABLE_PROGRESS_BARS="1")
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, cwd=where, env=env, stdout=subprocess.PIPE, text=True, timeout=CHILD_SECONDS)
    assert done.returncode == 0
    return done.stdout


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may read, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", PATHS)
def test_who_may_not_read_which_path(place: Path, kind: str) -> None:
    closed, name, named = PATHS[kind]
    files = {path.name: path for path in CASE["bert"].folder.iterdir()}
    if name == "org/bert":
        with FakeHub() as hub:
            hub.add(name, files)
            run(FILL, name, place, hub.endpoint)
    else:
        shutil.copytree(CASE["bert"].folder, place / "models" / "bert")
    (place / closed).chmod(0)
    said = run(LOAD_AS_NOBODY, name, place, "http://hub.invalid")
    assert said.startswith(f"user {NOBODY} may not read {named.format(place)}"), said
    assert "fetch" not in said and "no such" not in said
