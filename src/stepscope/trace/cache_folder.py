"""Where results are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "STEPSCOPE_CACHE"


def cache_folder() -> Path | None:
    """The cache's folder: $STEPSCOPE_CACHE, else the user's cache folder; None if it is `off`."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope"))
