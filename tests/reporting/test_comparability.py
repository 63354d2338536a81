"""Obstacles and deviations: which results may be compared with the paper's numbers."""

from __future__ import annotations

import json
import re

import pytest
from helpers.results_files import (
    K400,
    checkpoint,
    config_of,
    linear_on_images,
    results,
    training_data,
    transferred,
)

from sce_video.engine.config.differences import differences
from sce_video.engine.recipes import recipe_names
from sce_video.published.paper_results import VARIANTS, variant_of
from sce_video.reporting.comparability import (
    Comparability,
    compare_training,
    compare_with_paper,
    views_of,
)
from sce_video.reporting.report_content import assign_results
from sce_video.reporting.result_files import Collection, parse_result

CLIPS = "train_dataloader.dataset.pipeline.RandomClips"
TEST_CLIPS = "test_dataloader.dataset.pipeline.UniformClips"
LR = "optim_wrapper.optimizer.lr"
UCF = {"protocol": "finetune", "dataset": "ucf101", "split": 1}
RETRIEVAL = {"protocol": "retrieval", "dataset": "ucf101", "split": 1}
SUPERVISED = {"protocol": "supervised", "dataset": "kinetics200", "source": None}
AVA = {"protocol": "detection", "dataset": "ava", "network": "r3d50"}


def found(content):
    return compare_with_paper(parse_result("x/results.json", content))


def compared(protocol="linear", dataset=K400, **options):
    return found(results({"top1": 0.5}, protocol, dataset, **options))


def beside(content):
    """The numbers of the paper that a result stands beside."""
    report = assign_results(Collection([parse_result("x/results.json", content)]))
    cells = (*report.videos.cells, *report.images.cells)
    return [(c.papers[0].table, c.papers[0].value) for c in cells if c.measurements]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {**UCF, "split": 2},
        {**RETRIEVAL, "dataset": "hmdb51"},
        {**SUPERVISED, "changes": {"pretrained": "random"}},
        AVA,
        # Paths, workers, devices and logging; the batch of a process.
        {
            "pretrained": {
                "train_dataloader.num_workers": 1,
                "train_dataloader.dataset.data_root": "/mine",
                "default_hooks.logger.interval": 7,
                "default_hooks.online_evaluation": None,
                "work_dir": "/mine",
                "randomness.seed": 3,
            },
            "trained": {"val_dataloader.num_workers": 3, "train_cfg.val_interval": 2},
        },
    ],
)
def test_a_faithful_result_has_neither_obstacles_nor_deviations(options):
    assert (compared(**options).obstacles, compared(**options).deviations) == ((), ())


WARMUP = "custom_hooks.ScheduleHook.lr.warmup_epochs"
SHORT_SIDE = "train_dataloader.dataset.pipeline.ResizeShortSide"
LAYOUT = {"model.backbone.channels_last": True, "data_preprocessor.channels_last": True}
SSV2 = {"protocol": "finetune", "dataset": "ssv2", "network": "r3d50"}


@pytest.mark.parametrize(
    "options",
    [
        {"pretrained": {"optim_wrapper.dtype": "float32"}},
        {"pretrained": {"optim_wrapper.type": "OptimWrapper", "optim_wrapper.dtype": None}},
        {"pretrained": LAYOUT, "trained": LAYOUT},
        {"trained": {"train_dataloader.dataset.pipeline.OpenVideo.num_threads": 2}},
        {"trained": {"randomness.deterministic": True}},
    ],
)
def test_layout_and_more_precise_arithmetic_are_no_difference(options):
    assert (compared(**options).obstacles, compared(**options).deviations) == ((), ())


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({"pretrained": {"optim_wrapper.dtype": "bfloat16"}}, "pretraining: {}: bfloat16 -> fl"),
        ({"trained": {"optim_wrapper.dtype": "float16"}}, "training: {}: float16 -> float32"),
    ],
)
def test_less_precise_arithmetic_is_a_deviation(options, deviation):
    found = compared(**options)
    assert found.obstacles == () and len(found.deviations) == 1
    assert found.deviations[0].startswith(deviation.format("optim_wrapper.dtype"))


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({"trained": {WARMUP: 35}}, "the paper"),
        ({"trained": {WARMUP: 35, f"{SHORT_SIDE}.size": 256}}, "the paper"),
        ({**UCF, "trained": {f"{SHORT_SIDE}.size": (256, 320)}}, "the authors' code"),
        ({**SSV2, "trained": {f"{SHORT_SIDE}.inverse_uniform": True}}, "SlowFast"),
    ],
)
def test_variants_of_the_paper_stand_beside_its_number_with_a_note(options, source):
    found = compared(**options)
    assert (found.obstacles, found.deviations) == ((), ())
    assert len(found.notes) == len(options["trained"])
    assert all("a variant (" in note and source in note for note in found.notes)
    changed = {**options["trained"], LR: 3.0}  # what else differs is still found, alone
    (obstacle,) = compared(**{**options, "trained": changed}).obstacles
    assert LR in obstacle and not any(key in obstacle for key in options["trained"])


