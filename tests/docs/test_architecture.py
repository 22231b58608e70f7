"""The picture of the rooms in docs/architecture.md against the imports that the code has."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import grimp
import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("jaxserve", "scheduler", "checkpoints", "pallas_kernels", "cpu_kernels")
SPLIT = ("jaxserve.engine", "jaxserve.server")  # whose packages and modules are rooms of their own
ARROW = re.compile(r"^\s*([\w.]+) --> ([\w. &]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def imports() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second."""
    graph = grimp.build_graph(*PACKAGES)
    pairs = {
        (room(module), room(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    # config, errors and outputs, at the top of jaxserve, are for everybody and not drawn.
    return {(a, b) for a, b in pairs if a != b and "jaxserve" not in (a, b)}


@pytest.fixture(scope="module")
def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms between which the picture has an arrow."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    picture = text.split("```mermaid", 1)[1].split("```", 1)[0]
    return {
        (start, end.strip()) for start, ends in ARROW.findall(picture) for end in ends.split("&")
    }


def room(module: str) -> str:
    """The room of a module, under the name that the picture gives it."""
    parts = module.split(".")
    if parts[0] != "jaxserve" or len(parts) == 1:
        return parts[0]
    if ".".join(parts[:2]) in SPLIT:
        return ".".join(parts[1:3])
    return parts[1] if REPOSITORY.joinpath(*parts[:2]).is_dir() else "jaxserve"


def test_every_arrow_of_the_picture_is_an_import(
    arrows: set[tuple[str, str]], imports: set[tuple[str, str]]
) -> None:
    assert arrows
    assert arrows - imports == set()


def test_every_import_between_rooms_follows_the_arrows(
    arrows: set[tuple[str, str]], imports: set[tuple[str, str]]
) -> None:
    reached = set(arrows)
    rooms = {name for arrow in arrows for name in arrow}
    for via, start, end in product(rooms, rooms, rooms):  # Floyd and Warshall's order
        if (start, via) in reached and (via, end) in reached:
            reached.add((start, end))
    assert imports - reached == set()


@pytest.mark.parametrize("page", ["architecture.md", "adding-a-model.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    paths = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", text)
    assert paths
    homes = (REPOSITORY, REPOSITORY / "jaxserve", REPOSITORY / "jaxserve" / "server")
    missing = [path for path in paths if not any((home / path).exists() for home in homes)]
    assert missing == []
