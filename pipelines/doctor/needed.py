"""Packages that beyondcls needs, as its installation says."""

from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OURS = "beyondcls"


def requirements(extra: str = "") -> "list[Requirement]":
    """Of an extra with what it includes, without those of the plain installation; of that by default."""
    from packaging.requirements import Requirement

    found = []
    for text in metadata.requires(OURS) or ():
        requirement = Requirement(text)
        plain = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if plain != (not extra) or (extra and not requirement.marker.evaluate({"extra": extra})):  # type: ignore[union-attr]
            continue
        if requirement.name == OURS:  # an extra that includes others
            found += [r for included in sorted(requirement.extras) for r in requirements(included)]
        else:
            found.append(requirement)
    return found


def extras() -> list[str]:
    """Their names."""
    return sorted(metadata.metadata(OURS).get_all("Provides-Extra") or ())


def version(package: str) -> str | None:
    """None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_met(requirement: "Requirement") -> bool:
    """Whether the installed version is one that is asked for."""
    here = version(requirement.name)
    return here is not None and requirement.specifier.contains(here, prereleases=True)


def conflicts(package: str) -> list[str]:
    """Other packages that are installed in a version which an installed package does not go with, in words."""
    from packaging.requirements import Requirement

    found = []
    for text in metadata.requires(package) or ():
        needs = Requirement(text)
        wanted = needs.marker is None or needs.marker.evaluate({"extra": ""})
        here = version(needs.name)
        if wanted and here is not None and not is_met(needs):
            found.append(f"{package} {version(package)} needs {needs.name} {needs.specifier}, {here} is installed")
    return found
