"""HTML templates, whose values are escaped. A missing variable is an error."""

from __future__ import annotations

import jinja2
import pytest

from sce_video.utils.html_template import render_template


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make an importable package with the template ``a.html``."""
    folder = tmp_path / "package_with_template" / "templates"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "a.html").write_text('<p title="{{ text }}">{{ text }}</p>\n')
    (folder / "b.html").write_text("{{ text }}{{ [text] | tojson }}{{ text | length }}")
    monkeypatch.syspath_prepend(tmp_path)
    return "package_with_template"


def test_values_are_escaped(package):
    page = render_template(package, "a.html", {"text": "<b>\"&'"})
    escaped = "&lt;b&gt;&#34;&amp;&#39;"
    assert page == f'<p title="{escaped}">{escaped}</p>\n'


def test_names_cannot_turn_what_stands_beside_them_around(package):
    r"""Also in the data of a script, which shows \u202e as the character; line breaks stay."""
    page = render_template(package, "b.html", {"text": "a\u202eb\n\tc\x1b\udcff"})
    assert page == 'a\\u202eb\n\tc\\x1b\ufffd["a\\\\u202eb\\\\n\\\\tc\\\\x1b\\ufffd"]8'


def test_a_missing_variable_is_an_error(package):
    with pytest.raises(jinja2.UndefinedError, match="text"):
        render_template(package, "a.html", {"txt": "x"})
