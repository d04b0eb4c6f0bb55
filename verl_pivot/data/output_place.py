"""Path of an output -> the file that is written: links are followed, and folders and devices are refused."""

import os
import stat
from pathlib import Path

from verl_pivot.errors import ConfigError


def output_place(path: Path) -> Path:
    """The file that an output is written to: where a link leads, so that the link stays.

    Raises:
        ConfigError: If there is something else than a file, such as a folder or a device, which must not be replaced.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # it is not there, or writing it will say what is wrong
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
        raise ConfigError(f"{path} is {what}, which no file replaces: give --out the name of a file")
    return Path(os.path.realpath(path))