def test_every_advised_option_is_a_variant_of_a_shipped_recipe():
    for variant in VARIANTS:
        recipes = [name for name in recipe_names() if re.fullmatch(variant.recipes, name)]
        assert recipes
        for name in recipes:
            ours = config_of(name, {variant.key: variant.value})
            assert differences(ours, config_of(name)), (name, variant)
    # The rate of the whole batch of 8 x 512 images: 0.5 for 256.
    name = "sce_r50_8xb512-224-100e_imagenet"
    (changed,) = differences(config_of(name, {LR: 0.5}), config_of(name))
    assert variant_of(name, changed.key, changed.ours).source == "the paper, appendix D"
    assert variant_of(name, changed.key, "0.5") is variant_of("x", changed.key, "8.0") is None


def test_a_training_says_at_its_start_whether_it_can_stand_beside_the_paper():
    def of(recipe, options=None, dataset=K400, samples=240_258):
        config = config_of(recipe, options)
        data = {**training_data(dataset), "samples": samples}
        return compare_training(config["benchmark"], None, {"config": config, "data": data})

    pretraining, linear = "sce_r3d18_8xb64-8x224-200e_k400", "r3d18_8xb64-8x224-60e_k400"
    for recipe in (pretraining, linear):
        assert of(recipe) == (recipe, Comparability())
    assert of(linear, {WARMUP: 35})[1].notes and not of(linear, {WARMUP: 35})[1].obstacles
    assert "model.tau: 0.2 -> 0.1" in of(pretraining, {"model.tau": 0.2})[1].obstacles[0]
    assert "36 videos" in of(pretraining, samples=36)[1].obstacles[0]
    assert of("moco_r3d18_8xb64-8x224-200e_k200", None, "kinetics200") is None
    for name in ("r50_8xb128-224-90e_imagenet", "r50_8xb64-224-100e_imagenet"):
        found = of(name, None, "imagenet", 1_281_167)
        assert found[0] == name and found[1].obstacles == (), found
    ablation = {"benchmark.pretraining": "sce_tau_m_0.07", "model.tau_m": 0.07}
    k200 = of("sce_r3d18_8xb64-8x224-200e_k200", ablation, "kinetics200", 80_000)
    assert k200[1] == Comparability()


def test_another_method_under_the_name_of_the_papers_is_named_key_by_key():
    """Learning rate 100, clips of 0.3 s, a 2-d projector, a queue of 64."""
    options = {
        LR: 100,
        f"{CLIPS}.clip_duration": 0.3,
        "model.projector.out_channels": 2,
        "model.queue_size": 64,
    }
    content = results({"top1": 0.5}, "linear", K400, pretrained=options)
    (obstacle,) = found(content).obstacles
    assert obstacle.startswith("pretraining: not the recipe sce_r3d18_8xb64-8x224-200e_k400: ")
    for difference in (
        "optim_wrapper.optimizer.lr: 200.0 -> 4.8",  # 2.4 x 512/256
        f"{CLIPS}.clip_duration: 0.3 -> 2.56",
        "model.projector.out_channels: 2 -> 256",
        "model.queue_size: 64 -> 65536",
    ):
        assert difference in obstacle
    assert beside(content) == []
    assert beside(results({"top1": 0.5}, "linear", K400)) == [("tab:video-sota-action", 59.8)]


def chosen(on_test):
    """Changes for a checkpoint that is the best on the test set or on a validation list."""
    weights = results({}, "finetune", "ucf101", split=1)["protocol"]["checkpoint"]
    weights |= {"epoch": 150, "selected": {"metric": "top1", "ann_sha256": "abc"}}
    return {"checkpoint": weights, "epochs": 150, "chosen_on_test": on_test}


