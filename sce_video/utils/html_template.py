"""HTML pages from jinja2 templates."""

from __future__ import annotations

from typing import Any


def render_template(package: str, name: str, values: dict[str, Any]) -> str:
    """The page of a template in ``<package>/templates``; every value in it is escaped.

    Args:
        package: Python package whose data files hold the template.
        name: File name of the template.
        values: Variables of the template. A variable that is not given is an error.

    Raises:
        jinja2.TemplateError: the template is missing or broken, or uses an unknown variable.
    """
    import jinja2  # imported here, since only the pages need it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(values)
