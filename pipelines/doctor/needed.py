"""Packages that beyondcls needs, from its installed metadata."""

from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OURS = "beyondcls"


def requirements(extra: str = "") -> "list[Requirement]":
    """Requirements of an extra and the extras in it, without those of the plain installation; the latter by default."""
    from packaging.requirements import Requirement

    needed = []
    for text in metadata.requires(OURS) or ():
        requirement = Requirement(text)
        plain = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if plain != (not extra) or (extra and not requirement.marker.evaluate({"extra": extra})):  # type: ignore[union-attr]
            continue
        if requirement.name == OURS:  # an extra that includes others
            needed += [r for included in sorted(requirement.extras) for r in requirements(included)]
        else:
            needed.append(requirement)
    return needed


def extras() -> list[str]:
    """Names of all extras."""
    return sorted(metadata.metadata(OURS).get_all("Provides-Extra") or ())


def version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_met(requirement: "Requirement") -> bool:
    """Whether the installed version satisfies a requirement."""
    installed = version(requirement.name)
    return installed is not None and requirement.specifier.contains(installed, prereleases=True)


def conflicts(package: str) -> list[str]:
    """Installed packages whose versions an installed package does not accept, in words."""
    from packaging.requirements import Requirement

    problems = []
    for text in metadata.requires(package) or ():
        needs = Requirement(text)
        applies = needs.marker is None or needs.marker.evaluate({"extra": ""})
        installed = version(needs.name)
        if applies and installed is not None and not is_met(needs):
            problems.append(f"{package} {version(package)} needs {needs.name} {needs.specifier}, {installed} is installed")
    return problems
