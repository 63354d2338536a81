"""The image sweeps: every cell of the tables, the settings behind it, shared pretrainings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import differences, recipe_config, resolved_config
from sce_video.published.recipes import pretraining_recipe
from sce_video.runs.sweep import option_texts, plan, read_sweep

# The tables as they are printed.
LAMBDA = """
0.   0.1  0.2  0.3  0.4  0.5  0.6  0.7  0.8  0.9  1.0
81.5 81.8 82.5 82.8 82.9 82.9 82.2 81.6 81.8 81.8 81.1
"""
LOSS = """
InfoNCE 1.  0.  0.  81.11 81.11
        0.5 0.5 0.  82.80 82.49
SCE     0.5 0.5 0.5 82.94 83.37
ReSSL   0.  1.  0.  80.79 78.35
        0.  1.  1.  81.53 79.64
"""
AUGMENTATION = """
strong       weak        no  82.9
strong-gamma weak        no  83.0
weak         strong      no  73.4
strong       strong      no  80.5
strong-alpha strong-beta no  80.7
strong       weak        yes 83.7
strong       strong      yes 83.0
strong-alpha strong-beta yes 84.2
"""
TEMPERATURE = """
0.03 82.3 0.03 81.3
0.04 82.5 0.04 81.2
0.05 82.9 0.05 81.2
0.06 82.5 0.06 81.2
0.07 83.4 0.07 81.1
0.08 82.7 0.08 80.9
0.09 82.5 0.09 81.2
0.10 82.1 0.10 81.2
"""
TEMPERATURE_SMALL = """
CIFAR10  0.1 89.93 90.03 90.06 90.20 90.16 90.06 89.67 88.97
CIFAR10  0.2 89.98 90.12 90.12 90.05 90.13 90.09 90.22 90.34
CIFAR100 0.1 64.49 64.90 65.19 65.33 65.27 65.45 64.89 63.87
CIFAR100 0.2 63.71 63.74 63.89 64.05 64.24 64.23 64.10 64.30
STL10    0.1 89.34 89.94 89.87 89.84 89.72 89.52 88.99 88.41
STL10    0.2 88.4  88.23 88.4  88.35 87.54 88.32 88.80 88.59
Tiny-IN  0.1 50.23 51.12 51.41 51.66 51.90 51.58 51.37 50.46
Tiny-IN  0.2 48.56 48.85 48.35 48.98 49.06 49.15 49.66 49.64
"""
BASELINES = """
MoCo  68.8 80.5 87.6 61.0 86.5 45.9
ReSSL 70.2 81.6 90.2 64.0 89.1 49.5
SCE   70.5 83.4 90.3 65.5 89.9 51.9
"""
SETS = {  # column: data set, linear recipe
    "ImageNet": ("imagenet", "r50_8xb64-224-100e_imagenet"),
    "IN100": ("imagenet100", "r50_8xb64-224-100e_imagenet100"),
    "CIFAR10": ("cifar10", "r18_1xb256-32-100e_cifar10"),
    "CIFAR100": ("cifar100", "r18_1xb256-32-100e_cifar100"),
    "STL10": ("stl10", "r18_1xb256-96-100e_stl10"),
    "Tiny-IN": ("tiny_imagenet", "r18_1xb256-64-100e_tiny_imagenet"),
}
TAU_M = [value / 100 for value in range(3, 11)]
NAMES = ("lambda", "loss", "augmentation", "temperature", "temperature_small", "baselines")
#: Points of each, and pretrainings that no earlier one has.
COUNTS = dict(zip(NAMES, ((11, 11), (9, 6), (8, 7), (16, 14), (64, 64), (18, 13)), strict=True))


def rows(table):
    return [line.split() for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def sweeps(repo):
    return {name: read_sweep(repo / f"configs/sweeps/image_{name}.py") for name in NAMES}


@pytest.fixture(scope="module")
def configs(sweeps, repo):
    """By sweep, the resolved pretraining of every point."""
    found = {}
    for name, sweep in sweeps.items():
        found[name] = []
        for point in sweep.points:
            path, options = (
                repo / (point.config or sweep.config),
                {**sweep.options, **point.options},
            )
            found[name].append(load_config(path, option_texts(options)))
    return found


def settings(cfg):
    """lambda, tau, tau_m, views, symmetric; free coefficients as a tuple."""
    model = cfg.model
    weight = model.lambda_ if isinstance(model.lambda_, float) else tuple(model.lambda_)
    names = tuple(view["name"] for view in cfg.data_preprocessor.views)
    assert all(view.get("strength", 0.5) == 0.5 for view in cfg.data_preprocessor.views)
    return (weight, model.tau, model.tau_m, names, model.symmetric)


STRONG_WEAK = ("strong", "weak")


def numbers(sweep):
    """(column, published number) of every point."""
    found = [tuple(point.published.items()) for point in sweep.points]
    assert all(len(published) == 1 for published in found)
    return [published[0] for published in found]


def test_lambda(sweeps, configs):
    weights, top1 = ([float(text) for text in row] for row in rows(LAMBDA))
    assert numbers(sweeps["lambda"]) == [("IN100", value) for value in top1]
    expected = [(weight, 0.1, 0.05, STRONG_WEAK, False) for weight in weights]
    assert [settings(cfg) for cfg in configs["lambda"]] == expected
    names = [f"sce_images_lambda_{weight}" for weight in weights]
    names[5] = "sce_images_tau_0.1_tau_m_0.05"
    assert [cfg.benchmark.pretraining for cfg in configs["lambda"]] == names


def test_loss(sweeps, configs):
    """Eq. 10 with mu = eta = 1 - lambda is SCE's loss of eq. 9, with one number."""
    table = [[float(text) for text in row[-5:]] for row in rows(LOSS)]
    expected = []
    for column, tau_m in ((3, 0.05), (4, 0.07)):
        for weight, mu, eta, *_ in table:
            one = mu == eta == 1 - weight
            coefficients = weight if one else (weight, mu, eta)
            if weight == 1:
                if tau_m == 0.07:
                    continue  # the same run: there is no tau_m in it
                coefficients = 1.0
            value = table[[row[:3] for row in table].index([weight, mu, eta])][column]
            expected.append((coefficients, tau_m, value))
    found = [
        (settings(cfg)[0], cfg.model.tau_m, value)
        for cfg, (_, value) in zip(configs["loss"], numbers(sweeps["loss"]), strict=True)
    ]
    assert found == expected
    assert {settings(cfg)[1] for cfg in configs["loss"]} == {0.1}
    assert {settings(cfg)[3:] for cfg in configs["loss"]} == {(STRONG_WEAK, False)}
    assert [cfg.benchmark.pretraining.removeprefix("sce_images_") for cfg in configs["loss"]] == [
        "lambda_1.0",
        "free_0.5_0.5_0_tau_m_0.05",
        "tau_0.1_tau_m_0.05",
        "free_0_1_0_tau_m_0.05",
        "lambda_0.0",
        "free_0.5_0.5_0_tau_m_0.07",
        "tau_0.1_tau_m_0.07",
        "free_0_1_0_tau_m_0.07",
        "lambda_0.0_tau_m_0.07",
    ]


