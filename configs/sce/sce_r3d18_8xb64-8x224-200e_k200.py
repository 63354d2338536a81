# SCE, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs, final setting.
# Paper:    tab:video-best, row lambda 0.5, tau_m 0.05, diff 0.2, strength 1.0;
#           tab:video-sota-action, ResNet3D-18 on K200.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: 2 A100-80G).
# Expected: K200 linear 66.0, UCF101 88.4, HMDB51 62.0 (top-1, split 1).

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(dataset="kinetics200")
model = dict(queue_size=32768)
train_dataloader = dict(dataset=dict(ann_file="data/kinetics400/k200_train.txt"))
test_dataloader = dict(dataset=dict(ann_file="data/kinetics400/k200_val.txt"))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(ann_file="data/kinetics400/k200_train.txt")))
default_hooks = dict(
    online_evaluation=dict(gallery=dict(dataset=dict(ann_file="data/kinetics400/k200_val.txt")))
)
