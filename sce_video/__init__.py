"""Self-supervised video representation learning: SCE and the methods it is compared with.

``sce_video.pretrain(videos, out)`` is the command ``sce-video pretrain``, and
``sce_video.pretrain_seeds(videos, out, [0, 1, 2])`` the same with ``--seeds 0 1 2``.
The functions ``finetune``, ``evaluate``, ``embed``, ``build_index``, ``search``, ``predict`` and
``export`` are the commands of these names, too. ``open_video`` reads videos for any PyTorch code,
and ``resolved(config)`` shows a whole recipe.
"""

import importlib
from typing import Any

from sce_video.version import __version__

# Imported when one is asked for: they need torch and the whole package.
_FUNCTIONS = {
    "EmbedOptions": "inference.views",
    "FileRows": "inference.embed",
    "VideoClassifier": "inference.classifier",
    "VideoModel": "inference.model",
    "build_index": "find.index",
    "embed": "inference.embed",
    "embed_files": "inference.embed",
    "evaluate": "runs.launch",
    "export": "interop.export.viewers",
    "finetune": "runs.finetune",
    "load_classifier": "inference.classifier",
    "load_model": "inference.model",
    "open_video": "datasets.sources",
    "predict": "inference.classifier",
    "predict_files": "inference.classifier",
    "pretrain": "runs.pretrain",
    "pretrain_seeds": "runs.seeds",
    "resolved": "runs.resolved",
    "search": "find.search",
    "top_classes": "inference.classifier",
}
__all__ = ["__version__", *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        dependencies = importlib.import_module("sce_video.dependencies")
        dependencies.check_dependencies()  # its sentences before another package's traceback
        return getattr(importlib.import_module(f"sce_video.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
