"""From a last-layer hidden state to a draft token. Draft heads may miss, never lie: the target verifies."""

from mlx_skipspec.heads.dense import DenseHead
from mlx_skipspec.heads.protocol import Head

__all__ = ["DenseHead", "Head"]
