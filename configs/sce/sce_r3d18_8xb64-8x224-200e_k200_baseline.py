# SCE, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs, baseline of the ablations.
# Paper: tab:video-baseline and the first rows of tab:video-time, tab:video-color.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: 2 A100-80G).
# Expected: K200 linear 63.9, UCF101 86.3, HMDB51 57.0 (top-1, split 1).
# Differs from the final setting: tau_m 0.07, colour strength 0.5, no RGB difference.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="sce_baseline")
model = dict(tau_m=0.07)
data_preprocessor = dict(
    views=[dict(name="strong-alpha", strength=0.5), dict(name="strong-beta", strength=0.5)]
)
train_dataloader = dict(dataset=dict(pipeline=dict(RandomClips=dict(diff_prob=0.0))))
