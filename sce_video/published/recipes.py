"""Which shipped recipe, with which options, reproduces a number of the paper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Name of a recipe and the options that a row of an ablation sets.
Recipe = tuple[str, dict[str, Any]]

#: Pretrainings on videos by data set, network, frames and size.
_VIDEOS = {
    ("kinetics200", "r3d18", 8, 224): "sce_r3d18_8xb64-8x224-200e_k200",
    ("kinetics400", "r3d18", 8, 224): "sce_r3d18_8xb64-8x224-200e_k400",
    ("kinetics400", "r3d18", 16, 112): "sce_r3d18_8xb64-16x112-200e_k400",
    ("kinetics400", "r3d50", 8, 224): "sce_r3d50_8xb64-8x224-200e_k400",
    ("kinetics400", "r3d50", 16, 224): "sce_r3d50_16xb32-16x224-200e_k400",
}
_SUPERVISED = "r3d18_8xb128-8x224-200e_k200"
#: End of the names of the recipes on images: network, batch, size, epochs, data set.
_IMAGES = {
    "cifar10": "r18_1xb256-32-{}_cifar10",
    "cifar100": "r18_1xb256-32-{}_cifar100",
    "stl10": "r18_1xb256-96-{}_stl10",
    "tiny_imagenet": "r18_1xb256-64-{}_tiny_imagenet",
    "imagenet100": "r50_8xb64-224-{}_imagenet100",
    "imagenet": "r50_8xb64-224-{}_imagenet",
}
_IMAGE_METHODS = {"moco_images": "moco", "ressl_images": "ressl"}
#: Pretrainings by LARS, whose linear evaluation is another (appendix D.2), and their epochs.
LARS = ("sce_images_lars", "sce_images_multicrop")
_LARS_EPOCHS = (100, 200, 300, 1000)
#: Rows of tab:aug by name: online view, target view, symmetrised.
VIEWS = {
    "gamma_weak": ("strong-gamma", "weak", False),
    "weak_strong": ("weak", "strong", False),
    "strong_strong": ("strong", "strong", False),
    "alpha_beta": ("strong-alpha", "strong-beta", False),
    "symmetric_strong_weak": ("strong", "weak", True),
    "symmetric_strong_strong": ("strong", "strong", True),
    "symmetric_alpha_beta": ("strong-alpha", "strong-beta", True),
}
_CLIPS = "train_dataloader.dataset.pipeline.RandomClips"
#: Options by their names in a pretraining's name, ``sce_baseline_lambda_0.125``.
_OPTIONS = {
    "lambda": ("model.lambda_",),
    "tau": ("model.tau",),
    "tau_m": ("model.tau_m",),
    "strength": ("data_preprocessor.views.0.strength", "data_preprocessor.views.1.strength"),
    "jitter": (f"{_CLIPS}.duration_jitter",),
    "reverse": (f"{_CLIPS}.reverse_prob",),
    "diff": (f"{_CLIPS}.diff_prob",),
}
SETTING = re.compile(rf"_({'|'.join(sorted(_OPTIONS, key=len, reverse=True))})_(\d+(?:\.\d+)?)")
_FREE = re.compile(r"_free_([\d.]+)_([\d.]+)_([\d.]+)")


def pretraining_recipe(
    pretraining: Any, dataset: Any, network: Any, frames: Any, size: Any, epochs: Any = None
) -> Recipe | None:
    """The recipe of a pretraining of the paper; None if the paper has none of that name.

    Args:
        pretraining: ``sce``, ``sce_baseline``, ``supervised``, or a row of an ablation:
            ``sce_tau_m_0.07``, ``sce_images_tau_0.1_tau_m_0.05``, ...
        dataset: What it is trained on.
        network: ``r3d18``, ...
        frames: Of a clip of ``size`` pixels; 1 for images.
        epochs: Where the paper has several numbers for one method.
    """
    name = str(pretraining)
    if name.startswith("sce_images") or name in _IMAGE_METHODS:
        return _image_recipe(name, dataset, epochs)
    if name == "supervised":
        return (_SUPERVISED, {}) if (dataset, network) == ("kinetics200", "r3d18") else None
    matched = re.fullmatch(rf"sce(_baseline)?((?:{SETTING.pattern})*)", name)
    recipe = _VIDEOS.get((dataset, network, frames, size))
    if matched is None or recipe is None or (name != "sce" and dataset != "kinetics200"):
        return None
    return f"{recipe}{matched[1] or ''}", _options(matched[2])


@dataclass(frozen=True)
class Variant:
    """Options of a recipe for which the paper and its authors' code disagree.

    A training with them stands next to the paper's number as well.

    Attributes:
        options: Values by key.
        source: Where they come from.
    """

    options: dict[str, Any]
    source: str


_WARMUP = "custom_hooks.ScheduleHook.lr.warmup_epochs"
_SHORT_SIDE = "train_dataloader.dataset.pipeline.ResizeShortSide"
_MOMENTUM = "custom_hooks.ScheduleHook.model.momentum.start"
_PAPER, _CODE = "the paper, appendix D", "the authors' code"
_SLOWFAST = "facebookresearch/SlowFast"
#: Variants by the names of their recipes, a regular expression.
_VARIANTS = (
    (r"r3d.*-60e_k[24]00", Variant({_WARMUP: 35}, _PAPER)),
    (r"r3d.*x224-60e_k[24]00", Variant({f"{_SHORT_SIDE}.size": 256}, _PAPER)),
    (r"r3d.*x112-60e_k[24]00", Variant({f"{_SHORT_SIDE}.size": 128}, _PAPER)),
    (r"r3d.*x224-200e_(ucf101|hmdb51)", Variant({f"{_SHORT_SIDE}.size": (256, 320)}, _CODE)),
    (r"r3d.*x112-200e_(ucf101|hmdb51)", Variant({f"{_SHORT_SIDE}.size": (128, 160)}, _CODE)),
    (r"r3d.*-22e_ssv2", Variant({f"{_SHORT_SIDE}.inverse_uniform": True}, _SLOWFAST)),
    (
        r"r3d.*-32e_ava",
        Variant({"train_dataloader.dataset.include_unmatched": True}, _SLOWFAST),
    ),
    (r"sce_r50_8xb512-224-100e_imagenet", Variant({"optim_wrapper.optimizer.lr": 0.5}, _PAPER)),
    (r"sce_r50_8xb512-224-1000e_imagenet", Variant({_MOMENTUM: 0.99}, _CODE)),
    (r"sce_r(18|50)_.*", Variant({"model.mask_positive": False}, _CODE)),
)


def variants(recipe: str) -> list[Variant]:
    """The options of a recipe that are the paper's as well."""
    return [variant for names, variant in _VARIANTS if re.fullmatch(names, recipe)]