def origin(**changes):
    data = training_data(K400)
    return checkpoint("sce_r3d18_8xb64-8x224-200e_k400", None, data, **changes)


def with_training(**changes):
    whole = origin()
    return {
        **RETRIEVAL,
        "changes": {"checkpoint": {**whole, "training": whole["training"] | changes}},
    }


OTHER, SAME = ({"protocol": {"checkpoint": {"sha256": digest * 32}}} for digest in ("ef", "ab"))
ENTRIES = ("pretrained_on", "pretraining")
NO_RECORD = "a.pth has no record of its training"


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"pretrained": {"model.symmetric": False}}, "model.symmetric: False -> True"),  # default
        ({"pretrained": {"model.predictor": None}}, "model.predictor"),
        ({"pretrained": {"train_dataloader.batch_size": 8}}, "batch_size: 64 -> 512"),
        ({"pretrained": {"custom_hooks.ScheduleHook.lr.warmup_epochs": 8}}, "warmup_epochs: 8"),
        ({"trained": {LR: 1.0}}, "training: not the recipe r3d18_8xb64-8x224-60e_k400: optim"),
        ({"changes": {"videos": 24}}, "24 videos, published 19,800 to 20,000"),
        ({**UCF, "changes": {"videos": 3743, "failures": 40}}, "40 of 3,783 videos failed"),
        ({**UCF, "changes": {"pretrained": "random"}}, "random weights"),
        ({**RETRIEVAL, "changes": {"group_pattern": "g(.*)"}}, "own group"),
        ({"changes": {"fusion": [{}, {}]}}, "fuses the scores of 2 models"),
        ({"changes": {"benchmark": None}}, "no benchmark"),
        ({"changes": {"benchmark_problems": None}}, "does not state what is known of its training"),
        (
            {"changes": {"benchmark_problems": dict.fromkeys(ENTRIES, NO_RECORD)}},
            f"pretraining data, pretraining method: {NO_RECORD}",
        ),
        ({**RETRIEVAL, "changes": {"checkpoint": origin(epoch=150)}}, "pretrained for 150 of 200"),
        ({**RETRIEVAL, "changes": {"checkpoint": origin(pretrained={"path": "b"})}}, "not start"),
        (with_training(changed=["model.tau: 1 -> 2"]), "changed when it was resumed: model.tau"),
        (with_training(data={"samples": 36, "num_classes": 4}), "36 videos in 4 classes; kin"),
        ({**UCF, "changes": {"epochs": None}}, "the epochs of the training are not stated"),
        ({**AVA, "changes": {"test": {"films": 63}}}, "63 films, published 64"),
        ({"pretrained": {"custom_imports": {"imports": ["mine"]}}}, "imports: ['mine'] -> not set"),
        ({"tested": {"custom_imports": {"imports": ["mine"]}}}, "test: custom_imports.imports"),
        ({"changes": {"foreign_classes": ["Top of mine"]}}, "of other packages: Top of mine"),
        (with_training(foreign_classes=["SCE of mine"]), "of other packages: SCE of mine"),
        ({**RETRIEVAL, "changes": {"checkpoint": origin(other_weights=True)}}, "not those that"),
        (
            {**with_training(data={**training_data(K400), "ann_sha256": "ab"}), "test_list": "ab"},
            "tested on the list that the network was trained on",
        ),
        (
            {**RETRIEVAL, "changes": {"bank": {"ann_sha256": "ab"}}, "test_list": "ab"},
            "the gallery is the list of the queries",
        ),
        ({"changes": {"benchmark": {"protocol": "linear"}}}, "does not state dataset, network"),
        ({"changes": {"resolved_config": None}}, "states no resolved config of its test"),
    ],
)
def test_obstacles(options, obstacle):
    options = {**options}
    if test_list := options.pop("test_list", None):
        options["changes"] = {**options["changes"], "test": {"ann_sha256": test_list}}
    found = compared(**options)
    assert len(found.obstacles) == 1 and obstacle in found.obstacles[0], found.obstacles


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({"tested": {f"{TEST_CLIPS}.num_clips": 1}}, f"test: {TEST_CLIPS}.num_clips: 1 -> 10"),
        ({"changes": {"epochs": 5}}, "epoch 5 of a schedule of 60"),
        ({**UCF, "changes": chosen(True)}, "best epoch on the test set; the result"),
        ({**UCF, "changes": chosen(False)}, "best epoch on a validation list"),
        (
            {**RETRIEVAL, "changes": {"bank_videos": 9535, "bank_failures": 2}},
            "2 gallery videos failed",
        ),
    ],
)
def test_deviations(options, deviation):
    found = compared(**options)
    assert found.obstacles == () and len(found.deviations) == 1, found
    assert deviation in found.deviations[0]


