"""Folders and files that appear under their name complete, or not at all, and the folder for what can be made again."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError


def check_new(folder: Path) -> None:
    """Refuse a name that no folder can be made under, before the work whose result it is for.

    Raises:
        SkipSpecError: something is there already, or what is above it cannot be written.
    """
    if os.path.lexists(folder):
        raise SkipSpecError(f"{folder} exists; need a new folder. Remove it or choose another name.")
    above = next(parent for parent in Path(folder).absolute().parents if os.path.lexists(parent))
    if not os.path.isdir(above):
        raise SkipSpecError(f"Cannot write {folder}: {above} is no folder; choose another folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise SkipSpecError(f"Cannot write {folder}: {above} cannot be written; choose another folder.")


class new_folder:
    """Context manager: a folder that appears under its name complete, or not at all, the folders above it included.

    Raises:
        SkipSpecError: it exists already, or cannot be written (no right, no space).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def __enter__(self) -> Path:
        check_new(self.folder)
        self.made = [parent for parent in self.folder.absolute().parents if not os.path.lexists(parent)]
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.temporary = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}.", dir=self.folder.parent))
        except OSError as error:
            self._remove_made()
            raise SkipSpecError(f"Cannot write {self.folder}: {error.strerror}; choose another folder.") from error
        return self.temporary

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self.temporary.chmod(0o755)
                os.rename(self.temporary, self.folder)
        except OSError as failure:
            error = failure
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)
            if error is not None:
                self._remove_made()
        if isinstance(error, OSError):
            raise SkipSpecError(
                f"Writing {self.folder} failed: {error.strerror or error}; nothing was left behind. "
                "Make room or choose another folder."
            ) from error

    def _remove_made(self) -> None:
        for parent in self.made:  # innermost first; one that somebody else has put something in stays
            with contextlib.suppress(OSError):
                parent.rmdir()


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Give a temporary name beside `file` to write to; it takes the place of `file` when the block ends well.

    Only its owner may read it. Raises OSError where it cannot be written; `file` is then as it was.
    """
    handle, name = tempfile.mkstemp(prefix=f".{file.stem}.", suffix=file.suffix, dir=file.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def cache_folder() -> Path:
    """Where this user's things are kept that can be made again: MLX_SKIPSPEC_CACHE, else the system's own place."""
    if chosen := os.environ.get("MLX_SKIPSPEC_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("mlx-skipspec")
