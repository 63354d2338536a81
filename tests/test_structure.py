"""Imports point one way (docs/design.md, "Layout"), and the weight of tests/budgets.toml holds."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "sce_video"
BUDGETS = tomllib.loads((REPO / "tests" / "budgets.toml").read_text(encoding="utf-8"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {path: ast.parse(text) for path, text in TEXTS.items()}
NODES = {path: list(ast.walk(tree)) for path, tree in TREES.items()}
LINES = sum(text.count("\n") for text in TEXTS.values())
ROOMS = sorted({p.parent.relative_to(PACKAGE).parts[0] for p in TEXTS if p.parent != PACKAGE})
METHODS = "sce moco moco_v3 ressl simclr byol swav lejepa distill".split()


def module_name(path: Path) -> str:
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in TEXTS}


def imported(path: Path) -> set[str]:
    """Our modules that the file imports, inside functions and for type checks too."""
    found = set()
    for node in NODES[path]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found & MODULES.keys()


# -- imports; import-linter checks the order of the rooms --------------------------------------


def test_engine_never_names_a_concrete_algorithm():
    for path in TEXTS:
        if path.relative_to(PACKAGE).parts[0] in ("engine", "evaluation", "reporting", "pages"):
            assert not any("algorithms" in name for name in imported(path)), path


def test_engine_and_base_configs_name_nothing_of_one_method():
    """What one method needs (a queue, temperatures, heads, its momentum) stands in its recipe."""
    of_a_method = re.compile(r"queue_size|\btau|tau_m|negatives|predictor|projector|model.momentum")
    paths = {*(PACKAGE / "engine").rglob("*.py"), *(REPO / "configs/_base_").rglob("*.py")}
    paths -= {PACKAGE / "engine/weights.py"}  # names what a pretrained file may hold too much
    for path in paths:
        if "models" not in path.parts:
            assert not of_a_method.search(path.read_text(encoding="utf-8")), path


def test_no_circular_imports():
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these modules import each other in a circle: {sorted(graph)}"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_one_file(method):
    path = PACKAGE / f"models/algorithms/{method}.py"
    others = [name for name in imported(path) if "models.algorithms" in name]
    assert others == ["sce_video.models.algorithms.base"], f"{path.name} imports {others}"


def test_a_file_name_of_the_models_stands_for_one_file():
    """A command's own module, ``__init__.py`` and ``base.py`` may share a name with other files."""
    paths = [p for p in TEXTS if p.name not in ("__init__.py", "base.py")]
    names = Counter(p.name for p in paths if p.parent != PACKAGE / "commands")
    shared = [p for p in paths if PACKAGE / "models" in p.parents and names[p.name] > 1]
    assert not shared, f"other files have the same names: {shared}"


# -- functions -----------------------------------------------------------------------------------


def test_functions_fit_on_a_screen_and_constructors_take_ten_arguments():
    """A function's body without its docstring has 60 lines at most; no ``**kwargs`` sinks.

    Of a self-supervised method its own arguments count, without those that it hands to
    ``SelfSupervisedModel`` (backbone, data_preprocessor, backward_per_query) and ``TargetEncoder``
    (shuffle_bn_splits); of a backbone those without what all of them hand on to their parent.
    """
    handed_on = ("backbone", "data_preprocessor", "backward_per_query", "shuffle_bn_splits")
    # Settings of a recipe, others are refused; arguments of a command, which its signature binds; a
    # handler of botocore, which may hand it more later.
    sinks = (
        *(("pretrain.py", "pretrain"), ("finetune.py", "finetune")),
        *(("declare.py", "call"), ("storage.py", "_wait_if_busy")),
    )
    functions = [(p, n) for p, nodes in NODES.items() for n in nodes if type(n) is ast.FunctionDef]
    for path, node in functions:
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        lines = body[-1].end_lineno - body[0].lineno + 1
        assert lines <= 60, f"{path}: {node.name} has {lines} lines"
        kwarg = node.args.kwarg
        if kwarg is not None and (path.name, node.name) not in sinks:
            # Unpack of a TypedDict names every key, so that a misspelt one is refused.
            named = "Unpack" in ast.unparse(kwarg.annotation or kwarg)
            assert named, f"{path}: {node.name} takes **{kwarg.arg}"
        if node.name == "__init__":
            names = [a.arg for a in node.args.args + node.args.kwonlyargs if a.arg != "self"]
            if path.parent == PACKAGE / "models/algorithms":
                names = [name for name in names if name not in handed_on]
            if path.parent == PACKAGE / "models/backbones":
                names = [n for n in names if n not in ("frozen_stages", "with_cp", "init_cfg")]
            assert len(names) <= 10, f"{path}: a constructor takes {len(names)} arguments"


