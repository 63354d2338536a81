"""Self-supervised video representation learning: SCE and the methods it is compared with.

Each command is also a function with the same name and options. ``sce_video.verify("videos")`` is
the same as ``sce-video verify videos``, and ``sce_video.pretrain(videos, out=run, seeds=[0, 1])``
is the same as ``sce-video pretrain videos --out run --seeds 0 1``. In addition, ``embed_videos``
returns features of videos, ``open_video`` reads videos for any PyTorch code, and
``resolved(config)`` shows a whole recipe.
"""

import importlib
from typing import Any

from sce_video.utils.imports import lazy_names
from sce_video.version import __version__

#: Public names and their modules, which are imported on first access, because they need torch.
_FUNCTIONS = {
    "Features": "inference.features",
    "VideoClassifier": "inference.classifier",
    "VideoModel": "inference.model",
    "ViewOptions": "inference.network_input",
    "class_probabilities": "inference.classifier",
    "embed_files": "inference.embed",
    "embed_videos": "inference.embed",
    "load_classifier": "inference.classifier",
    "load_model": "inference.model",
    "open_video": "datasets.sources",
    "predict_files": "inference.classifier",
    "register_recipe": "engine.recipes",
    "resolved": "runs.resolved",
    "top_classes": "inference.classifier",
}
#: Options class and function of each command. The arguments of a command's Python function are its
#: options, or one object of the options class.
_COMMANDS = {
    "choose": ("options.choose.ChooseOptions", "runs.choose.choose"),
    "compare": ("options.measure.CompareOptions", "runs.report.compare"),
    "curate": ("options.find.CurateOptions", "curation.curate.curate"),
    "demo": ("options.prepare.DemoOptions", "commands.demo.demo"),
    "doctor": ("options.prepare.DoctorOptions", "runs.doctor.doctor"),
    "embed": ("options.features.EmbedOptions", "runs.embed_run.embed"),
    "encoder": ("options.connect.EncoderOptions", "inference.encoders.encoder_run.encoder"),
    "evaluate": ("options.measure.EvaluateOptions", "runs.measure.evaluate"),
    "export": ("options.connect.ExportOptions", "interop.export.export_run.export"),
    "finetune": ("options.training.FinetuneOptions", "runs.finetune.finetune"),
    "finetune_splits": (
        "options.protocols.FinetuneSplitsOptions",
        "runs.measure.finetune_splits",
    ),
    "fuse_scores": (
        "options.protocols.FuseScoresOptions",
        "evaluation.file_protocols.fuse_scores",
    ),
    "import_videos": ("options.prepare.ImportOptions", "data_tools.table_fill.import_videos"),
    "index": ("options.features.IndexOptions", "find.indexing.index"),
    "look": ("options.measure.LookOptions", "pages.look.look"),
    "predict": ("options.find.PredictOptions", "find.predict.predict"),
    "prepare": ("options.data_commands.PrepareOptions", "data_tools.prepare.prepare"),
    "prepare_digits": (
        "options.data_commands.DigitsOptions",
        "data_tools.prepare.prepare_digits",
    ),
    "prepare_toy_actions": (
        "options.data_commands.ToyActionsOptions",
        "data_tools.prepare.prepare_toy_actions",
    ),
    "pretrain": ("options.training.PretrainOptions", "runs.pretrain.pretrain"),
    "probe": ("options.protocols.ProbeOptions", "evaluation.file_protocols.probe"),
    "repack": ("options.prepare.RepackOptions", "data_tools.repack.repack_job.repack"),
    "report": ("options.measure.ReportOptions", "runs.report.report"),
    "retrieve": ("options.protocols.RetrieveOptions", "evaluation.file_protocols.retrieve"),
    "search": ("options.search.SearchOptions", "find.search.search"),
    "sweep": ("options.training.SweepOptions", "runs.sweep.sweep"),
    "train": ("options.training.TrainOptions", "runs.train.train"),
    "test": ("options.measure.TestOptions", "runs.measure.test"),
    "transfer": ("options.protocols.TransferOptions", "evaluation.file_protocols.transfer"),
    "verify": ("options.prepare.VerifyOptions", "data_tools.verify.verify"),
}
__all__ = ["__version__", *_FUNCTIONS, *_COMMANDS]


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"sce_video.{module}"), attribute)


_lazy = lazy_names(__name__, _FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Check here, because another package's traceback would not explain what to install.
        _imported("dependencies.check_dependencies")()
    if name in _COMMANDS:
        options, function = map(_imported, _COMMANDS[name])
        return _imported("options.declare.python_call")(options, function)
    return _lazy(name)
