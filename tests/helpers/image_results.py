"""Results on images as the tools write them, from records of trainings.

Nothing here is taken from ``sce_video.published``: the settings are those of section 4.1 and
appendix D of the paper, typed once more.
"""

from __future__ import annotations

import copy

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.evaluation.origin import confirmed_benchmark

SMALL = {"type": "ResNet2d", "depth": 18, "stem": "small", "parameters": 11_168_832}
R50 = {"type": "ResNet2d", "depth": 50, "parameters": 23_508_032}
WNIDS = list(IMAGENET100_CLASSES)
#: Pretraining, training and test data, as data sets describe themselves.
DATA = {
    "cifar10": (
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 50_000,
            "num_classes": 10,
            "name": "cifar10",
        },
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 50_000,
            "num_classes": 10,
            "name": "cifar10",
        },
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 10_000,
            "num_classes": 10,
            "name": "cifar10",
        },
    ),
    "stl10": (
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 100_000,
            "name": "stl10",
            "split": "unlabeled",
        },
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 5_000,
            "num_classes": 10,
            "name": "stl10",
        },
        {
            "type": "ImageArrayDataset",
            "kind": "image",
            "samples": 8_000,
            "num_classes": 10,
            "name": "stl10",
        },
    ),
    "imagenet100": (
        {
            "type": "ImageDataset",
            "kind": "image",
            "samples": 126_689,
            "num_classes": 100,
            "classes": WNIDS,
        },
        {
            "type": "ImageDataset",
            "kind": "image",
            "samples": 126_689,
            "num_classes": 100,
            "classes": WNIDS,
        },
        {
            "type": "ImageDataset",
            "kind": "image",
            "samples": 5_000,
            "num_classes": 100,
            "classes": WNIDS,
        },
    ),
    "imagenet": (
        {"type": "ImageDataset", "kind": "image", "samples": 1_281_167, "num_classes": 1000},
        {"type": "ImageDataset", "kind": "image", "samples": 1_281_167, "num_classes": 1000},
        {"type": "ImageDataset", "kind": "image", "samples": 50_000, "num_classes": 1000},
    ),
}
#: Network, size, queue, first momentum and batch of a pretraining.
SETS = {
    "cifar10": ("r18_small", SMALL, 32, 4096, 0.9, 256),
    "stl10": ("r18_small", SMALL, 96, 16384, 0.996, 256),
    "imagenet100": ("r50_2d", R50, 224, 65536, 0.996, 512),
    "imagenet": ("r50_2d", R50, 224, 65536, 0.996, 512),
}
#: Temperatures and name of the row SCE of tab:baselines.
BEST = {
    "cifar10": (0.2, 0.1, "sce_images_tau_0.2_tau_m_0.1"),
    "stl10": (0.1, 0.04, "sce_images_tau_0.1_tau_m_0.04"),
    "imagenet100": (0.1, 0.07, "sce_images_tau_0.1_tau_m_0.07"),
    "imagenet": (0.1, 0.07, "sce_images_tau_0.1_tau_m_0.07"),
}


def pretraining_record(dataset="cifar10", model=None, **changes):
    """The record of a pretraining by SCE; ``model`` are changes of the model's arguments."""
    _, network, size, queue, momentum, batch = SETS[dataset]
    tau, tau_m, _ = BEST[dataset]
    arguments = {
        **{"type": "SCE", "lambda_": 0.5, "tau": tau, "tau_m": tau_m, "symmetric": False},
        **{"queue_size": queue, "shuffle_bn_splits": 8},
        **(model or {}),
    }
    record = {
        "network": network,
        "model": {k: v for k, v in arguments.items() if not isinstance(v, list | dict)},
        "model_parts": {
            "projector": {"type": "MLP", "hidden_channels": 512},
            **{k: v for k, v in arguments.items() if isinstance(v, list | dict)},
        },
        "model_defaults": {"momentum": 0.99, "predictor": None, "target_views": None},
        "views": [{"name": "strong", "strength": 0.5}, {"name": "weak"}],
        "pipeline": [
            {"type": "LoadImage", "num_views": 2},
            {"type": "RandomResizedCropClips", "size": size, "area": [0.2, 1.0]},
            {"type": "PackClips"},
        ],
        "optimizer": {"type": "SGD", "lr": 0.06, "momentum": 0.9},
        "schedules": {
            "lr": {"name": "warmup_cosine", "warmup_epochs": 5},
            "model": {"momentum": {"name": "cosine", "start": momentum, "end": 1.0}},
        },
        "data": DATA[dataset][0],
        "batch_size": batch,
        "max_epochs": 200,
        "changed": [],
    }
    return {**copy.deepcopy(record), **changes}


def lars_record(epochs=100, **changes):
    """The record of the recipes of tab:sota."""
    heads = {"projector": {"type": "MLP"}, "predictor": {"type": "MLP", "num_layers": 2}}
    record = pretraining_record(
        "imagenet",
        model={"symmetric": True, "queue_size": 65536, **heads},
        views=[{"name": f"strong-{name}", "strength": 0.5} for name in ("alpha", "beta")],
        optimizer={"type": "LARS", "lr": 0.6},
        batch_size=4096,
        max_epochs=epochs,
    )
    start = 0.996 if epochs == 1000 else 0.99
    record["schedules"]["model"]["momentum"]["start"] = start
    return {**record, **changes}


