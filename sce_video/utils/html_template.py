"""HTML pages from jinja2 templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from sce_video.utils.command import printable_utf8, printable_values


def render_template(
    package: str, name: str, values: Mapping[str, Any], escape: Callable[[str], Any] | None = None
) -> str:
    r"""Render a template in ``<package>/templates``, in which every value is escaped.

    ``escape`` converts text to markup of the page, an object with ``__html__``. None escapes HTML.

    Control and bidirectional characters are written as in Python, because a file name may contain
    them. For example, ``\\u202e`` reverses the text after it. Line breaks and tabs are kept. A
    variable of the template that ``values`` lacks raises jinja2.TemplateError.
    """
    import jinja2  # imported here because only pages need it

    def escaped(value: Any) -> Any:
        if not isinstance(value, str) or hasattr(value, "__html__"):  # numbers and our own HTML
            return value
        if escape is not None:
            return escape(value)
        return re.sub(r"[^\n\t]+", lambda part: printable_utf8(part[0]), value)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escaped,
    )
    environment.policies["json.dumps_function"] = lambda value, **options: json.dumps(
        printable_values(value), **options
    )
    return environment.get_template(name).render(values)
