"""What is known of a result's training, against what its recipe claims."""

from __future__ import annotations

import copy

import pytest

from sce_video.engine.config.load import load_config
from sce_video.engine.training_record import record_settings
from sce_video.evaluation.origin import UNKNOWN, confirmed_benchmark, describe_data
from sce_video.published import NETWORKS

R18 = {"type": "ResNet3dSlowPath", "depth": 18, "parameters": NETWORKS["r3d18"][2]}
K400 = {"type": "VideoDataset", "samples": 240000, "num_classes": 400, "ann_file": "k400_train.txt"}
UCF = {"type": "VideoDataset", "samples": 9537, "num_classes": 101}


def pretraining_record(**changes):
    record = {
        "network": R18,
        "model": {"type": "SCE", "lambda_": 0.5, "tau": 0.1, "tau_m": 0.05},
        "model_parts": {"predictor": {"type": "MLP"}},
        "model_defaults": {"symmetric": True},
        "schedules": {"model": {"momentum": {"name": "cosine", "start": 0.99, "end": 1.0}}},
        "views": [{"name": "strong-alpha", "strength": 1.0}, {"strength": 1.0}],
        "pipeline": [
            {"type": "OpenVideo"},
            {"type": "RandomClips", "num_frames": 8, "diff_prob": 0.2},
            {"type": "RandomResizedCropClips", "size": 224},
        ],
        "data": K400,
        "batch_size": 512,
        "max_epochs": 200,
        "changed": [],
    }
    return {**copy.deepcopy(record), **changes}


def pretrained(record=None, **changes):
    """The provenance of the checkpoint of a pretraining."""
    declared = {"protocol": "pretraining", "pretraining": "sce", "dataset": "kinetics400"}
    whole = {"path": "pre.pth", "epoch": 200, "benchmark": declared}
    return {**whole, "training": record or pretraining_record(), **changes}


def finetuned(origin, **changes):
    """The provenance of the checkpoint of a finetuning on UCF101, split 1."""
    record = pretraining_record(network={**R18, "frozen_stages": -1}, data=UCF)
    whole = {"path": "fine.pth", "epoch": 200, "training": record, "pretrained": origin}
    return {**whole, **changes}


def benchmark(protocol="finetune", dataset="ucf101", **changes):
    claim = {"network": "r3d18", "frames": 8, "size": 224, "pretrained_on": "kinetics400"}
    return {"protocol": protocol, "dataset": dataset, **claim, **changes}


def claims(origin, network=R18, **changes):
    return confirmed_benchmark(benchmark(**changes), 1, finetuned(origin), network)


def test_a_confirmed_claim():
    known, problems = claims(pretrained())
    assert problems == {}
    assert known == {
        **benchmark(),
        "pretrained_on": "kinetics400",
        "pretraining": "sce",
        "pretraining_epochs": 200,
    }
    same = confirmed_benchmark(benchmark("retrieval"), 1, pretrained(), R18)
    assert same == ({**known, "protocol": "retrieval"}, {})


def test_the_recipe_of_the_pretraining_counts_not_that_of_the_evaluation():
    declared = {"pretraining": "sce_baseline", "dataset": "kinetics200"}
    record = pretraining_record(
        model={"type": "SCE", "lambda_": 0.5, "tau": 0.1, "tau_m": 0.07},
        views=[{"strength": 0.5}, {"strength": 0.5}],
        data={"samples": 80000, "num_classes": 200},
        pipeline=[
            {"type": "RandomClips", "num_frames": 8},
            {"type": "RandomCropClips", "size": 224},
        ],
    )
    known, problems = claims(pretrained(record, benchmark=declared, epoch=200))
    assert problems == {}
    assert (known["pretrained_on"], known["pretraining"]) == ("kinetics200", "sce_baseline")


TEMPORAL = [
    {"type": "RandomClips", "num_frames": 8, "diff_prob": 0.2}
    | {"duration_jitter": 0.2, "reverse_prob": 0.1},
    {"type": "RandomResizedCropClips", "size": 224},
]
FOLDER = {"type": "VideoDataset", "samples": 36, "num_classes": 4, "data_root": "/videos"}
WIDE = {**R18, "parameters": 1_254_480, "base_channels": 16}


