#!/usr/bin/env python3
"""Print sizes and first answers of a folder for AWS Lambda and of a container, with and without compiled modules.

python scripts/readme/cold_start.py MODEL [ROUNDS] [DEBIAN]   MODEL is a folder; pip installs into a temporary folder

Each start is a new process in a folder that it does not write to, all in turn; the first round, which reads all from
the disk, does not count. The times do not include a container's start, the download of its layers, or AWS's part.

DEBIAN: the root folder of a system with this version of Python; the container's server starts in it too. As root:

debootstrap --variant=minbase --include=python3 bookworm DEBIAN; chroot DEBIAN apt-get clean
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HANDLER = "import aws_lambda; aws_lambda.handler({'texts': ['one sentence']}, None)"
SERVER = """
import socket, sys, threading, urllib.request
from minibert.cli import main

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])

def ask():
    import os, time
    request = urllib.request.Request(f"http://127.0.0.1:{port}/embed", b'{"inputs": "one sentence"}')
    while True:
        try:
            urllib.request.urlopen(request).read()
            os._exit(0)
        except OSError:
            time.sleep(0.005)

threading.Thread(target=ask, daemon=True).start()
main(["serve", sys.path[0] + "/model", "--port", port])
"""
SERVED = "container: the server's first answer"
STARTS = {"AWS Lambda: the handler's first answer": ("", HANDLER), SERVED: ("[serve]", SERVER)}


def made(folder: Path, extra: str, model: Path) -> Path:
    """Install as the recipes say, without compiled files."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder)]
    subprocess.run([*install, f"{ROOT}{extra}"], check=True)
    shutil.copytree(model, folder / "model")
    shutil.copy(ROOT / "scripts" / "readme" / "recipes" / "aws_lambda.py", folder)
    return folder


def compiled(folder: Path) -> Path:
    """Copy a folder and compile it as the recipes say: the time of a file, which a zip changes, then does not count."""
    copy = folder.with_name(folder.name + "-compiled")
    shutil.copytree(folder, copy)
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", str(copy)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)  # some packages contain files of other Pythons
    return copy


def start(folder: Path, code: str, root: Path = Path("/")) -> float:
    """Time a process that sees only this folder and Python's own modules, in seconds. `root`: its system's root."""
    began = time.perf_counter()
    code = f"import sys; sys.path.insert(0, {str('/' / folder.relative_to(root))!r})\n{code}"
    python = [sys.executable] if root == Path("/") else ["chroot", str(root), "/usr/bin/python3"]
    subprocess.run([*python, "-I", "-S", "-B", "-c", code], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def size(folder: Path) -> int:
    """Count the bytes of a folder's files, as AWS does."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    """Print the table."""
    model, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    debian = Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
    if debian:
        print(f"Debian with Python: {size(debian) / 1e6:.0f} MB\n")
    print("| what | without compiled files | with them | without, beside with |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=debian and debian / "tmp") as top:
        pairs: dict[str, list[tuple[Path, str, Path]]] = {}
        for what, (extra, code) in STARTS.items():
            bare = made(Path(top, what[:3]), extra, model)
            pairs[what] = [(folder, code, Path("/")) for folder in (bare, compiled(bare))]
            without, kept = (size(folder) / 1e6 for folder, *_ in pairs[what])
            print(f"| its folder, the model in it | {without:.0f} MB | {kept:.0f} MB | {without / kept:.2f} x |")
        if debian:
            pairs[f"{SERVED}, in Debian"] = [(folder, code, debian) for folder, code, _ in pairs[SERVED]]
        taken = {what: [[start(*one) for one in pair] for _ in range(rounds + 1)][1:] for what, pair in pairs.items()}
        for what, rows in taken.items():
            without, kept = (statistics.median(row[i] for row in rows) for i in (0, 1))
            ratio = statistics.median(row[0] / row[1] for row in rows)
            print(f"| {what} | {without:.2f} s | {kept:.2f} s | {ratio:.2f} x |")


if __name__ == "__main__":
    main()
