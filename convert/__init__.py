"""From checkpoints to what we run: converters, the demo model, and the making of sidecars."""

if __name__ != "mlx_skipspec.convert":
    raise ImportError(f"import this folder as mlx_skipspec.convert, not as {__name__}: install the package first")
