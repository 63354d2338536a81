# SCE, ResNet-50, 224x224 images, ImageNet, 1000 epochs of LARS.
# Paper:    tab:sota, row SCE, column 800-1000; momentum and weight decay of appendix D.2 and
#           facebookresearch/moco-v3.
# Run:      bash tools/dist_train.sh configs/sce/sce_r50_8xb512-224-1000e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb512-224-1000e_imagenet/epoch_1000.pth
# Hardware: 8 GPUs x 512 images = global batch 4096 (the authors: 8 A100-80G).
# Expected: 74.1 top-1, linear.
# Options:  model.momentum=0.99 custom_hooks.ScheduleHook.model.momentum.start=0.99: as the command
#           of juliendenize/SCE's README, which changes the weight decay only

_base_ = "./sce_r50_8xb512-224-200e_imagenet.py"

model = dict(momentum=0.996)
custom_hooks = dict(ScheduleHook=dict(model=dict(momentum=dict(start=0.996))))
train_cfg = dict(max_epochs=1000)
optim_wrapper = dict(optimizer=dict(weight_decay=1.5e-6))
