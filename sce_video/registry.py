"""Registries of sce_video, each a child of mmengine's registry of the same kind.

A name is looked up here first, then in the registries of the same kind in mmengine and mmaction2. A
config can therefore name any of their components (``Recognizer3D``, ``I3DHead``) without a scope.
mmaction2 takes a second to import, so it is imported only by the first lookup that reaches it. It
does not have to be installed. Without it, recipes that name ``Recognizer3D`` and ``I3DHead`` use
:mod:`sce_video.models.recognizer`. To use our components in a config for mmaction2, add
``custom_imports = dict(imports=['sce_video.models'])`` and name them with a scope:
``type='sce_video.ResNet3dSlowPath'``.

This module only declares the registries. The packages in ``locations`` are imported by the first
lookup.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sce_video.dependencies import check_dependencies, mmaction_installed
from sce_video.utils.errors import UserError

check_dependencies()  # before the imports that fail if the installation is broken

import mmengine.registry as mmengine_registry  # noqa: E402
from mmengine.registry import Registry  # noqa: E402

_SCOPE = "sce_video"
#: Packages whose classes an untrusted file may name only if they are listed elsewhere. A class of
#: any other package is registered only because the user's own code has imported it.
KNOWN_PACKAGES = frozenset({"sce_video", "mmaction", "mmengine", "mmcv", "torch", "torchvision"})
#: Kinds for which mmaction2 replaces mmengine's components of the same name, so it comes first.
_MMACTION_FIRST = ("TRANSFORMS", "VISBACKENDS")


def is_own_part(part: object) -> bool:
    """Return whether the user's own code defines a registered class or function."""
    return str(getattr(part, "__module__", "")).partition(".")[0] not in KNOWN_PACKAGES


def import_parts(registry: Registry) -> None:
    """Import the packages in the ``locations`` of a registry.

    mmcv-lite's warning that mmcv.ops is missing is suppressed, because nothing here needs mmcv.ops.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeform")
        registry.import_from_location()


class NameTakenError(UserError, ValueError):
    """Error for a user-defined part whose name is taken or ambiguous."""


class ChildRegistry(Registry):
    """Registry that also looks names up in mmengine's registry, its parent, and in mmaction2's.

    A user-defined part cannot replace another part with the same name. If it is registered with
    ``force=True``, it is found only by its module and name: ``type="my_parts.SimCLR"``. mmengine
    itself would search a parent without importing the parent's ``locations``, and supports only one
    parent.

    Args:
        name: Kind of the registry, for messages.
        parent: mmengine's registry.
        mmaction_name: Name of mmaction2's registry in ``mmaction.registry``; None if mmaction2 has
            none.
        locations: Packages that register components when they are imported.
    """

    def __init__(
        self, name: str, parent: Registry | None, mmaction_name: str | None, locations: list[str]
    ) -> None:
        super().__init__(name, parent=parent, scope=_SCOPE, locations=locations)
        self._mmaction_name = mmaction_name
        #: The two names that identify the parts with a name that is taken twice, by this name.
        self._forced: dict[str, tuple[str, str]] = {}

    def register_module(
        self,
        name: str | list[str] | None = None,
        force: bool = False,
        module: Any = None,
    ) -> Any:
        """Register a class or function, or return a decorator that registers it.

        Args:
            name: One or several names. None uses the name of the class or function.
            force: Whether to register a user-defined part although its name is taken.
            module: The class or function. None returns a decorator.

        Raises:
            NameTakenError: If the name of a user-defined part is taken.
        """
        if module is None:
            return lambda part: self.register_module(name, force, part)
        if is_own_part(module):
            names = [module.__name__] if name is None else [name] if isinstance(name, str) else name
            name = [self._own_name(one, module, force) for one in names]
        return super().register_module(name, force, module)

    def _own_name(self, name: str, part: Any, force: bool) -> str:
        """Return the name by which a user-defined part is found."""
        self.import_from_location()
        holders = [self] if self.parent is None else [self, self.parent]
        holder = next((one for one in holders if name in one.module_dict), None)
        taken = None if holder is None else holder.module_dict[name]
        if holder is None or (force and taken.__module__ == part.__module__):
            return name
        by_module = f"{part.__module__}.{name}"
        if not force:
            raise NameTakenError(
                f"{part.__module__} registers the {self.name} {name!r}, but {taken.__module__} has "
                "already registered this name. Choose a different name, or register it with "
                f"force=True and write type={by_module!r} in the config"
            )
        self._forced[name] = by_module, f"{holder.scope}.{name}"
        return by_module

    def import_from_location(self) -> None:
        """Import the packages, and also the names that they import only on first access."""
        new = not self._imported
        super().import_from_location()
        for package in map(import_module, self._locations if new else ()):
            for name in getattr(package, "__all__", ()):
                getattr(package, name)

    def chain(self) -> Iterator[Registry]:
        """Yield the registries in lookup order, each after importing its locations.

        mmaction2 is imported only if its registry is requested, and only if it is installed.
        """
        self.import_from_location()
        yield self
        order = [self.parent, self._mmaction_name]
        for other in reversed(order) if self._mmaction_name in _MMACTION_FIRST else order:
            if isinstance(other, str):
                if not mmaction_installed():
                    continue
                other = getattr(import_module("mmaction.registry"), other)
            if other is not None:
                import_parts(other)
                yield other

    def get(self, key: str):
        """Return the class or function registered under a name, or None if it is unknown.

        Args:
            key: Name with or without scope.

        Raises:
            NameTakenError: If a user-defined part was registered under the same name with
                ``force=True``.
        """
        if key in self._forced:
            own, other = self._forced[key]
            raise NameTakenError(
                f"the {self.name} {key!r} is ambiguous, because {own} is registered with "
                f"force=True. Write type={own!r} or type={other!r} in the config"
            )
        if key in self.module_dict:
            return self.module_dict[key]
        scope, name = self.split_scope_key(key)
        if scope is None:
            for registry in self.chain():
                if name in registry.module_dict:
                    return registry.module_dict[name]
        return super().get(key)

    @contextmanager
    def switch_scope_and_registry(self, scope: str | None) -> Iterator[Registry]:
        """Use this registry when no scope is given, regardless of the default scope."""
        if scope is None:
            yield self
        else:
            with super().switch_scope_and_registry(scope) as registry:
                yield registry


def _child(name: str, kind: str, *locations: str, mmaction: bool = True) -> ChildRegistry:
    """Return a child of mmengine's registry ``kind`` for components of these packages."""
    full_names = [f"{_SCOPE}.{location}" for location in locations]
    return ChildRegistry(
        name, getattr(mmengine_registry, kind), kind if mmaction else None, full_names
    )


