# Weight of the positive, lambda, in SCE on images. 1 is InfoNCE, and 0 the relations and Ceil.
# Paper:    tab:lambda.
# Run:      sce-video sweep configs/sweeps/image_lambda.py --out work_dirs/images --nproc 8
# Hardware: 8 GPUs; eleven points, each pretrained for 200 epochs on ImageNet100 (8 x 64 images) and
#           evaluated by a linear classifier (8 x 64). If a command names several image sweeps,
#           points that they share are trained once.

_base_ = "_base_/image_columns.py"

_top1 = {
    0.0: 81.5,
    0.1: 81.8,
    0.2: 82.5,
    0.3: 82.8,
    0.4: 82.9,
    0.5: 82.9,
    0.6: 82.2,
    0.7: 81.6,
    0.8: 81.8,
    0.9: 81.8,
    1.0: 81.1,
}

title = "lambda (tau 0.1, tau_m 0.05), SCE on ImageNet100"
source = "tab:lambda"
pretrain = dict(config="configs/sce/sce_r50_8xb64-224-200e_imagenet100.py")
points = [
    dict(
        name=f"{_lambda:.1f}",
        options={
            "model.tau_m": 0.05,
            **(
                {"benchmark.pretraining": "sce_images_tau_0.1_tau_m_0.05"}
                if _lambda == 0.5  # the recipe's value
                else {
                    "model.lambda_": _lambda,
                    "benchmark.pretraining": f"sce_images_lambda_{_lambda}",
                }
            ),
        },
        published=dict(IN100=_value),
    )
    for _lambda, _value in _top1.items()
]
