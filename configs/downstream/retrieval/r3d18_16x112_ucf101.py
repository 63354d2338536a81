# Retrieval on UCF101, split 1: ResNet3D-18, 16 frames at 112x112, mean h of 30 views.
# Paper:    tab:video-sota-retrieval, ResNet3D-18, 16 frames at 112x112.
# Run:      python tools/test.py configs/downstream/retrieval/r3d18_16x112_ucf101.py \
#               work_dirs/sce_r3d18_8xb64-16x112-200e_k400/epoch_200.pth
# Hardware: any; on several GPUs: bash tools/dist_test.sh CONFIG CHECKPOINT 8.
# Expected: R@1/5/10 74.5/85.9/90.5, centred (retrieval_r1, ...).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ucf101_retrieval.py",
    "../../_base_/models/encoder_r3d18.py",
    "../../_base_/pipelines/test_16x112.py",
]

benchmark = dict(
    protocol="retrieval",
    dataset="ucf101",
    network="r3d18",
    frames=16,
    size=112,
    pretrained_on="kinetics400",
)

test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=_base_.test_pipeline)))