def test_augmentation(sweeps, configs):
    """The first view is the query, of the online branch; the last the key, of the target."""
    table = rows(AUGMENTATION)
    assert numbers(sweeps["augmentation"]) == [("IN100", float(row[3])) for row in table]
    expected = [(0.5, 0.1, 0.05, (row[0], row[1]), row[2] == "yes") for row in table]
    assert [settings(cfg) for cfg in configs["augmentation"]] == expected
    names = [cfg.benchmark.pretraining for cfg in configs["augmentation"]]
    assert [name.removeprefix("sce_images_") for name in names] == [
        "tau_0.1_tau_m_0.05",
        "gamma_weak",
        "weak_strong",
        "strong_strong",
        "alpha_beta",
        "symmetric_strong_weak",
        "symmetric_strong_strong",
        "symmetric_alpha_beta",
    ]


def test_temperature(sweeps, configs):
    table = [[float(text) for text in row] for row in rows(TEMPERATURE)]
    cells = [(0.1, row[0], row[1]) for row in table] + [(0.2, row[2], row[3]) for row in table]
    assert numbers(sweeps["temperature"]) == [("IN100", value) for *_, value in cells]
    expected = [(0.5, tau, tau_m, STRONG_WEAK, False) for tau, tau_m, _ in cells]
    assert [settings(cfg) for cfg in configs["temperature"]] == expected
    names = [cfg.benchmark.pretraining for cfg in configs["temperature"]]
    assert names == [f"sce_images_tau_{tau}_tau_m_{tau_m}" for tau, tau_m, _ in cells]


def test_temperature_of_small_sets(sweeps, configs):
    cells = [
        (row[0], float(row[1]), tau_m, float(value))
        for row in rows(TEMPERATURE_SMALL)
        for tau_m, value in zip(TAU_M, row[2:], strict=True)
    ]
    sweep = sweeps["temperature_small"]
    assert numbers(sweep) == [(name, value) for name, _, _, value in cells]
    for cfg, point, (name, tau, tau_m, _) in zip(
        configs["temperature_small"], sweep.points, cells, strict=True
    ):
        assert point.columns == [name] and cfg.benchmark.dataset == SETS[name][0]
        assert settings(cfg) == (0.5, tau, tau_m, STRONG_WEAK, False)
        assert cfg.benchmark.pretraining == f"sce_images_tau_{tau}_tau_m_{tau_m}"