# -- images ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "options", "cell"),
    [
        ("stl10", {}, ("tab:temperature-small", 89.94)),
        ("imagenet100", {"method": "sce_images_gamma_weak"}, ("tab:aug", 83.0)),
        ("imagenet", {"method": "sce_images_lars", "epochs": 100}, ("tab:sota", 72.1)),
        ("imagenet", {"method": "sce_images_multicrop"}, ("tab:sota-multi-crop", 75.4)),
    ],
)
def test_a_right_result_on_images_is_beside_its_number_with_a_note(dataset, options, cell):
    content = linear_on_images(dataset, **options)
    assert found(content).obstacles == found(content).deviations == ()
    assert found(content).notes == ("paper: best epoch on the test split",)
    assert beside(content) == [cell]


def test_classes_of_imagenet100_are_checked():
    content = linear_on_images("imagenet100")
    content["protocol"]["test"]["classes"][0] = "n99999999"
    (obstacle,) = found(content).obstacles
    assert obstacle == "test set: its classes differ from the classes of imagenet100"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"images": {"train": 1_880, "test": 1_880}}, "1,880 training images, published 3,760"),
        ({"images": None}, "the number of training images is not stated"),
        ({"files": {"train": OTHER, "test": SAME}}, "by different checkpoints"),
        ({"checkpoint": {"path": None, "source": "random initialisation"}}, "weights: random"),
    ],
)
def test_obstacles_of_a_transfer(changes, reason):
    content = transferred("many_shot", "dtd", {"many_shot_top1": 0.8}, changes)
    assert any(reason in text for text in found(content).obstacles)
    assert beside(content) == []


def test_deviations_of_a_transfer():
    few = transferred("many_shot", "dtd", {"many_shot_top1": 0.8}, {"validation": {"1": 0.5}})
    drawn = transferred("low_shot_svm", "voc2007", {"low_shot_map_16": 0.5}, {"draws": 2})
    assert found(few).deviations == ("C chosen among 1 values, the paper's chosen among 45",)
    assert found(drawn).deviations == ("2 draws instead of 5",)


# -- what a file may state ---------------------------------------------------------------------


def test_views_may_be_stated_with_the_data_set():
    assert views_of({"test": {"clips": 10, "crops": 3}}) == (10, 3)
    assert views_of({"views": 30}) is views_of({"clips": 10, "crops": 0}) is None
    # features: the crops are known only once a video was decoded
    assert views_of({"views": 30, "clips": 10, "crops": 0, "test": {"clips": 10}}) == (10, 3)


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"model": {"type": "os.system", "tau": [[]] * 9}, "train_cfg": 10**400},
        {"custom_hooks": {"a": 5}, "default_hooks": [5], "train_dataloader": {"dataset": None}},
        json.loads('{"model": ' + "[" * 500 + "]" * 500 + "}"),
    ],
)
def test_a_config_of_any_file_is_compared_as_data(config):
    whole = origin()
    whole["training"]["config"] = config
    content = results({"retrieval_r1": 0.5}, "retrieval", "ucf101", split=1)
    content["protocol"] |= {"checkpoint": whole, "resolved_config": config}
    content["protocol"]["benchmark"]["network"] = "r3d18"
    assert found(content).obstacles


def test_networks_of_a_file_name_no_other_config(tmp_path):
    """A recipe is a program: a name in a file of results must not lead to another file."""
    name = f"{tmp_path}/evil"
    (tmp_path / "evil_8xb64-8x224-60e_k400").write_text(f"open('{tmp_path}/ran', 'w')")
    content = results({"top1": 0.5}, "linear", K400)
    content["protocol"]["benchmark"]["network"] = name
    found(content)
    assert not (tmp_path / "ran").exists()
