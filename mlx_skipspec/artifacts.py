"""The sidecar: what crosses between the machine that trains a bridge and the one that drafts with it.

A folder with `skipspec.json`, `hvc.safetensors` and, where they were built, draft heads. `base_model` says which model
it belongs to.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mlx_skipspec.base_model import Base
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import new_folder
from mlx_skipspec.head_files import FILES, HeadFile

SCHEMA = 1
KINDS = ("hvc", "hvc-mlp")  # linear, and with a gated MLP beside it
MANIFEST, BRIDGE = "skipspec.json", "hvc.safetensors"


@dataclass(frozen=True)
class Sidecar:
    """A bridge and what is known about it.

    Attributes:
        head, tail: layers kept in front of and behind the gap.
        tensors: the bridge's parameters by name, numpy.
        made_by: how it was made: method, data, tokens.
        acceptance_by_position: of each draft given all before, on held-out text; `fit` measures it in the real loop,
            `train-hvc` along the text (which flatters).
        heads: draft heads by kind, each in a file of its own; `save` leaves them out, `attach` adds one to a folder.
    """

    base: Base
    head: int
    tail: int
    tensors: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    kind: str = "hvc"
    made_by: Mapping[str, Any] = field(default_factory=dict)
    acceptance_by_position: tuple[float | None, ...] = ()
    heads: Mapping[str, HeadFile] = field(default_factory=dict, repr=False, compare=False)

    def save(self, folder: Path, dtype: type = np.float16) -> None:
        """Write the folder under a temporary name and rename it; tensors in `dtype`.

        Raises:
            SkipSpecError: the folder exists, or cannot be written.
        """
        with new_folder(folder) as temporary:
            self.write(temporary, dtype)

    def write(self, folder: Path, dtype: type = np.float16) -> None:
        """Write bridge and manifest into a folder that is there. Raises OSError where that fails."""
        manifest = asdict(replace(self, tensors={}, heads={})) | {"schema": SCHEMA}
        del manifest["tensors"], manifest["heads"]
        tensors: dict[str, np.ndarray] = {}
        for name, value in self.tensors.items():
            tensors[name] = np.ascontiguousarray(value, dtype=dtype)
        try:
            save_file(tensors, folder / BRIDGE)
        except SafetensorError as error:  # its word for a failed write
            raise OSError(None, str(error)) from error
        (folder / BRIDGE).chmod(0o644)  # safetensors writes for the owner only
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Sidecar:
        """Read a sidecar folder.

        Raises:
            SkipSpecError: a file is missing, damaged or of another schema.
        """
        if not (folder / MANIFEST).is_file():
            raise SkipSpecError(f"No {MANIFEST} in {folder}; need a sidecar folder. Make one: mlx-skipspec fit.")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise TypeError(f"{MANIFEST} holds no JSON object")
            if manifest.pop("schema") != SCHEMA:
                raise SkipSpecError(f"The sidecar {folder} has another schema; need {SCHEMA}. Update mlx-skipspec.")
            base = manifest.pop("base")
            base["fingerprint"] = tuple(float(value) for value in base["fingerprint"])
            manifest["acceptance_by_position"] = tuple(manifest["acceptance_by_position"])
            heads = manifest.pop("heads", {})
            manifest["heads"] = {kind: HeadFile.from_json(kind, entry, folder) for kind, entry in heads.items()}
            sidecar = cls(base=Base(**base), tensors=load_file(folder / BRIDGE), **manifest)
            for number in (*sidecar.base.sizes, sidecar.head, sidecar.tail):
                if type(number) is not int:
                    raise TypeError(f"{number!r} is no whole number")
        except SkipSpecError:
            raise
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise SkipSpecError(
                f"The sidecar {folder} cannot be read ({type(error).__name__}: {one_line(error)}); "
                "copy or fit it again."
            ) from error
        if sidecar.kind not in KINDS:
            raise SkipSpecError(
                f"The sidecar {folder} holds a {sidecar.kind!r}; need one of {', '.join(KINDS)}. Update mlx-skipspec."
            )
        return sidecar


def attach(folder: Path, head: HeadFile) -> None:
    """Move a head's file into a sidecar's folder and list it there, in place of one of its kind.

    At every moment the folder is a whole sidecar: first it lists no head of this kind, then the file comes under its
    name, then it is listed.

    Raises:
        SkipSpecError: the folder cannot be written.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        heads = manifest.setdefault("heads", {})
        if heads.pop(head.kind, None) is not None:
            _put_manifest(folder, manifest)
        head.path.chmod(0o644)  # safetensors writes for the owner only
        os.replace(head.path, folder / FILES[head.kind])
        heads[head.kind] = head.as_json()
        _put_manifest(folder, manifest)
    except OSError as error:
        raise SkipSpecError(
            f"Writing the {head.kind} head into {folder} failed: {error.strerror or error}; the sidecar serves without "
            "it. Make room or copy the sidecar elsewhere."
        ) from error


def _put_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    file, temporary = tempfile.mkstemp(dir=folder, prefix=f".{MANIFEST}.")
    try:
        with os.fdopen(file, "w", encoding="utf-8") as text:
            text.write(json.dumps(manifest, indent=1) + "\n")
        Path(temporary).chmod(0o644)
        os.replace(temporary, folder / MANIFEST)
    finally:
        Path(temporary).unlink(missing_ok=True)
