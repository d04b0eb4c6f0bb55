"""The study's domains, by name, and the groups of tasks outside of them."""

from collections.abc import Mapping
from typing import Final

from examples.study.domains.outside import KINDS, OutsideDomain
from examples.study.domains.protocol import Domain
from examples.study.domains.search import SearchDomain
from examples.study.domains.shell import ShellDomain
from examples.study.domains.shop import ShopDomain
from examples.study.domains.sql import SqlDomain
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject

DOMAINS: Final[Mapping[str, Domain]] = {
    each.name: each for each in (ShopDomain(), SqlDomain(), SearchDomain(), ShellDomain())
}
"""Domains that the arms train on."""
OUTSIDE: Final[Mapping[str, Domain]] = {name: OutsideDomain(name) for name in KINDS}
"""Groups of tasks that no arm trains on."""
GROUPS: Final[Mapping[str, Domain]] = {**DOMAINS, **OUTSIDE}


def domain_of(metadata: JsonObject) -> Domain:
    """The domain of a task.

    Raises:
        DataError: If its metadata name no domain.
    """
    name = metadata.get("domain")
    if not isinstance(name, str) or name not in GROUPS:
        raise DataError(f"metadata.domain of a task of the study must be one of {', '.join(GROUPS)}, got {name!r}")
    return GROUPS[name]
