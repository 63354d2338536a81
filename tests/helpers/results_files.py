"""Result files as written by the tools, for tests: trained and tested as the recipes say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.engine.config.load import recipe_config
from sce_video.published.paper_results import Setting, evaluation_recipes, pretraining_recipe

K400 = "kinetics400"
VIDEOS = {
    ("ucf101", 1): 3783, ("ucf101", 2): 3734, ("ucf101", 3): 3696,
    ("hmdb51", 1): 1530, ("hmdb51", 2): 1530, ("hmdb51", 3): 1530,
    (K400, None): 19881, ("kinetics200", None): 4990, ("ssv2", None): 24777,
    ("cifar10", None): 10_000, ("stl10", None): 8_000, ("imagenet100", None): 5_000,
    ("imagenet", None): 50_000,
}  # fmt: skip
#: Samples and classes of the training sets.
TRAINING = {
    K400: (240_258, 400), "kinetics200": (80_000, 200), "ssv2": (168_913, 174),
    "ava": (180_000, None),
    ("ucf101", 1): (9537, 101), ("ucf101", 2): (9586, 101), ("ucf101", 3): (9624, 101),
    **{("hmdb51", split): (3570, 51) for split in (1, 2, 3)},
    "cifar10": (50_000, 10), "stl10": (5_000, 10), "imagenet100": (126_689, 100),
    "imagenet": (1_281_167, 1000),
}  # fmt: skip
IMAGES = {  # network, size
    "cifar10": ("r18_small", 32), "stl10": ("r18_small", 96),
    "imagenet100": ("r50_2d", 224), "imagenet": ("r50_2d", 224),
}  # fmt: skip
#: The row SCE of tab:baselines.
BEST = {
    "cifar10": "sce_images_tau_0.2_tau_m_0.1",
    "stl10": "sce_images_tau_0.1_tau_m_0.04",
    "imagenet100": "sce_images_tau_0.1_tau_m_0.07",
    "imagenet": "sce_images_tau_0.1_tau_m_0.07",
}


@cache
def _config(recipe, options):
    return json.dumps(recipe_config(recipe, dict(json.loads(options))))


def config_of(recipe, options=None):
    """The resolved config of a recipe with options."""
    return json.loads(_config(recipe, json.dumps(options or {})))


def training_data(dataset, split=None, pretraining=False):
    """A training set as data sets describe themselves."""
    samples, classes = TRAINING.get((dataset, split)) or TRAINING.get(dataset, (100, None))
    found = {"type": "VideoDataset", "samples": samples, "num_classes": classes}
    if dataset == "ava":
        return {**found, "films": 235}
    if dataset == "stl10" and pretraining:
        return {"type": "ImageArrayDataset", "kind": "image", "samples": 100_000, "name": "stl10"}
    if dataset == "imagenet100":
        found["classes"] = list(IMAGENET100_CLASSES)
    return found


def checkpoint(recipe, options=None, data=None, **changes):
    """Provenance of the last checkpoint of a recipe's training; ``changes`` to it."""
    config = config_of(recipe, options)
    return {
        "path": f"runs/{recipe}/last.pth",
        "sha256": "0123456789abcdef" * 4,
        "epoch": config["train_cfg"]["max_epochs"],
        "training": {"config": config, "data": data, "changed": []},
        **changes,
    }