@pytest.mark.parametrize(
    ("origin", "entry", "reason"),
    [
        (
            pretrained(pretraining_record(data=FOLDER), benchmark=None),
            "pretrained_on",
            "its recipe names no data set; trained on 36 videos in 4 classes of /videos",
        ),
        (pretrained(benchmark=None), "pretraining", "its recipe names no method; trained with SCE"),
        (
            pretrained(pretraining_record(data=FOLDER)),
            "pretrained_on",
            "trained on 36 videos in 4 classes of /videos; kinetics400 has 240,258 to 246,534 in",
        ),
        (
            pretrained(pretraining_record(data={**K400, "num_classes": 600})),
            "pretrained_on",
            "in 600 classes of k400_train.txt; kinetics400 has",
        ),
        (
            pretrained(pretraining_record(changed=["data"])),
            "pretrained_on",
            "the data changed when",
        ),
        (
            pretrained(pretraining_record(model={**pretraining_record()["model"], "tau_m": 0.07})),
            "pretraining",
            "trained with tau_m=0.07, sce has tau_m=0.05",
        ),
        (
            pretrained(pretraining_record(views=[{"strength": 0.5}, {"strength": 1.0}])),
            "pretraining",
            "strength=(0.5, 1.0), sce has strength=(1.0, 1.0)",
        ),
        (
            pretrained(pretraining_record(pipeline=TEMPORAL)),
            "pretraining",
            "trained with duration_jitter=0.2, reverse_prob=0.1, sce has duration_jitter=0.0, "
            "reverse_prob=0.0",
        ),
        (
            pretrained(pretraining_record(model={"type": "BYOL"})),
            "pretraining",
            "trained with type=BYOL, lambda_=unknown",
        ),
        (
            pretrained(pretraining_record(model_parts={"predictor": None})),
            "pretraining",
            "trained with predictor=False, sce has predictor=True",
        ),
        (
            pretrained(pretraining_record(model_defaults={"symmetric": False}, schedules={})),
            "pretraining",
            "trained with symmetric=False, momentum=unknown, sce has symmetric=True, momentum=0.99",
        ),
        (
            pretrained(benchmark={"dataset": "kinetics400", "pretraining": "moco"}),
            "pretraining",
            "trained with SCE, its recipe names moco",
        ),
        (
            pretrained(pretraining_record(changed=["model"])),
            "pretraining",
            "model changed when the",
        ),
        (pretrained(epoch=None), "pretraining_epochs", "pre.pth does not state its epoch"),
        (pretrained(epoch=150), "pretraining_schedule", "pretrained for 150 of 200 epochs"),
        (
            pretrained(pretraining_record(changed=["max_epochs"])),
            "pretraining_schedule",
            "the schedule changed",
        ),
        (pretrained(pretrained={"path": "other.pth"}), "pretraining_start", "random weights"),
        (
            pretrained(pretraining_record(pipeline=[{"type": "RandomClips", "num_frames": 4}])),
            "pretraining_clip",
            "pretrained on clips of 4 x unknown²",
        ),
        (
            pretrained(pretraining_record(network={**R18, "last_stage_stride": 1})),
            "pretraining_network",
            "r3d18 with last_stage_stride=1",
        ),
        (
            pretrained(pretraining_record(network={**R18, "init_cfg": {"type": "Pretrained"}})),
            "pretraining_network",
            "init_cfg",
        ),
    ],
)
def test_what_is_not_confirmed_is_unknown_with_the_reason(origin, entry, reason):
    known, problems = claims(origin)
    assert reason in problems[entry]
    if entry in known:
        assert known[entry] == UNKNOWN
    assert "clip" in entry or not set(problems) & {"network", "training"}


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ({"path": "converted.pth"}, "converted.pth has no record of its training"),
        (None, "fine.pth does not state what its training started from"),
    ],
)
def test_files_of_others_leave_everything_unknown(origin, reason):
    known, problems = claims(origin)
    entries = ("pretrained_on", "pretraining", "pretraining_epochs")
    assert all(known[name] == UNKNOWN and reason in problems[name] for name in entries)


def test_the_width_of_the_network_counts():
    known, problems = claims(pretrained(pretraining_record(network=WIDE)), network=WIDE)
    assert known["network"] == UNKNOWN
    assert problems["network"] == (
        "ResNet3dSlowPath of 1,254,480 parameters, r3d18 is ResNet3dSlowPath of 20,023,872"
    )
    other = confirmed_benchmark(benchmark(network="mine"), 1, finetuned(pretrained()), WIDE)
    assert other[0]["network"] == "mine", "the name of a network that the paper does not have"


