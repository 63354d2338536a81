"""The registries of sce_video, each a child of mmengine's registry of the same kind.

A name is looked up here first, then in mmaction2's registry of that kind, then in mmengine's: a
config of ours can name any part of mmaction2 (``Recognizer3D``, ``I3DHead``) as if it were ours.
mmaction2 is imported when a name is first asked of it, so embedding and search do without it. The
other way round an mmaction2 config names a part of ours by scope,
``type='sce_video.ResNet3dSlowPath'``, with ``custom_imports = dict(imports=['sce_video.models'])``.

This module only declares; the modules named in ``locations`` are imported when a name is first
looked up.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import mmengine.registry as mmengine_registry
from mmengine.registry import Registry

_SCOPE = "sce_video"


def import_parts(registry: Registry) -> None:
    """Import the modules that a registry names as its locations.

    Without mmcv-lite's warning that mmcv.ops is missing: nothing here needs it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeform")
        registry.import_from_location()


class ChildRegistry(Registry):
    """A registry that asks mmaction2's of the same kind before it asks its parent, mmengine's.

    mmengine walks up to a parent's table without importing the parent's ``locations``, and knows no
    second parent.

    Args:
        name: Of the kind, for messages.
        parent: mmengine's registry.
        mmaction_name: Name of mmaction2's registry in ``mmaction.registry``; None for none.
        locations: Packages whose import registers what is in them.
    """

    def __init__(
        self, name: str, parent: Registry | None, mmaction_name: str | None, locations: list[str]
    ) -> None:
        super().__init__(name, parent=parent, scope=_SCOPE, locations=locations)
        self._mmaction_name = mmaction_name

    def chain(self) -> Iterator[Registry]:
        """The registries in the order in which a name is looked up, each with its parts imported.

        Lazily: mmaction2 is imported when the second one is asked for.
        """
        self.import_from_location()
        yield self
        if self._mmaction_name is not None:
            registry = getattr(import_module("mmaction.registry"), self._mmaction_name)
            import_parts(registry)
            yield registry
        if self.parent is not None:
            import_parts(self.parent)
            yield self.parent

    def get(self, key: str):
        """The class or function registered under a name; None if there is none."""
        scope, name = self.split_scope_key(key)
        if scope is None:
            for registry in self.chain():
                if name in registry.module_dict:
                    return registry.module_dict[name]
        return super().get(key)

    @contextmanager
    def switch_scope_and_registry(self, scope: str | None) -> Iterator[Registry]:
        """Answer for ourselves when no scope is given, whatever the default scope is."""
        if scope is None:
            yield self
        else:
            with super().switch_scope_and_registry(scope) as registry:
                yield registry


def _child(name: str, kind: str, *locations: str, mmaction: bool = True) -> ChildRegistry:
    """A registry under mmengine's ``kind``; its parts are in these packages of ``sce_video``."""
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
DATASETS = _child("dataset", "DATASETS", "datasets")
DATA_SAMPLERS = _child("data sampler", "DATA_SAMPLERS", "datasets")
TRANSFORMS = _child("transform", "TRANSFORMS", "datasets.transforms")
# Video readers; mmaction2 has no such registry. The registered name is the value of ``--backend``.
READERS = Registry("reader", scope=_SCOPE, locations=["sce_video.datasets.readers"])
# mmaction2 1.1.0's own function registry names a module that does not exist.
FUNCTIONS = _child("function", "FUNCTIONS", "datasets", mmaction=False)
MODELS = _child("model", "MODELS", "models")
METRICS = _child("metric", "METRICS", "evaluation")

# We add nothing to these kinds; mmengine warns of a scope that lacks one it builds from.
OPTIM_WRAPPER_CONSTRUCTORS = _child("optimizer wrapper constructor", "OPTIM_WRAPPER_CONSTRUCTORS")
PARAM_SCHEDULERS = _child("parameter scheduler", "PARAM_SCHEDULERS")
MODEL_WRAPPERS = _child("model_wrapper", "MODEL_WRAPPERS")
WEIGHT_INITIALIZERS = _child("weight initializer", "WEIGHT_INITIALIZERS")
TASK_UTILS = _child("task util", "TASK_UTILS")
VISUALIZERS = _child("visualizer", "VISUALIZERS")
VISBACKENDS = _child("visualizer backend", "VISBACKENDS")
EVALUATOR = _child("evaluator", "EVALUATOR")
