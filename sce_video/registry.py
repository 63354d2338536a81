"""The registries of sce_video, each a child of mmaction2's registry of the same kind.

A child looks a name up in itself first and then in its parent, so a config of ours can name any
part of mmaction2 (``Recognizer3D``, ``I3DHead``) as if it were ours. The other way round, an
mmaction2 config names a part of ours by scope, ``type='sce_video.ResNet3dSlowPath'``, once
``custom_imports = dict(imports=['sce_video.models'])`` has been stated.

This module only declares; the modules named in ``locations`` are imported when a name is first
looked up.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mmaction import registry as mmaction_registry
from mmengine.registry import FUNCTIONS as MMENGINE_FUNCTIONS
from mmengine.registry import Registry

_SCOPE = "sce_video"


def import_parts(registry: Registry) -> None:
    """Import what a registry says its parts are in, without mmcv-lite's word on lacking mmcv.ops,
    which nothing here needs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeform")
        registry.import_from_location()


class ChildRegistry(Registry):
    """A registry that also makes its parent import its parts before asking it.

    mmengine walks up to the parent's table without importing the parent's ``locations``, so
    ``Recognizer3D`` would be unknown until somebody imported ``mmaction.models`` by hand.
    """

    def get(self, key: str):
        self.import_from_location()
        scope, real_key = self.split_scope_key(key)
        if scope is None and real_key not in self._module_dict and self.parent is not None:
            import_parts(self.parent)
        return super().get(key)

    @contextmanager
    def switch_scope_and_registry(self, scope: str | None) -> Iterator[Registry]:
        """Asked directly, answer ourselves, whatever the default scope (mmaction2's, say) is."""
        if scope is None:
            yield self
        else:
            with super().switch_scope_and_registry(scope) as registry:
                yield registry


def _child(name: str, parent: Registry, *locations: str) -> Registry:
    """A registry whose parts are in these packages of ``sce_video``."""
    return ChildRegistry(
        name,
        parent=parent,
        scope=_SCOPE,
        locations=[f"sce_video.{location}" for location in locations],
    )


RUNNERS = _child("runner", mmaction_registry.RUNNERS, "engine")
LOOPS = _child("loop", mmaction_registry.LOOPS, "engine", "evaluation")
HOOKS = _child("hook", mmaction_registry.HOOKS, "engine", "evaluation")
OPTIMIZERS = _child("optimizer", mmaction_registry.OPTIMIZERS, "engine")
DATASETS = _child("dataset", mmaction_registry.DATASETS, "datasets")
DATA_SAMPLERS = _child("data sampler", mmaction_registry.DATA_SAMPLERS, "datasets")
TRANSFORMS = _child("transform", mmaction_registry.TRANSFORMS, "datasets.transforms")
# Video readers; mmaction2 has no such registry. The registered name is the value of ``--backend``.
READERS = Registry("reader", scope=_SCOPE, locations=["sce_video.datasets.readers"])
# mmaction2 1.1.0's own function registry points at a module that does not exist: child of the root.
FUNCTIONS = _child("function", MMENGINE_FUNCTIONS, "datasets")
MODELS = _child("model", mmaction_registry.MODELS, "models")
OPTIM_WRAPPERS = _child("optim wrapper", mmaction_registry.OPTIM_WRAPPERS, "engine")
METRICS = _child("metric", mmaction_registry.METRICS, "evaluation")

# We add nothing to these kinds; mmengine warns of a scope that lacks one it builds from.
OPTIM_WRAPPER_CONSTRUCTORS = _child(
    "optimizer wrapper constructor", mmaction_registry.OPTIM_WRAPPER_CONSTRUCTORS
)
PARAM_SCHEDULERS = _child("parameter scheduler", mmaction_registry.PARAM_SCHEDULERS)
MODEL_WRAPPERS = _child("model_wrapper", mmaction_registry.MODEL_WRAPPERS)
WEIGHT_INITIALIZERS = _child("weight initializer", mmaction_registry.WEIGHT_INITIALIZERS)
VISUALIZERS = _child("visualizer", mmaction_registry.VISUALIZERS)
VISBACKENDS = _child("visualizer backend", mmaction_registry.VISBACKENDS)
LOG_PROCESSORS = _child("log processor", mmaction_registry.LOG_PROCESSORS)
EVALUATOR = _child("evaluator", mmaction_registry.EVALUATOR)
