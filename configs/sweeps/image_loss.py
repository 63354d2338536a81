# InfoNCE, ReSSL, Ceil with free coefficients (lambda, mu, eta of eq. 10) on images.
# Paper:    tab:loss. loss.py has the same coefficients on video, where the paper has no number.
# Run:      sce-video sweep configs/sweeps/image_loss.py --out work_dirs/images --nproc 8
# Hardware: 8 GPUs; nine points, each pretrained for 200 epochs on ImageNet100 (8 x 64 images) and
#           evaluated by a linear classifier (8 x 64). If a command names several image sweeps,
#           points that they share are trained once.

_base_ = "_base_/image_columns.py"

title = "coefficients lambda, mu, eta of eq. 10 (tau 0.1), on ImageNet100"
source = "tab:loss"
pretrain = dict(config="configs/sce/sce_r50_8xb64-224-200e_imagenet100.py")
points = [
    # The setting does not depend on tau_m, so one run serves both columns of the table.
    dict(
        name="InfoNCE: 1, 0, 0",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": 1.0,
            "benchmark.pretraining": "sce_images_lambda_1.0",
        },
        published=dict(IN100=81.11),
    ),
    dict(
        name="0.5, 0.5, 0 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": [0.5, 0.5, 0.0],
            "benchmark.pretraining": "sce_images_free_0.5_0.5_0_tau_m_0.05",
        },
        published=dict(IN100=82.80),
    ),
    dict(
        name="SCE: 0.5, 0.5, 0.5 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "benchmark.pretraining": "sce_images_tau_0.1_tau_m_0.05",
        },
        published=dict(IN100=82.94),
    ),
    dict(
        name="ReSSL: 0, 1, 0 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": [0.0, 1.0, 0.0],
            "benchmark.pretraining": "sce_images_free_0_1_0_tau_m_0.05",
        },
        published=dict(IN100=80.79),
    ),
    dict(
        name="ReSSL + Ceil: 0, 1, 1 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": 0.0,
            "benchmark.pretraining": "sce_images_lambda_0.0",
        },
        published=dict(IN100=81.53),
    ),
    dict(
        name="0.5, 0.5, 0 (tau_m 0.07)",
        options={
            "model.lambda_": [0.5, 0.5, 0.0],
            "benchmark.pretraining": "sce_images_free_0.5_0.5_0_tau_m_0.07",
        },
        published=dict(IN100=82.49),
    ),
    dict(name="SCE: 0.5, 0.5, 0.5 (tau_m 0.07)", published=dict(IN100=83.37)),
    dict(
        name="ReSSL: 0, 1, 0 (tau_m 0.07)",
        options={
            "model.lambda_": [0.0, 1.0, 0.0],
            "benchmark.pretraining": "sce_images_free_0_1_0_tau_m_0.07",
        },
        published=dict(IN100=78.35),
    ),
    dict(
        name="ReSSL + Ceil: 0, 1, 1 (tau_m 0.07)",
        options={
            "model.lambda_": 0.0,
            "benchmark.pretraining": "sce_images_lambda_0.0_tau_m_0.07",
        },
        published=dict(IN100=79.64),
    ),
]
