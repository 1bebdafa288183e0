"""No test reads or writes what the user keeps."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
