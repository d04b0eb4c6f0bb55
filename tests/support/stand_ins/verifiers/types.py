"""Types of the stand-in for the package verifiers."""

from dataclasses import dataclass


@dataclass
class ClientConfig:
    api_key_var: str
    api_base_url: str
    max_retries: int
