"""Names of configs, metrics and tables in words."""

from __future__ import annotations

import re
from typing import Any

from sce_video.published import IMAGE_METHODS

_NAMES = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "stl10": "STL10",
    "tiny_imagenet": "Tiny-ImageNet",
    "imagenet100": "ImageNet100",
    "imagenet": "ImageNet",
    "food101": "Food-101",
    "sun397": "SUN397",
    "cars": "Cars",
    "aircraft": "Aircraft",
    "voc2007": "VOC2007",
    "dtd": "DTD",
    "pets": "Pets",
    "caltech101": "Caltech-101",
    "flowers": "Flowers",
    "coco": "COCO",
    "kinetics400": "Kinetics-400",
    "kinetics200": "Kinetics-200",
    "ucf101": "UCF101",
    "hmdb51": "HMDB51",
    "ssv2": "SSv2",
    "ava": "AVA",
    "r3d18": "ResNet3D-18",
    "r3d50": "ResNet3D-50",
    "r3d101": "ResNet3D-101",
    "r2plus1d18": "R(2+1)D-18",
    "s3dg": "S3D-G",
    "r18_small": "ResNet-18 (3x3 stem)",
    "r50_2d": "ResNet-50",
    "many_shot": "many-shot linear",
    "low_shot_svm": "low-shot SVM",
    "instance_segmentation": "Mask R-CNN",
    "linear": "linear",
    "attentive_probe": "attentive probe",
    "finetune": "finetuned",
    "retrieval": "retrieval",
    "supervised": "supervised",
    "detection": "detection",
    "top1": "top-1",
    "top5": "top-5",
    "sce": "SCE",
    "sce_baseline": "SCE baseline",
    "sce_images_lars": "SCE, symmetric, LARS",
    "sce_images_multicrop": "SCE, multi-crop",
    "moco_images": "MoCo v2",
    "ressl_images": "ReSSL",
    "byol": "BYOL",
    "lejepa": "LeJEPA",
    "mocov3": "MoCo v3",
    "simclr": "SimCLR",
    "moco": "MoCo v2",
    "ressl": "ReSSL",
    "swav": "SwAV",
    "moco_rho": "rho-MoCo",
    "byol_rho": "rho-BYOL",
    "simclr_rho": "rho-SimCLR",
    "swav_rho": "rho-SwAV",
    "mean_class_accuracy": "mean class accuracy",
    "linear_top1": "linear probe top-1",
    "linear_top5": "linear probe top-5",
    "linear_mean_class": "linear probe mean class",
    "knn_top1": "kNN top-1",
    "knn_top5": "kNN top-5",
    "one_view_top1": "1 view top-1",
    "one_view_top5": "1 view top-5",
    "one_view_mean_class_accuracy": "1 view mean class",
    "feature_std": "feature std",
    "effective_rank": "effective rank",
    "many_shot_top1": "top-1",
    "many_shot_mean_class": "mean class",
    "many_shot_map11": "11-point mAP",
    "many_shot_mean": "mean of 11 sets",
    "low_shot_map_full": "mAP, all images",
    "box_AP": "box AP",
    "mask_AP": "mask AP",
}
#: Titles of the tables by their labels in the paper.
_TABLES = {
    "tab:lambda": "Ablation on ImageNet100: lambda",
    "tab:loss": "Ablation on ImageNet100: coefficients of the loss",
    "tab:aug": "Ablation on ImageNet100: views and symmetry",
    "tab:temperature": "Ablation on ImageNet100: temperatures",
    "tab:temperature-small": "Temperatures on small images",
    "tab:baselines": "SCE and its baselines",
    "tab:sota": "ImageNet, two views",
    "tab:sota-multi-crop": "ImageNet, multi-crop",
    "tab:many-shot": "Transfer: many-shot linear classification",
    "tab:low-shot-voc": "Transfer: low-shot SVMs on VOC2007",
    "tab:object-detection": "Transfer: Mask R-CNN on COCO",
    "tab:video-sota-action": "Action recognition",
    "tab:video-sota-retrieval": "Video retrieval",
    "tab:video-sota-generalization": "Generalization",
    "tab:video-baseline": "Ablation on Kinetics-200: baseline and supervised",
    "tab:video-lambda-vary": "Ablation on Kinetics-200: lambda",
    "tab:video-temp": "Ablation on Kinetics-200: tau_m",
    "tab:video-color": "Ablation on Kinetics-200: colour strength",
    "tab:video-time": "Ablation on Kinetics-200: jitter, reverse, diff",
    "tab:video-best": "Ablation on Kinetics-200: best setting",
}
_IMAGES = "sce_images_"
#: A setting in the name of a pretraining: ``_tau_m_0.07``.
_SETTING = re.compile(r"_([a-z_]+)_(\d+\.\d+)")


def name_of(value: Any) -> str:
    """A name of a config or a metric, for readers."""
    if not isinstance(value, str):
        return str(value)
    if value in _NAMES:
        return _NAMES[value]
    if value in IMAGE_METHODS:
        return _name_of_image_method(value)
    varied = re.fullmatch(r"(sce(?:_baseline)?)((?:_[a-z_]+_\d+\.\d+)+)", value)
    if varied is not None:  # a row of an ablation, named by what differs
        return _with_settings(_NAMES[varied[1]], varied[2])
    recall = re.fullmatch(r"retrieval_(plain_)?r(\d+)", value)
    if recall is not None:
        return f"R@{recall[2]}{' (plain)' if recall[1] else ''}"
    shots = re.fullmatch(r"low_shot_map_(\d+)", value)
    return value if shots is None else f"mAP, {shots[1]} images per class"


def table_title(table: str) -> str:
    """Title of a table of the paper, by its label."""
    return _TABLES.get(table, table)


def _with_settings(name: str, settings: str) -> str:
    """``SCE, lambda 0.125, tau_m 0.07``."""
    found = _SETTING.findall(settings)
    return ", ".join([name, *(f"{key} {number}" for key, number in found)])


def _name_of_image_method(value: str) -> str:
    """A row of a table on images: its views if they are varied, else its numbers."""
    settings = IMAGE_METHODS[value]
    free = re.match(r"free_([\d.]+)_([\d.]+)_([\d.]+)(_.*)", value.removeprefix(_IMAGES))
    if free is not None:
        return _with_settings(f"SCE, coefficients {', '.join(free.groups()[:3])}", free[4])
    if not _SETTING.search(value):
        symmetric = ", symmetric" if settings["symmetric"] else ""
        return f"SCE{symmetric}, {' / '.join(settings['views'])}"
    return _with_settings("SCE", f"_{value.removeprefix(_IMAGES)}")