def _image_recipe(name: str, dataset: Any, epochs: Any) -> Recipe | None:
    if name in LARS:
        if dataset != "imagenet":
            return None
        if name == "sce_images_multicrop":
            return "sce_multicrop_r50_16xb256-224-200e_imagenet", {}
        known = epochs in _LARS_EPOCHS
        return (f"sce_r50_8xb512-224-{epochs}e_imagenet", {}) if known else None
    if dataset not in _IMAGES:
        return None
    recipe = f"{_IMAGE_METHODS.get(name, 'sce')}_{_IMAGES[dataset].format('200e')}"
    row = name.removeprefix("sce_images_")
    if name in _IMAGE_METHODS:
        return recipe, {}
    options: dict[str, Any] = {} if "tau_m" in row else {"model.tau_m": 0.05}
    if row in VIEWS:
        online, target, symmetric = VIEWS[row]
        views = {"0": online, "1": target}
        options |= {f"data_preprocessor.views.{i}.name": view for i, view in views.items()}
        return recipe, {**options, **({"model.symmetric": True} if symmetric else {})}
    free = _FREE.match(f"_{row}")
    if free is not None:
        options["model.lambda_"] = [float(value) for value in free.groups()]
    rest = _FREE.sub("", f"_{row}")
    return (recipe, options | _options(rest)) if not SETTING.sub("", rest) else None


def _options(settings: str) -> dict[str, Any]:
    """``{"model.tau_m": 0.07}`` of ``_tau_m_0.07``."""
    found = SETTING.findall(settings)
    return {option: float(value) for name, value in found for option in _OPTIONS[name]}


def evaluation_recipe(
    protocol: Any, dataset: Any, network: Any, frames: Any, size: Any, pretraining: Any = None
) -> str | None:
    """The recipe of an evaluation of the paper; None if the paper has none.

    Some of the names belong to no recipe: the paper has no number there.

    Args:
        protocol: ``linear``, ``finetune``, ``retrieval``, ``supervised``, ``detection``,
            ``many_shot`` or ``low_shot_svm``.
        dataset: Test data.
        network: ``r3d18``, ...
        frames: Of a clip; 1 for images.
        size: Pixels of a training crop.
        pretraining: Images after LARS have a linear evaluation of their own.
    """
    clip = f"{frames}x{size}"
    if frames == 1:
        if protocol == "linear" and pretraining in LARS:
            return "r50_8xb128-224-90e_imagenet"
        if protocol == "linear" and dataset in _IMAGES:
            return _IMAGES[dataset].format("100e")
        return {"many_shot": "r50_many_shot", "low_shot_svm": "r50_voc07_svm"}.get(protocol)
    if protocol == "linear":
        short = {"kinetics200": "k200", "kinetics400": "k400"}.get(dataset)
        return f"{network}_8xb64-{clip}-60e_{short}"
    if protocol == "finetune":
        epochs = {"ucf101": 200, "hmdb51": 200, "ssv2": 22}.get(dataset)
        batch = "1xb64" if network == "r3d18" else "8xb8"
        return f"{network}_{batch}-{clip}-{epochs}e_{dataset}"
    if protocol == "detection":
        return {8: "r3d50_8xb8-8x8-32e_ava", 16: "r3d50_8xb8-16x4-32e_ava"}.get(frames)
    if protocol == "retrieval":
        return f"{network}_{clip}_{dataset}"
    return _SUPERVISED if (protocol, dataset) == ("supervised", "kinetics200") else None
