"""Where data comes from: the data folder on this computer, and public sources that a user can fetch by hand."""

import os
from pathlib import Path

DATA_VARIABLE = "DUBSAR_DATA"
DEFAULT_DATA_ROOT = "../shared/data"


def data_root() -> Path:
    """Return the data folder: the environment variable ``DUBSAR_DATA``, else ``../shared/data``; it need not exist."""
    return Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA_ROOT)


def require_data(root: Path, *parts: str) -> Path:
    """Return ``root/parts`` where it exists.

    Raises:
        FileNotFoundError: it does not; the message names the path and the variable to set.
    """
    path = root.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file or folder (looked below {root.absolute()}); "
            f"set {DATA_VARIABLE} to the folder that holds {parts[0] if parts else 'the data'}"
        )
    return path