def results(
    metrics, protocol, dataset, network="r3d18", frames=8, size=224, source=K400, split=None,
    benchmark=None, changes=None, trained=None, pretrained=None, tested=None, epochs=200,
):  # fmt: skip
    """The content of a results.json.

    Args:
        benchmark: Changes of the benchmark.
        changes: Changes of the protocol, None removes an entry.
        trained: Options of the training of the evaluation.
        pretrained: Options of the pretraining.
        tested: Options of the test.
        epochs: Of the pretraining.
    """
    one = dataset == "ssv2"
    method = (benchmark or {}).get("pretraining", "sce")
    claim = {
        "protocol": protocol,
        "dataset": dataset,
        "network": network,
        "frames": frames,
        "size": size,
        "pretrained_on": source,
        "pretraining": None if source is None else method,
        "pretraining_epochs": None if source is None else epochs,
        **(benchmark or {}),
    }
    setting = Setting.stated(claim)
    recipe = next(iter(evaluation_recipes(setting)), None)
    origin = pretraining_recipe(setting)
    if origin is not None:
        data = training_data(source, pretraining=True)
        origin = checkpoint(origin[0], {**origin[1], **(pretrained or {})}, data)
    of_pretraining = protocol in ("retrieval", "many_shot", "low_shot_svm")
    weights = origin
    stated = {
        "kind": "recognition",
        "benchmark": claim,
        "benchmark_problems": {},
        "dataset": dataset,
        "split": split,
        "clips": 1 if one or frames == 1 else 10,
        "crops": 1 if one or frames == 1 else 3,
        "decoder": "av",
        "decoder_version": "av 18.1.0",
        "videos": VIDEOS.get((dataset, split), 100),
        "failures": 0,
    }
    stated["epochs"] = 60
    if recipe is not None and (frames, size) in ((8, 224), (16, 112), (16, 224), (1, size)):
        if not of_pretraining:
            weights = checkpoint(recipe, trained, training_data(dataset, split), pretrained=origin)
            stated |= {"epochs": weights["epoch"], "pretrained": origin}
        stated["resolved_config"] = config_of(recipe, {**(trained or {}), **(tested or {})})
    stated["checkpoint"] = weights or {"path": "runs/epoch_60.pth", "sha256": "01" * 32}
    if protocol == "detection":
        stated["test"] = {"films": 64}
    if protocol == "retrieval":
        stated["bank_videos"] = {"ucf101": 9537, "hmdb51": 3570}.get(dataset)
    if frames == 1:
        stated["test"] = {"type": "ImageDataset", "kind": "image", "samples": stated["videos"]}
        if dataset == "imagenet100":
            stated["test"] |= {"num_classes": 100, "classes": list(IMAGENET100_CLASSES)}
    for name, value in (changes or {}).items():
        stated[name] = value
        if value is None:
            del stated[name]
    return {"metrics": metrics, "protocol": stated, "failures": []}


def linear_on_images(dataset="cifar10", top1=0.9, method=None, **options):
    """The results.json of a linear evaluation on the images of the pretraining."""
    network, size = IMAGES[dataset]
    given = {"pretraining": method or BEST[dataset], **options.pop("benchmark", {})}
    return results(
        {"top1": top1, "top5": 0.99}, "linear", dataset, network, 1, size, dataset,
        benchmark=given, **options,
    )  # fmt: skip


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


def transferred(protocol, dataset, metrics, changes=None, **options):
    """The results.json of sce-video transfer on the network of tab:sota-multi-crop."""
    train, test, _ = MANY_SHOT[dataset]
    many = protocol == "many_shot"
    given = {"pretraining": "sce_images_multicrop", **options.pop("benchmark", {})}
    content = results(
        metrics, protocol, dataset, "r50_2d", 1, 224, "imagenet", benchmark=given, **options
    )
    stated = content["protocol"]
    parts = {"checkpoint": stated["checkpoint"], "resolved_config": stated["resolved_config"]}
    stated |= {
        "videos": test,
        "images": {"train": train, "test": test},
        "files": {name: {"protocol": parts} for name in ("train", "test")},
        **({"c": 1.0, "validation": {str(i): 0.5 for i in range(45)}} if many else {"draws": 5}),
        **(changes or {}),
    }
    return content


def recalls(r1, r5, r10, plain=True):
    """Metrics of retrieval; those without centring are one point lower."""
    values = {"r1": r1, "r5": r5, "r10": r10}
    metrics = {f"retrieval_{k}": v for k, v in values.items()}
    if plain:
        metrics |= {f"retrieval_plain_{k}": v - 0.01 for k, v in values.items()}
    return metrics


def write(path: Path, content) -> Path:
    """Write JSON, or a text unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
