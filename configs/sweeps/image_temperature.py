# Temperatures of the online and of the target distribution, tau and tau_m, in SCE on images.
# Paper:    tab:temperature.
# Run:      sce-video sweep configs/sweeps/image_temperature.py --out work_dirs/images \
#               --nproc 8
# Hardware: 8 GPUs; 16 points, each pretrained for 200 epochs on ImageNet100 (8 x 64 images) and
#           evaluated by a linear classifier (8 x 64). If a command names several image sweeps,
#           points that they share are trained once.

_base_ = "_base_/image_columns.py"

_tau_m = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)
_top1 = {
    0.1: (82.3, 82.5, 82.9, 82.5, 83.4, 82.7, 82.5, 82.1),
    0.2: (81.3, 81.2, 81.2, 81.2, 81.1, 80.9, 81.2, 81.2),
}

title = "tau, tau_m (lambda 0.5), SCE on ImageNet100"
source = "tab:temperature"
pretrain = dict(config="configs/sce/sce_r50_8xb64-224-200e_imagenet100.py")
# Options are given only if they change the recipe (0.1, 0.07), so that equal settings are
# pretrained once.
points = [
    dict(
        name=f"{_tau}, {_m:.2f}",
        options={
            **({} if _tau == 0.1 else {"model.tau": _tau}),
            **({} if _m == 0.07 else {"model.tau_m": _m}),
            **(
                {}
                if (_tau, _m) == (0.1, 0.07)
                else {"benchmark.pretraining": f"sce_images_tau_{_tau}_tau_m_{_m}"}
            ),
        },
        published=dict(IN100=_value),
    )
    for _tau, _values in _top1.items()
    for _m, _value in zip(_tau_m, _values, strict=True)
]
