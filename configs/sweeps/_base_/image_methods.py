# Names and trials of the three methods on images, the settings that images_*_tuning.py chose, and
# the columns, for the sweeps that compare them at equal compute. Each method passes one view of an
# image through the online branch and one through the target, so equal epochs mean equal compute.
_titles = dict(sce="SCE", moco="MoCo v2", ressl="ReSSL")
_rate = "optim_wrapper.optimizer.lr"
_momentum = "custom_hooks.ScheduleHook.model.momentum.start"
_trials = {"recipe": {}, "momentum from 0.9": {_momentum: 0.9}, "rate 1e-3": {_rate: 1e-3}}
_chosen = dict(
    digits=dict(sce="recipe", moco="recipe", ressl="recipe"),
    toy=dict(sce="momentum from 0.9", moco="recipe", ressl="momentum from 0.9"),
)
_toy_frames = {
    "train_dataloader.dataset.data_root": "data/toy_actions/train",
    "train_cfg.max_epochs": 25,
}
_toy_evaluation = {
    "test_dataloader.dataset.data_root": "data/toy_actions",
    "test_cfg.gallery_dataloader.dataset.data_root": "data/toy_actions",
    "test_cfg.gallery_dataloader.dataset.ann_file": "train_patterns.txt",
}
_metrics = {"kNN": "knn_top1", "linear probe": "linear_top1"}
