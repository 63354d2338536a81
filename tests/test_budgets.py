"""The weight of the package: tests/budgets.toml, per room (docs/design.md, "Layout")."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "sce_video"
BUDGETS = tomllib.loads((REPO / "tests" / "budgets.toml").read_text(encoding="utf-8"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {path: ast.parse(text) for path, text in TEXTS.items()}
LINES = sum(text.count("\n") for text in TEXTS.values())
ROOMS = sorted({p.parent.relative_to(PACKAGE).parts[0] for p in TEXTS if p.parent != PACKAGE})


def lines_of(folder: str, ending: str) -> int:
    paths = (REPO / folder).rglob(f"*{ending}")
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


@pytest.mark.parametrize("room", ROOMS)
def test_lines_of_a_room(room):
    lines = sum(text.count("\n") for p, text in TEXTS.items() if PACKAGE / room in p.parents)
    assert lines <= BUDGETS["lines"][room], "a budget rises by hand, with a sentence why"


def test_files():
    assert len(TEXTS) <= BUDGETS["files"]


def test_beside_the_package():
    assert lines_of("tests", ".py") <= BUDGETS["tests_per_line"] * LINES
    assert lines_of("benchmarks", ".py") <= BUDGETS["benchmarks"]
    assert lines_of("docs", ".md") <= BUDGETS["docs"]
    assert (REPO / "README.md").read_text(encoding="utf-8").count("\n") <= BUDGETS["readme"]


def test_docstrings_and_comments():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = comments = 0
    for path, text in TEXTS.items():
        for node in ast.walk(TREES[path]):
            if isinstance(node, documented) and ast.get_docstring(node) is not None:
                docstrings += node.body[0].end_lineno - node.body[0].lineno + 1
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments += sum(
            t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip() for t in tokens
        )
    assert docstrings >= BUDGETS["docstrings"] * LINES
    assert comments >= BUDGETS["comments"] * LINES


def test_a_public_name_means_one_thing():
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(REPO)))
    # main and parse_args: of every command
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in ("main", "parse_args")}
    assert len(twice) <= BUDGETS["public_names_in_two_files"], twice


def test_a_helper_of_a_few_lines_is_written_where_it_is_used():
    words = Counter(word for text in TEXTS.values() for word in re.findall(r"[A-Za-z_]\w*", text))
    once = [
        f"{path.relative_to(REPO)}:{node.lineno} {node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and re.match(r"_(?!_)", node.name)
        and not node.decorator_list
        and node.end_lineno - node.lineno < 5
        and words[node.name] == 2  # its definition and its use
    ]
    assert len(once) <= BUDGETS["single_use_helpers"], once