def multicrop_record():
    """The record of the recipe of tab:sota-multi-crop."""
    sizes, areas = [192, 160, 128, 96], [[0.172, 0.86], [0.143, 0.715], [0.114, 0.571]]
    record = lars_record(200)
    record["views"] += [{"name": "strong-gamma", "strength": 0.5}] * 4
    record["pipeline"][0] |= {"num_views": 6, "num_local_views": 4}
    record["pipeline"][1] |= {"local_size": sizes, "local_area": [*areas, [0.086, 0.429]]}
    return record


def pretrained(dataset="cifar10", record=None, method=None, epochs=200, **changes):
    """The provenance of a pretraining's checkpoint."""
    declared = {
        "protocol": "pretraining",
        "dataset": dataset,
        "pretraining": method or BEST[dataset][2],
    }
    whole = {"path": "pretrained.pth", "epoch": epochs, "sha256": "ab" * 32, "benchmark": declared}
    record = pretraining_record(dataset) if record is None else record
    return {**whole, "training": record, **changes}


def linear(dataset="cifar10", origin=None, top1=0.9, training=None, test=None, **changes):
    """The results.json of a linear evaluation; ``changes`` to its protocol.

    Args:
        dataset: Test set.
        origin: Provenance of the pretraining, see :func:`pretrained`.
        top1: The metric.
        training: Changes of the record of the linear training.
        test: Changes of the description of the test set.
        changes: Changes of the protocol.
    """
    name, network, size, *_, batch = SETS[dataset]
    frozen = {**network, "frozen_stages": 4}
    record = {
        "network": frozen,
        "model": {"type": "Recognizer3D"},
        "views": [{"name": "weak"}],
        "pipeline": [{"type": "LoadImage", "num_views": 1}],
        "data": DATA[dataset][1],
        "optimizer": {"type": "SGD", "lr": 30.0},
        "batch_size": batch,
        "max_epochs": 100,
        "changed": [],
        **(training or {}),
    }
    epoch = record["max_epochs"]
    origin = pretrained(dataset) if origin is None else origin
    checkpoint = {"path": f"epoch_{epoch}.pth", "epoch": epoch, "sha256": "cd" * 32}
    checkpoint |= {"training": record, "pretrained": origin}
    claim = {
        "protocol": "linear",
        "dataset": dataset,
        "network": name,
        "frames": 1,
        "size": size,
        "pretrained_on": dataset,
    }
    benchmark, problems = confirmed_benchmark(claim, None, checkpoint, frozen)
    pipeline = [{"type": "LoadImage", "num_views": 1}]
    if size == 224:
        pipeline += [{"type": "ResizeShortSide", "size": 256}]
        pipeline += [{"type": "CenterCropClips", "size": 224}]
    described = {**DATA[dataset][2], "pipeline": pipeline, **(test or {})}
    protocol = {
        "kind": "recognition",
        "benchmark": benchmark,
        "benchmark_problems": problems,
        "network": frozen,
        "dataset": dataset,
        "split": None,
        "checkpoint": checkpoint,
        "pretrained": origin,
        "epochs": epoch,
        "views": 1,
        "test": described,
        "videos": described["samples"],
        "failures": 0,
        "num_classes": described.get("num_classes"),
        **changes,
    }
    return {"metrics": {"top1": top1, "top5": 0.99}, "protocol": protocol, "failures": []}


#: Images of train and val together, and of test, and the metric of the sets of tab:many-shot.
MANY_SHOT = {
    "food101": (75_750, 25_250, "top1"),
    "cifar10": (50_000, 10_000, "top1"),
    "cifar100": (50_000, 10_000, "top1"),
    "sun397": (19_850, 19_850, "top1"),
    "cars": (8_144, 8_041, "top1"),
    "aircraft": (6_667, 3_333, "mean_class"),
    "voc2007": (5_011, 4_952, "map11"),
    "dtd": (3_760, 1_880, "top1"),
    "pets": (3_680, 3_669, "mean_class"),
    "caltech101": (2_416, 6_728, "mean_class"),
    "flowers": (2_040, 6_149, "mean_class"),
}


def transferred(protocol, dataset, metrics, origin=None, **changes):
    """The results.json of tools/transfer.py; ``changes`` to its protocol.

    Args:
        protocol: ``many_shot`` or ``low_shot_svm``.
        dataset: A set of tab:many-shot.
        metrics: Metrics.
        origin: Provenance of the checkpoint; by default the one of tab:sota-multi-crop.
        changes: Changes of the protocol.
    """
    if origin is None:
        origin = pretrained("imagenet", multicrop_record(), "sce_images_multicrop")
    claim = {"protocol": protocol, "network": "r50_2d", "frames": 1, "size": 224}
    known, problems = confirmed_benchmark({**claim, "pretrained_on": "imagenet"}, None, origin, R50)
    train, test, _ = MANY_SHOT[dataset]
    many = protocol == "many_shot"
    resize = {"type": "PillowResizeCenterCrop", "size": 224 if many else 256, "crop": 224}
    resize["interpolation"] = "bicubic" if many else "bilinear"
    stated = {
        "kind": "representation",
        "benchmark": {**known, "dataset": dataset},
        "benchmark_problems": problems,
        "protocol_name": protocol,
        "dataset": dataset,
        "checkpoint": origin,
        "network": R50,
        "views": 1,
        "videos": test,
        "failures": 0,
        "images": {"train": train, "test": test},
        "files": {name: {"protocol": {"checkpoint": origin}} for name in ("train", "test")},
        "test": {"type": "ImageDataset", "kind": "image", "samples": test, "pipeline": [resize]},
        **({"c": 1.0, "validation": {str(i): 0.5 for i in range(45)}} if many else {"draws": 5}),
        **changes,
    }
    return {"metrics": metrics, "protocol": stated, "failures": []}
