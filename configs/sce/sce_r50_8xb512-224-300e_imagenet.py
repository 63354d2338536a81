# SCE, ResNet-50, 224x224 images, ImageNet, 300 epochs of LARS.
# Paper:    tab:sota, row SCE, column 300.
# Run:      bash tools/dist_train.sh configs/sce/sce_r50_8xb512-224-300e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb512-224-300e_imagenet/epoch_300.pth
# Hardware: 8 GPUs x 512 images = global batch 4096 (the authors: 8 A100-80G).
# Expected: 73.3 top-1, linear.

_base_ = "./sce_r50_8xb512-224-200e_imagenet.py"

train_cfg = dict(max_epochs=300)
