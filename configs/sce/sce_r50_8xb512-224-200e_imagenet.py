# SCE, ResNet-50, 224x224 images, ImageNet, 200 epochs of LARS: the symmetrised loss with a
# predictor, strong-alpha and strong-beta views.
# Paper:    tab:sota, row SCE, column 200; settings of appendix D.2 and of the authors' code
#           (juliendenize/eztorch, configs/run/pretrain/sce/resnet50/resnet50_imagenet.yaml).
# Run:      bash tools/dist_train.sh configs/sce/sce_r50_8xb512-224-200e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb512-224-200e_imagenet/epoch_200.pth
# Hardware: 8 GPUs x 512 images = global batch 4096 (the authors: 8 A100-80G); on smaller GPUs,
#           lower train_dataloader.batch_size and raise optim_wrapper.accumulative_counts.
# Expected: 72.7 top-1, linear.
# Options:  model.projector.hidden_channels=2048: 3 x 2048 as juliendenize/SCE has it for two views;
#           model.projector.num_layers=2: 2 x 4096 as facebookresearch/moco-v3, "the same" as which
#           the paper calls its projector; here 3 x 4096 as juliendenize/eztorch

_base_ = ["../_base_/images/imagenet.py", "../_base_/schedules/lars_image_200e.py"]

benchmark = dict(pretraining="sce_images_lars")
model = dict(
    type="SCE",
    backbone=dict(type="ResNet2d", depth=50),
    projector=dict(
        type="MLP", hidden_channels=4096, out_channels=256, num_layers=3, norm_output=True
    ),
    predictor=dict(type="MLP", hidden_channels=4096, num_layers=2, norm_output=False),
    queue_size=65536,
    momentum=0.99,
    lambda_=0.5,
    tau=0.1,
    tau_m=0.07,
    symmetric=True,
)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.99, end=1.0)))
)
train_dataloader = dict(batch_size=512, num_workers=16)
data_preprocessor = dict(
    views=[dict(name="strong-alpha", strength=0.5), dict(name="strong-beta", strength=0.5)]
)
