"""Features on disk: a folder that could not be made is no folder of somebody else's features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_skipspec.convert.feature_files import FeatureFiles
from mlx_skipspec.errors import SkipSpecError

SIZES = {"last": (3, 2), "top": (3, 1)}


def test_after_a_full_disk_the_same_folder_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def half(file: Path, text: str, **options: Any) -> None:
        write(file, text[: len(text) // 2], **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(SkipSpecError, match="No space left on device"):
            FeatureFiles(tmp_path / "features", {"text": "a"}, SIZES, 4)
    files = FeatureFiles(tmp_path / "features", {"text": "a"}, SIZES, 4)
    files.write([1, 3], {"last": np.ones((2, 3, 2)), "top": np.ones((2, 3, 1), dtype=int)})
    assert FeatureFiles(tmp_path / "features", {"text": "a"}, SIZES, 4).missing().tolist() == [0, 2]
