# InfoNCE, ReSSL, Ceil with free coefficients (lambda, mu, eta of eq. 10) in SCE's video pipeline.
# Paper:    tab:loss, measured there on images: ResNet-50, ImageNet100, a linear classifier. Because
#           this is another protocol, its numbers appear in the row's name and not next to the
#           results. The numbers next to the results come from tab:video-lambda-vary and
#           tab:video-temp, because eq. 10 with mu = eta = 1 - lambda is SCE's loss.
# Run:      sce-video sweep configs/sweeps/loss.py --out work_dirs/ablations --nproc 8
# Hardware: 8 GPUs; nine points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). Four of them are
#           also points of video_lambda.py and video_temperature.py.

_base_ = "_base_/video_columns.py"

title = "coefficients lambda, mu, eta of eq. 10, on Kinetics-200"
source = "tab:video-lambda-vary, tab:video-temp"
notes = [
    "tab:loss has no numbers on video. 'images' are its top-1 on ImageNet100 with ResNet-50: "
    "another protocol, to be compared in their order only.",
]
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
points = [
    dict(
        name="InfoNCE: 1, 0, 0",
        options={"model.lambda_": 1.0, "benchmark.pretraining": "sce_baseline_lambda_1.0"},
        published=dict(K200=61.9, UCF101=85.0, HMDB51=55.4),
        note="images: 81.11 and 81.11",
    ),
    dict(
        name="0.5, 0.5, 0 (tau_m 0.07)",
        options={"model.lambda_": [0.5, 0.5, 0.0], "benchmark.pretraining": "sce_free_0.5_0.5_0"},
        note="images: 82.49",
    ),
    dict(
        name="SCE: 0.5, 0.5, 0.5 (tau_m 0.07)",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
        note="images: 83.37",
    ),
    dict(
        name="ReSSL: 0, 1, 0 (tau_m 0.07)",
        options={"model.lambda_": [0.0, 1.0, 0.0], "benchmark.pretraining": "sce_free_0_1_0"},
        note="images: 78.35",
    ),
    dict(
        name="ReSSL + Ceil: 0, 1, 1 (tau_m 0.07)",
        options={"model.lambda_": 0.0, "benchmark.pretraining": "sce_baseline_lambda_0.0"},
        published=dict(K200=64.2, UCF101=86.2, HMDB51=57.5),
        note="images: 79.64",
    ),
    dict(
        name="0.5, 0.5, 0 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": [0.5, 0.5, 0.0],
            "benchmark.pretraining": "sce_free_0.5_0.5_0_tau_m_0.05",
        },
        note="images: 82.80",
    ),
    dict(
        name="SCE: 0.5, 0.5, 0.5 (tau_m 0.05)",
        options={"model.tau_m": 0.05, "benchmark.pretraining": "sce_baseline_tau_m_0.05"},
        published=dict(K200=64.3, UCF101=86.4, HMDB51=57.1),
        note="images: 82.94",
    ),
    dict(
        name="ReSSL: 0, 1, 0 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": [0.0, 1.0, 0.0],
            "benchmark.pretraining": "sce_free_0_1_0_tau_m_0.05",
        },
        note="images: 80.79",
    ),
    dict(
        name="ReSSL + Ceil: 0, 1, 1 (tau_m 0.05)",
        options={
            "model.tau_m": 0.05,
            "model.lambda_": 0.0,
            "benchmark.pretraining": "sce_free_0_1_1_tau_m_0.05",
        },
        note="images: 81.53",
    ),
]
