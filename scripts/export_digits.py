#!/usr/bin/env python3
"""Writes scikit-learn's handwritten digits to examples/data/digits.bin, for the C++ example.

1797 records of 65 bytes: the 64 pixels of an 8 x 8 image, 0 to 16, row by row, and the digit. The
records are in the order in which the Python example shuffles them; its first 80 % are for training.

    python scripts/export_digits.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

DEFAULT = Path(__file__).resolve().parent.parent / "examples" / "data" / "digits.bin"


def main() -> int:
    """Writes the file."""
    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0)).numpy()
    records = np.concatenate([digits.data, digits.target[:, None]], axis=1).astype(np.uint8)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(records[order].tobytes())
    print(f"{len(records)} records in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
