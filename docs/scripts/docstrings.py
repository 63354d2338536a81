"""Griffe extension for mkdocs.yml that converts reStructuredText in our docstrings to Markdown.

``:func:`~package.name``` becomes a link to the entry of that name if the site has one, and plain
code otherwise. A paragraph that ends with ``::`` ends with ``:``.
"""

from __future__ import annotations

import html
import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:py:)?(?:func|class|meth|mod|data|attr|obj|exc):`(~?)([^`]+)`")


def as_markdown(text: str, package: str, names: dict[str, str]) -> str:
    """Return the text with roles replaced by optional links.

    Args:
        text: A docstring.
        package: Module of the docstring. Names without a dot are looked up in ``names``.
        names: Full path of every short name that is known.
    """

    def link(found: re.Match[str]) -> str:
        short, target = found[1] == "~", found[2].strip(" .")
        shown = target.rpartition(".")[2] if short else target
        path = target if "." in target else names.get(target, f"{package}.{target}")
        return (
            f'<autoref optional identifier="{html.escape(path)}">'
            f"<code>{html.escape(shown)}</code></autoref>"
        )

    return re.sub(r"::(\s*\n)", r":\1", _ROLE.sub(link, text))


class Roles(Extension):
    """Griffe extension that rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Visit all modules, classes and functions of the package."""
        objects = list(_below(pkg))
        names = {obj.name: obj.path for obj in objects if obj.is_class or obj.is_function}
        for obj in objects:
            if obj.docstring:
                module = obj.path if obj.is_module else obj.module.path
                obj.docstring.value = as_markdown(obj.docstring.value, module, names)


def _below(obj: Object) -> list[Object]:
    found = [obj]
    for member in obj.members.values():
        if not member.is_alias:
            found += _below(member)
    return found