def test_random_weights_are_known():
    for checkpoint in (
        {"path": None, "source": "random initialisation, seed 0"},
        finetuned("random"),
    ):
        known, problems = confirmed_benchmark(benchmark(), 1, checkpoint, R18)
        entries = ("pretrained_on", "pretraining", "pretraining_epochs")
        assert problems == {} and all(known[name] is None for name in entries)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "fine.pth has no record"),
        (
            {"data": {**UCF, "samples": 3783}},
            "trained on 3,783 videos in 101 classes; ucf101 has 9,537",
        ),
        ({"data": {**UCF, "samples": 9624}}, "ucf101 has 9,537"),  # the list of split 3
        ({"data": {**UCF, "samples": None}}, "an unknown number of videos"),
        ({"data": 5}, "fine.pth has no record"),
        ({"data": UCF, "network": {"frozen_stages": 4}}, "finetune with frozen_stages=4"),
    ],
)
def test_the_training_of_the_evaluated_weights_is_checked_too(record, reason):
    checkpoint = finetuned(pretrained(), training=record and pretraining_record(**record))
    _, problems = confirmed_benchmark(benchmark(), 1, checkpoint, R18)
    assert list(problems) == ["training"] and reason in problems["training"]


def test_films_count_in_ava_not_key_frames():
    ava = benchmark("detection", "ava")
    for films, wrong in ((235, []), (3, ["training"])):
        record = pretraining_record(data={"samples": 180000, "films": films})
        checkpoint = finetuned(pretrained(), training=record)
        assert list(confirmed_benchmark(ava, None, checkpoint, R18)[1]) == wrong
    assert describe_data({"type": "ImageDataset", "kind": "image", "samples": 5}) == "5 images"
    assert describe_data({}) == "an unknown number of videos"


@pytest.mark.parametrize(
    ("recipe", "frames", "size"),
    [
        ("sce/sce_r3d18_8xb64-8x224-200e_k400", 8, 224),
        ("sce/sce_r3d18_8xb64-16x112-200e_k400", 16, 112),
        ("sce/sce_r3d18_8xb64-8x224-200e_k200", 8, 224),
        ("sce/sce_r3d18_8xb64-8x224-200e_k200_baseline", 8, 224),
        ("sce/sce_r3d50_8xb64-8x224-200e_k400", 8, 224),
        ("sce/sce_r3d50_16xb32-16x224-200e_k400", 16, 224),
        ("sce/sce_r3d101_16xb32-8x224-200e_k400", 8, 224),
        ("sce/sce_r2plus1d18_8xb64-16x112-200e_k400", 16, 112),
        ("sce/sce_s3dg_8xb64-32x128-200e_k400", 32, 128),
        ("byol/byol_r3d18_8xb64-8x224-200e_k400", 8, 224),
        ("byol/byol_r3d18_8xb64-8x224-200e_k200", 8, 224),
        ("byol/byol_rho2_r3d50_8xb64-8x224-200e_k400", 8, 224),
        ("moco/moco_rho4_r3d50_8xb64-8x224-200e_k400", 8, 224),
        ("moco_v3/moco_v3_r3d18_8xb64-8x224-200e_k200", 8, 224),
        ("simclr/simclr_r3d18_8xb64-8x224-200e_k200", 8, 224),
        ("swav/swav_r3d18_8xb64-8x224-200e_k200", 8, 224),
        ("downstream/supervised/r3d18_8xb128-8x224-200e_k200", 8, 224),
    ],
)
def test_the_recipes_of_the_paper_confirm_their_claims(repo, recipe, frames, size):
    """The settings by which a method is known are those of its recipe."""
    cfg = load_config(repo / "configs" / f"{recipe}.py")
    classes = {"kinetics400": 400, "kinetics200": 200}[cfg.benchmark.dataset]
    samples = {400: 240258, 200: 80000}[classes]
    name = cfg.benchmark.network
    record = {
        **record_settings(cfg),
        "network": {**cfg.model.backbone, "parameters": NETWORKS[name][2]},
        "data": {"samples": samples, "num_classes": classes},
        "max_epochs": cfg.train_cfg.max_epochs,
        "changed": [],
    }
    origin = pretrained(record, benchmark=cfg.benchmark.to_dict())
    claim = benchmark(network=name, frames=frames, size=size)
    network = record["network"]
    known, problems = confirmed_benchmark(claim, 1, finetuned(origin), network)
    assert problems == {} and known["pretraining_epochs"] == 200
    assert known["pretrained_on"] == cfg.benchmark.dataset
    method = cfg.benchmark.get("pretraining", cfg.benchmark.protocol)
    assert known["pretraining"] == method
