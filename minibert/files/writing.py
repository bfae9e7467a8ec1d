"""Atomic writes: every file that minibert writes appears complete or not at all.

`write_output` writes to a path that a user has named: links are followed, and pipes and devices are written to
directly. `atomic_write` writes into a folder of minibert: no link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from .reading import FileName, model_file

Content = Any  # bytes, a memoryview, an array in C order; or an iterator of these

STDOUT = 1  # its file descriptor
KEPT = 50  # letters of a file's name that its temporary name keeps; a name has at most 255 bytes


def output_ending(path: FileName, endings: Sequence[str]) -> str:
    """Return the ending of `path`, which chooses its format; the first one for a pipe or device without an ending.

    Call it before anything is computed. Raises ValueError for any other ending, IsADirectoryError for a folder,
    FileNotFoundError if the folder to write in is missing.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write, in it or elsewhere")
    if ending not in endings:
        if _direct(path):
            return endings[0]
        raise ValueError(f"{path}: the file must end in {' or '.join(endings)}, found {ending or 'no ending'!r}")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it first")
    return ending


def write_output(path: FileName, *pieces: Content) -> None:
    """Write pieces of bytes, one after another, to a path that a user has named; see `atomic_write`.

    A symbolic link stays, and the file that it leads to is written. An existing file keeps its mode. A pipe or a
    device, such as stdout, is written to directly.

    Raises ValueError for a file of a model that was opened here, OSError that names `path`: a folder, a full disk, no
    permission.
    """
    path = Path(path)
    refuse_model_file(path)
    with naming(path):
        if _direct(path):
            # opening stdout anew would begin at its first byte, and truncate the file that `>>` appends to
            with open(os.dup(STDOUT) if is_stdout(path) else path, "wb") as file:
                file.writelines(_single_pieces(pieces))
        else:
            mode = None
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.stat().st_mode)
            atomic_write(os.path.realpath(path), *pieces, mode=mode)


def atomic_write(path: FileName, *pieces: Content, mode: int | None = None) -> None:
    """Write a file under a temporary name beside `path`, then move it to `path`: a reader sees all or nothing.

    A link at `path` is replaced, not followed. After any error, also Ctrl-C, no temporary file is left. mode: of the
    new file from its creation; None: as the umask says.

    Raises ValueError for a file of a model that was opened here, OSError that names `path`.
    """
    with atomic_file(path, mode) as file:
        file.writelines(_single_pieces(pieces))


@contextmanager
def atomic_file(path: FileName, mode: int | None = None, lasting: bool = False) -> Iterator[BinaryIO]:
    """Open a file as `atomic_write` does, for a caller that writes to it; the file gets its name when the context ends.

    lasting: content and name are flushed to the disk, in this order, so that the file survives a power cut.
    """
    path = Path(path)
    refuse_model_file(path)
    # two threads that write to one path have a temporary file each, and the last one to end wins
    temporary = path.parent / f".{path.name[:KEPT]}.{os.urandom(8).hex()}"
    opener = partial(os.open, mode=0o666 if mode is None else mode)
    with naming(path):
        try:
            with open(temporary, "xb", opener=opener) as file:
                if mode is not None and stat.S_IMODE(os.fstat(file.fileno()).st_mode) != mode:
                    temporary.chmod(mode)  # bits that the umask removed
                yield file
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if lasting:
                sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def sync_folder(path: FileName) -> None:
    """Flush a folder's file names to the disk."""
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        folder = os.open(path, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def same_file(a: FileName, b: FileName) -> bool:
    """Whether two names lead to one existing file, also through links of either kind."""
    try:
        return Path(a).samefile(b)
    except OSError:
        return False


def refuse_model_file(path: FileName) -> None:
    """Raise ValueError if `path` is a file of a model that was opened here. Every writer calls this."""
    if (source := model_file(path)) is not None:
        raise ValueError(f"{path} is {source}, a file of the model that is read here; choose another name")


def is_stdout(path: FileName) -> bool:
    """Whether a name leads to stdout: /dev/stdout, or the file to which a shell has redirected it."""
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(STDOUT))
    except OSError:  # no such file; stdout is closed
        return False


@contextmanager
def naming(path: FileName) -> Iterator[None]:
    """Re-raise disk errors with the name of the requested file, not of the temporary file beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from None


def _single_pieces(pieces: Iterable[Content]) -> Iterator[Content]:
    for piece in pieces:
        yield from piece if isinstance(piece, Iterator) else (piece,)


def _direct(path: Path) -> bool:
    """Whether `path` is written to directly, because it exists but is not a replaceable file."""
    return path.exists() and (not path.is_file() or is_stdout(path))
