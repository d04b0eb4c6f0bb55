"""What differs between pods."""

from collections import namedtuple

NETWORK_NONE, NETWORK_PRIVATE, NETWORK_LOOPBACK = "none", "private", "loopback"

PodShape = namedtuple("PodShape", ["tmp_bytes", "num_tmp_files", "network", "has_proc"])
