"""A tiny GGUF and the folder made of it, once."""

import pytest

from mlx_skipspec.convert.gguf import gguf_to_mlx


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    from tiny_gguf import write_gguf  # skips where the gguf package is missing

    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def folder(source):
    gguf_to_mlx(source, out := source.parent / "tiny")
    return out
