"""From a last-layer hidden state to a draft token. Draft heads may miss, never lie: the target verifies."""

from mlx_skipspec.heads.clusters import Clusters
from mlx_skipspec.heads.dense import DenseHead
from mlx_skipspec.heads.protocol import Finder, Head
from mlx_skipspec.heads.shortlist import Shortlist
from mlx_skipspec.heads.subset import Subset

__all__ = ["Clusters", "DenseHead", "Finder", "Head", "Shortlist", "Subset"]