def test_no_unsafe_loading_and_no_shell():
    unsafe = re.compile(r"^[^#]*\b(weights_only ?= ?False|shell ?= ?True|allow_pickle ?= ?True)")
    for folder in (PACKAGE, REPO / "tools", REPO / "tests", REPO / "benchmarks"):
        for path in folder.rglob("*.py"):
            if path != Path(__file__).resolve():
                for line in path.read_text(encoding="utf-8").splitlines():
                    assert not unsafe.search(line), f"{path}: {line}"


def test_one_function_opens_media_and_one_chooses_the_stream():
    """``open_container`` keeps FFmpeg to files, ``best_video_stream`` avoids cover pictures."""
    home = PACKAGE / "datasets/readers/av_file.py"
    other_ways = re.compile(
        r"av\.container\.open|from av(\.container)? import .*\bopen\b|VideoCapture|read_video\b"
        r"|streams\.video\[|streams\.best\(|streams\.get\(|(demux|decode)\(video="
    )
    inputs = Counter()
    for path, nodes in NODES.items():
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "av.open":
                mode = node.args[1:2] + [k.value for k in node.keywords if k.arg == "mode"]
                inputs[path] += "w" not in (getattr(value, "value", None) for value in mode)
        if path != home:
            assert not other_ways.search(TEXTS[path]), path
    assert +inputs == {home: 1}, f"open files with open_container: {+inputs}"


def private_assignments(tree: ast.AST) -> list[int]:
    """Lines that assign to a private attribute of another object, or to parts of torch or mmengine.

    Names on ``self`` and ``cls`` are a class's own, or those of the class that it extends.
    """
    others, lines = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(str(node.module), alias.asname or alias.name) for alias in node.names]
        else:
            continue
        others |= {own for name, own in names if name.split(".")[0] in ("torch", "mmengine")}
    for node in ast.walk(tree):
        where, name = None, ""
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            where, name = node.value, node.attr
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            text = ast.unparse(node.value)  # vars(loader)["..."] = ...
            if text.startswith("vars(") or text.endswith(".__dict__"):
                where, name = node.value, "__dict__"
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            setter = re.search(r"(setattr|delattr)(__)?$", ast.unparse(node.func))
            if setter and isinstance(node.args[1], ast.Constant):
                where, name = node.args[0], str(node.args[1].value)
        if where is None:
            continue
        root = ast.unparse(where).split(".")[0]
        own = root in ("self", "cls") and ast.unparse(where) == root and name != "__class__"
        described = name in ("__name__", "__qualname__", "__doc__", "__signature__")  # public ones
        if root in others or (name.startswith("_") and not own and not described):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("loop._epoch = 1", 1),
        ("a.b._c, d = 1, 2", 1),
        ("self.loop._epoch += 1", 1),
        ("del loader._iterator", 1),
        ("vars(loader)['_get_iterator'] = f", 1),
        ("loader.__dict__['x'] = f", 1),
        ("object.__setattr__(cfg, '__class__', Other)", 1),
        ("self.__class__ = Other", 1),
        ("setattr(loop, '_iter', 1)", 1),
        ("from mmengine.config import Config\nConfig.fromfile = f", 1),
        ("import torch\ntorch.nn.Module.forward = f", 1),
        ("self._x = cls._y = 1", 0),
        ("object.__setattr__(self, 'stride', 1)", 0),
        ("loader.worker_init_fn = f", 0),
        ("x = loop._epoch", 0),
    ],
)
def test_private_assignments_are_found(code, count):
    assert len(private_assignments(ast.parse(code))) == count


def test_no_generator_of_a_gpu_is_forked_by_accident():
    """Without ``devices``, torch saves the generators of all GPUs and warns about several."""
    calls = [
        f"{path.relative_to(REPO)}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("fork_rng")
        if not node.args and "devices" not in {word.arg for word in node.keywords}
    ]
    assert not calls