def test_baselines(sweeps, configs):
    cells = [
        (row[0], name, float(value))
        for row in rows(BASELINES)
        for name, value in zip(SETS, row[1:], strict=True)
    ]
    sweep = sweeps["baselines"]
    assert numbers(sweep) == [(name, value) for _, name, value in cells]
    for cfg, point, (method, name, _) in zip(
        configs["baselines"], sweep.points, cells, strict=True
    ):
        assert cfg.model.type == method and cfg.benchmark.dataset == SETS[name][0]
        assert point.columns == [name] and not point.options


def test_the_ablations_change_the_recipe_of_imagenet100(sweeps, configs):
    for name in NAMES[:4]:
        assert sweeps[name].config == "configs/sce/sce_r50_8xb64-224-200e_imagenet100.py"
        assert not any(point.config or point.columns for point in sweeps[name].points)
        assert {cfg.benchmark.dataset for cfg in configs[name]} == {"imagenet100"}


@pytest.fixture(scope="module")
def pretrainings(sweeps, repo):
    """By sweep, the folder of every point's pretraining, in one plan of all sweeps."""
    evaluation = "configs/_base_/default_runtime.py"  # of no importance here, and read once
    changed = [
        replace(s, columns=tuple(replace(c, config=evaluation, training="none") for c in s.columns))
        for s in sweeps.values()
    ]
    cells = plan(changed, "out", None, repo)
    assert {cell.step.before.result for cell in cells} == {"epoch_200.pth"}
    found = {name: [] for name in NAMES}
    for cell in cells:
        found[cell.sweep.removeprefix("image_")].append(cell.step.before.folder)
    return found


def test_shared_points_are_one_pretraining(pretrainings):
    """One run for equal settings: 38 on ImageNet100, 64 on small sets, 13 of the baselines."""
    trained: set[str] = set()
    for name, folders in pretrainings.items():
        assert (len(folders), len(set(folders) - trained)) == COUNTS[name]
        trained |= set(folders)
    assert len(trained) == 38 + 64 + 13


def test_equal_settings_are_one_pretraining_and_different_ones_are_not(pretrainings, configs):
    """By the resolved configs, whatever the options are called."""
    ablations = NAMES[:4]
    folders = [folder for name in ablations for folder in pretrainings[name]]
    resolved = [settings(cfg) for name in ablations for cfg in configs[name]]
    assert len(set(folders)) == len(set(resolved)) == len(set(zip(folders, resolved, strict=True)))


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_the_linear_protocol_of_the_set(sweeps, repo, name):
    """Needs the recipes of configs/downstream/linear; the network is that of the pretraining."""
    sweep = sweeps[name]
    assert {(column.training, column.metric) for column in sweep.columns} == {("one", "top1")}
    for column in sweep.columns:
        dataset, recipe = SETS[column.name]
        assert column.config == f"configs/downstream/linear/{recipe}.py" and not column.options
        benchmark = load_config(repo / column.config).benchmark
        assert (benchmark.protocol, benchmark.dataset) == ("linear", dataset)
        assert benchmark.pretrained_on == dataset
        recipes = {point.config or sweep.config for point in sweep.points if point.has(column)}
        assert recipes
        for trained in (load_config(repo / recipe).benchmark for recipe in recipes):
            same = ("network", "frames", "size", "dataset")
            assert [benchmark[key] for key in same] == [trained[key] for key in same]


@pytest.mark.parametrize("name", NAMES)
def test_every_point_is_the_recipe_of_its_number(configs, name):
    for cfg in configs[name]:
        claim, epochs = cfg.benchmark, cfg.train_cfg.max_epochs
        setting = (claim.dataset, claim.network, claim.frames, claim.size, epochs)
        recipe = pretraining_recipe(claim.pretraining, *setting)
        ranks = int(re.search(r"_(\d+)xb", recipe[0])[1])
        config = resolved_config(cfg, ranks * cfg.train_dataloader.batch_size)
        assert differences(config, recipe_config(*recipe)) == []


def test_sweeps_name_their_table_and_what_differs(sweeps):
    tables = {
        "lambda": "tab:lambda",
        "loss": "tab:loss",
        "augmentation": "tab:aug",
        "temperature": "tab:temperature",
        "temperature_small": "tab:temperature-small",
        "baselines": "tab:baselines",
    }
    assert {name: sweep.source for name, sweep in sweeps.items()} == tables
    assert all(re.search("best epoch", sweep.notes[0]) for sweep in sweeps.values())
