"""`python -m mlx_skipspec` is `mlx-skipspec`."""

from mlx_skipspec.cli import main

if __name__ == "__main__":
    main()
