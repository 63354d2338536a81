# Weight of the positive, lambda, in SCE on video. 1 is InfoNCE, and 0 the relations alone.
# Paper:    tab:video-lambda-vary.
# Run:      sce-video sweep configs/sweeps/video_lambda.py --out work_dirs/ablations --nproc 8
# Hardware: 8 GPUs; nine points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). The baseline is
#           a point of all video sweeps. A command that names several of them trains it once.

_base_ = "_base_/video_columns.py"

title = "lambda (tau_m 0.07), SCE on Kinetics-200"
source = "tab:video-lambda-vary"
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
points = [
    dict(
        name="0.000",
        options={"model.lambda_": 0.0, "benchmark.pretraining": "sce_baseline_lambda_0.0"},
        published=dict(K200=64.2, UCF101=86.2, HMDB51=57.5),
    ),
    dict(
        name="0.125",
        options={"model.lambda_": 0.125, "benchmark.pretraining": "sce_baseline_lambda_0.125"},
        published=dict(K200=64.8, UCF101=86.9, HMDB51=58.2),
    ),
    dict(
        name="0.250",
        options={"model.lambda_": 0.25, "benchmark.pretraining": "sce_baseline_lambda_0.25"},
        published=dict(K200=64.3, UCF101=86.7, HMDB51=58.2),
    ),
    dict(
        name="0.375",
        options={"model.lambda_": 0.375, "benchmark.pretraining": "sce_baseline_lambda_0.375"},
        published=dict(K200=64.7, UCF101=86.3, HMDB51=56.8),
    ),
    dict(
        name="0.500",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
    ),
    dict(
        name="0.625",
        options={"model.lambda_": 0.625, "benchmark.pretraining": "sce_baseline_lambda_0.625"},
        published=dict(K200=63.4, UCF101=86.2, HMDB51=55.7),
    ),
    dict(
        name="0.750",
        options={"model.lambda_": 0.75, "benchmark.pretraining": "sce_baseline_lambda_0.75"},
        published=dict(K200=63.1, UCF101=85.8, HMDB51=56.2),
    ),
    dict(
        name="0.875",
        options={"model.lambda_": 0.875, "benchmark.pretraining": "sce_baseline_lambda_0.875"},
        published=dict(K200=62.1, UCF101=85.7, HMDB51=55.3),
    ),
    dict(
        name="1.000",
        options={"model.lambda_": 1.0, "benchmark.pretraining": "sce_baseline_lambda_1.0"},
        published=dict(K200=61.9, UCF101=85.0, HMDB51=55.4),
    ),
]
