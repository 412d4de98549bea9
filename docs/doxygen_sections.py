# SPDX-License-Identifier: Apache-2.0
"""Lists the entities of each public C++ header, from Doxygen's XML, as directives of Breathe.

Breathe can show a whole header, but repeats its namespaces each time, which Sphinx takes for duplicates. So each class,
function, type and constant gets a directive of its own, in the order of the header.

Example: ``tag.hpp`` becomes the heading "tag.hpp" and one ``doxygenstruct`` for ``headway::comm::Tag``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_DIRECTIVES = {
    "class": "doxygenclass", "struct": "doxygenstruct", "function": "doxygenfunction", "enum": "doxygenenum",
    "typedef": "doxygentypedef", "variable": "doxygenvariable", "define": "doxygendefine",
}  # fmt: skip


@dataclass(frozen=True)
class Entity:
    """A class, function, type, constant or macro outside of classes."""

    kind: str
    name: str
    arguments: str  #: parameter list of a function, as Doxygen writes it
    file: str
    line: int

    def directive(self, *, is_overloaded: bool) -> str:
        name = self.name + (self.arguments if is_overloaded else "")
        members = ":members:\n:undoc-members:\n" if self.kind in ("class", "struct") else ""
        return f"```{{{_DIRECTIVES[self.kind]}}} {name}\n{members}```\n"


def sections(xml: Path, folder: str) -> str:
    """Returns one section of Markdown for each header below ``folder`` that has entities.

    Args:
        xml: folder of Doxygen's XML files.
        folder: path as in the XML, relative to the root of the repository.
    Raises:
        ValueError: there is no such header.
    """
    entities = sorted(_entities(xml, folder), key=lambda each: (each.file, each.line))
    if not entities:
        raise ValueError(f"docs: {folder} has no public headers")
    uses = Counter(each.name for each in entities)
    text = []
    for index, each in enumerate(entities):
        if index == 0 or entities[index - 1].file != each.file:
            text.append(f"## {Path(each.file).name}\n")
        text.append(each.directive(is_overloaded=each.kind == "function" and uses[each.name] > 1))
    return "\n".join(text)


def _entities(xml: Path, folder: str) -> Iterator[Entity]:
    for path in sorted(xml.glob("*.xml")):
        if path.name == "index.xml" or path.name == "Doxyfile.xml":
            continue
        for compound in ElementTree.parse(path).iter("compounddef"):
            kind = compound.get("kind", "")
            if kind in ("class", "struct"):
                yield from _entity(compound, kind, compound.findtext("compoundname", ""), folder)
            elif kind in ("namespace", "file"):
                for member in compound.iter("memberdef"):
                    name = member.findtext("qualifiedname") or member.findtext("name", "")
                    yield from _entity(member, member.get("kind", ""), name, folder)


def _entity(node: ElementTree.Element, kind: str, name: str, folder: str) -> Iterator[Entity]:
    """Yields the entity unless it is nested in a class, an implementation detail or outside of ``folder``."""
    place = node.find("location")
    file = "" if place is None else place.get("file", "")
    owner = name.rpartition("::")[0]
    is_nested = kind in ("class", "struct") and owner.rpartition("::")[2][:1].isupper()
    if not name or kind not in _DIRECTIVES or not file.startswith(folder + "/") or is_nested or "::detail" in owner:
        return
    assert place is not None
    yield Entity(kind, name, node.findtext("argsstring", ""), file, int(place.get("line", "0")))
