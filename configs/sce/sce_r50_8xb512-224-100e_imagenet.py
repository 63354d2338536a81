# SCE, ResNet-50, 224x224 images, ImageNet, 100 epochs of LARS.
# Paper:    tab:sota, row SCE, column 100. The learning rate comes from the command of the released
#           checkpoint (juliendenize/SCE, README) and of facebookresearch/moco-v3.
# Run:      bash tools/dist_train.sh configs/sce/sce_r50_8xb512-224-100e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb512-224-100e_imagenet/epoch_100.pth
# Hardware: 8 GPUs x 512 images = global batch 4096 (the authors: 8 A100-80G).
# Expected: 72.1 top-1, linear.
# Options:  optim_wrapper.optimizer.lr=0.5: the learning rate in appendix D.2

_base_ = "./sce_r50_8xb512-224-200e_imagenet.py"

train_cfg = dict(max_epochs=100)
optim_wrapper = dict(optimizer=dict(lr=0.6))
