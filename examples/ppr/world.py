"""The worlds of this study: small ones with short pages."""

from pathlib import Path

from examples.world.entities import Entity, WorldSize, make_documents, make_world
from examples.world.pages import Pages

KINDS_ASKED = ("employer_seat", "founder_town", "founder_population", "mayor_birth_year")
"""Kinds of questions, of two and three hops: those whose answer stands on a page. The last kind is held out."""
SIZE = WorldSize(people=500, firms=180, towns=60, held_out_share=0.4)


def make_small_world(seed: int) -> tuple[Entity, ...]:
    """All entities of a world."""
    return make_world(seed, SIZE)


def make_pages(world: tuple[Entity, ...], seed: int, folder: Path) -> Pages:
    """The pages of a world, indexed in a folder; each page also has one sentence that no question asks about."""
    return Pages.of(make_documents(world, seed, num_fillers=1), folder)