RUNNERS = _child("runner", "RUNNERS", "engine")
LOOPS = _child("loop", "LOOPS", "engine", "evaluation")
HOOKS = _child("hook", "HOOKS", "engine", "evaluation")
OPTIMIZERS = _child("optimizer", "OPTIMIZERS", "engine")
OPTIM_WRAPPERS = _child("optim wrapper", "OPTIM_WRAPPERS", "engine")
LOG_PROCESSORS = _child("log processor", "LOG_PROCESSORS", "engine")
VISUALIZERS = _child("visualizer", "VISUALIZERS", "engine")
VISBACKENDS = _child("visualizer backend", "VISBACKENDS", "engine")
DATASETS = _child("dataset", "DATASETS", "datasets")
DATA_SAMPLERS = _child("data sampler", "DATA_SAMPLERS", "datasets")
TRANSFORMS = _child("transform", "TRANSFORMS", "datasets.transforms")
# mmaction2 has no registry of readers. The registered names are values of ``--backend``.
READERS = ChildRegistry("reader", None, None, ["sce_video.datasets.readers"])
# mmaction2 is left out, because its function registry (1.1.0) names a module that does not exist.
FUNCTIONS = _child("function", "FUNCTIONS", "datasets", mmaction=False)
MODELS = _child("model", "MODELS", "models", "evaluation.grey_pixels")
METRICS = _child("metric", "METRICS", "evaluation")

# These contain no components of ours. mmengine warns if a scope lacks a registry that it uses.
OPTIM_WRAPPER_CONSTRUCTORS = _child("optimizer wrapper constructor", "OPTIM_WRAPPER_CONSTRUCTORS")
PARAM_SCHEDULERS = _child("parameter scheduler", "PARAM_SCHEDULERS")
MODEL_WRAPPERS = _child("model_wrapper", "MODEL_WRAPPERS")
WEIGHT_INITIALIZERS = _child("weight initializer", "WEIGHT_INITIALIZERS")
TASK_UTILS = _child("task util", "TASK_UTILS")
EVALUATOR = _child("evaluator", "EVALUATOR")


def named_class(kind: Any, *registries: ChildRegistry) -> type | None:
    """Return the class that a ``type`` in untrusted data names; None if it may not be named.

    Data may name classes of this package and of modules that the user has imported. A name that is
    not registered is not looked up, because mmengine would import the module that it contains.

    Args:
        kind: The ``type`` in the data.
        registries: Registries of the kinds that are allowed at this place.
    """
    name = str(kind).removeprefix(f"{_SCOPE}.")
    for registry in registries:
        part = next(registry.chain()).module_dict.get(name)
        if isinstance(part, type):
            if part.__module__.startswith(f"{_SCOPE}.") or is_own_part(part):
                return part
    return None


@dataclass(frozen=True)
class OwnPart:
    """Registered class or function that the user's own code defines.

    Attributes:
        kind: Name of the registry.
        name: Registered name.
        module: Module that defines the part.
    """

    kind: str
    name: str
    module: str


def own_parts() -> list[OwnPart]:
    """Return the parts that the user's own code has registered in these registries."""
    return [
        OwnPart(registry.name, name, part.__module__)
        for registry in globals().values()
        if isinstance(registry, ChildRegistry)
        for name, part in registry.module_dict.items()
        if is_own_part(part)
    ]


def own_classes(kind: str) -> dict[str, type]:
    """Return the classes that the user's own code has registered in a registry, by name.

    Args:
        kind: Name of the registry, for example ``dataset``.
    """
    return {
        name: part
        for registry in globals().values()
        if isinstance(registry, ChildRegistry) and registry.name == kind
        for name, part in registry.module_dict.items()
        if isinstance(part, type) and is_own_part(part)
    }


def count_own_parts() -> int:
    """Return the number of user-defined parts, including those registered with mmengine."""
    parents = [r.parent for r in globals().values() if isinstance(r, ChildRegistry) and r.parent]
    return len(own_parts()) + sum(is_own_part(p) for r in parents for p in r.module_dict.values())
