# Supervised training on Kinetics-200 from random weights: ResNet3D-18, 8 frames at 224x224.
# Paper:    tab:video-baseline, row Supervised. The optimiser follows the authors' code.
# Run:      bash tools/dist_train.sh configs/downstream/supervised/r3d18_8xb128-8x224-200e_k200.py 8
# Test:     bash tools/dist_test.sh \
#               configs/downstream/supervised/r3d18_8xb128-8x224-200e_k200.py \
#               work_dirs/r3d18_8xb128-8x224-200e_k200/epoch_200.pth 8
# Hardware: 8 GPUs x 128 videos = global batch 1024, as in the authors' code. The learning rate
#           follows another batch size. BN normalises over the 128 videos of a GPU.
# Expected: 72.0 top-1 on the validation set, 30 views (UCF101 87.5, HMDB51 60.1 finetuned from it).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/kinetics200_recognition.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/linear_8x224.py",
    "../../_base_/pipelines/test_8x224.py",
    "../../_base_/schedules/supervised_sgd_200e.py",
]

benchmark = dict(
    protocol="supervised",
    dataset="kinetics200",
    network="r3d18",
    frames=8,
    size=224,
    pretrained_on=None,
)

model = dict(cls_head=dict(num_classes=200, dropout_ratio=0.5))
pretrained = "random"
train_dataloader = dict(batch_size=128, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
