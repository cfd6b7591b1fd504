"""Objects of an XML annotation in the layout of Pascal VOC, which ImageNet shares."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from extract.datasets.listed import parsing, text
from extract.datasets.sample import DataError


@dataclass(frozen=True)
class XmlObject:
    """An object: the name of its class, corners x0, y0, x1, y1 as published, and whether it is marked as difficult."""

    name: str
    corners: tuple[float, float, float, float]
    is_difficult: bool


def read_objects(file: Path) -> list[XmlObject]:
    """Objects of one annotation: `object` with `name`, `bndbox` of xmin, ymin, xmax, ymax, and maybe `difficult`.

    A document type is refused before anything is parsed: without one, XML has no entities that could expand or read files.

    Raises:
        DataError: it is not such an annotation.
    """
    content = text(file)
    if "<!DOCTYPE" in content.upper() or "<!ENTITY" in content.upper():
        raise DataError(f"{file} declares a document type or entities, which no published annotation does; do not use it")
    with parsing(file, "object with name and bndbox"):
        try:
            objects = ElementTree.fromstring(content).findall("object")
        except ElementTree.ParseError as error:
            raise ValueError(error) from error
        return [XmlObject(_value(one, "name"), _corners(one), one.findtext("difficult", "0").strip() == "1") for one in objects]


def _corners(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(_value(element, f"bndbox/{corner}")) for corner in ("xmin", "ymin", "xmax", "ymax"))
    return x0, y0, x1, y1


def _value(element: ElementTree.Element, path: str) -> str:
    if not (value := element.findtext(path)):
        raise ValueError(f"an object without {path}")
    return value.strip()
