# Views of the online and of the target branch in SCE on images, one direction and symmetrised.
# Paper:    tab:aug. Weak online, strong target is the order of the pseudo-code of appendix A.
# Run:      sce-video sweep configs/sweeps/image_augmentation.py --out work_dirs/images \
#               --nproc 8
# Hardware: 8 GPUs; eight points, each pretrained for 200 epochs on ImageNet100 (8 x 64 images) and
#           evaluated by a linear classifier (8 x 64). If a command names several image sweeps,
#           points that they share are trained once.

_base_ = "_base_/image_columns.py"

title = "views, online / target (tau 0.1, tau_m 0.05, lambda 0.5), SCE on ImageNet100"
source = "tab:aug"
pretrain = dict(config="configs/sce/sce_r50_8xb64-224-200e_imagenet100.py")
_online, _target = "data_preprocessor.views.0.name", "data_preprocessor.views.1.name"
_alpha_beta = {_online: "strong-alpha", _target: "strong-beta"}
_rows = [  # change from strong / weak, and name of the pretraining
    ("strong / weak", {}, "tau_0.1_tau_m_0.05", 82.9),
    ("strong-gamma / weak", {_online: "strong-gamma"}, "gamma_weak", 83.0),
    ("weak / strong", {_online: "weak", _target: "strong"}, "weak_strong", 73.4),
    ("strong / strong", {_target: "strong"}, "strong_strong", 80.5),
    ("strong-alpha / strong-beta", _alpha_beta, "alpha_beta", 80.7),
    ("symmetrised, strong / weak", {}, "symmetric_strong_weak", 83.7),
    ("symmetrised, strong / strong", {_target: "strong"}, "symmetric_strong_strong", 83.0),
    ("symmetrised, strong-alpha / strong-beta", _alpha_beta, "symmetric_alpha_beta", 84.2),
]
points = [
    dict(
        name=_name,
        options={
            "model.tau_m": 0.05,
            **({"model.symmetric": True} if "symmetric" in _pretraining else {}),
            **_views,
            "benchmark.pretraining": f"sce_images_{_pretraining}",
        },
        published=dict(IN100=_value),
    )
    for _name, _views, _pretraining, _value in _rows
]