def test_one_module_assigns_private_attributes_of_torch_and_mmengine():
    home = PACKAGE / "utils/private_parts.py"
    tools = {path: ast.parse(path.read_text("utf-8")) for path in (REPO / "tools").rglob("*.py")}
    for path, tree in {**TREES, **tools}.items():
        if path != home:
            lines = private_assignments(tree)
            assert not lines, f"{path}: extend the class, or add it to {home.name}: lines {lines}"
    assert len(private_assignments(TREES[home])) == 5


# -- weight --------------------------------------------------------------------------------------


def lines_of(folder: str, ending: str) -> int:
    paths = (REPO / folder).rglob(f"*{ending}")
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


@pytest.mark.parametrize("room", ROOMS)
def test_lines_of_a_room(room):
    lines = sum(text.count("\n") for p, text in TEXTS.items() if PACKAGE / room in p.parents)
    assert lines <= BUDGETS["lines"][room], "a budget rises by hand, with a sentence why"


def test_the_whole_and_what_is_beside_it():
    assert len(TEXTS) <= BUDGETS["files"]
    assert lines_of("tests", ".py") <= BUDGETS["tests_per_line"] * LINES
    assert lines_of("benchmarks", ".py") <= BUDGETS["benchmarks"]
    assert (REPO / "README.md").read_text(encoding="utf-8").count("\n") <= BUDGETS["readme"]


def test_docstrings_and_comments():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = comments = 0
    for path, text in TEXTS.items():
        inside = set()
        for node in NODES[path]:
            if isinstance(node, documented) and ast.get_docstring(node) is not None:
                inside.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        docstrings += len(inside)
        lines = enumerate(text.splitlines(), 1)
        comments += sum(i not in inside and line.lstrip().startswith("#") for i, line in lines)
    assert docstrings >= BUDGETS["docstrings"] * LINES
    assert comments >= BUDGETS["comments"] * LINES


def test_docstrings_begin_with_a_verb_or_a_noun():
    """First lines and entries (Args, Returns, ...) stand alone by naming what they explain."""
    weak = re.compile(r"( {4}([^\s:][^:]*: )?)?(Of|As|Those|That|What|In|By|Likewise|See)\b")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in TEXTS:
        for node in NODES[path]:
            docstring = isinstance(node, documented) and ast.get_docstring(node)
            for number, line in enumerate(docstring.splitlines() if docstring else []):
                if weak.match(line) and (number == 0 or line.startswith(" ")):
                    found.append(f"{path.relative_to(REPO)}: {line.strip()}")
    assert len(found) <= BUDGETS["docstring_beginnings"], "\n".join(found)


def test_a_public_name_means_one_thing():
    places = defaultdict(set)  # a function with overloads is one function
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].add(str(path.relative_to(REPO)))
    # main and parse_args: of every command
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in ("main", "parse_args")}
    assert len(twice) <= BUDGETS["public_names_in_two_files"], twice


def test_a_file_name_stands_for_one_module():
    """A command's own module and its options may share the name of the function they call."""
    places = defaultdict(list)
    for path in TREES:
        if path.relative_to(PACKAGE).parts[0] not in ("commands", "options"):
            places[path.name].append(str(path.relative_to(REPO)))
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in ("__init__.py", "base.py")}
    assert not twice, twice


def test_a_constant_has_a_line_of_its_own():
    """A line of its own has room for the unit of a constant and the reason for its value."""
    packed = [
        f"{path.relative_to(REPO)}:{node.lineno} {ast.unparse(name)}"
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Tuple | ast.List)
        for name in target.elts
    ]
    assert len(packed) <= BUDGETS["tuple_packed_constants"], packed


def test_a_helper_of_a_few_lines_is_written_where_it_is_used():
    words = Counter(word for text in TEXTS.values() for word in re.findall(r"[A-Za-z_]\w*", text))
    once = [
        f"{path.relative_to(REPO)}:{node.lineno} {node.name}"
        for path, nodes in NODES.items()
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and re.match(r"_(?!_)", node.name)
        and not node.decorator_list
        and node.end_lineno - node.lineno < 5
        and words[node.name] == 2  # its definition and its use
    ]
    assert len(once) <= BUDGETS["single_use_helpers"], once
