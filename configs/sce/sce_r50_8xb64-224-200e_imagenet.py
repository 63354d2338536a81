# SCE, ResNet-50, 224x224 images, ImageNet, 200 epochs.
# Paper:    tab:baselines, row SCE, column ImageNet; settings of appendix D.1 and
#           tab:specifc-hyper-pretrain.
# Run:      bash tools/dist_train.sh configs/sce/sce_r50_8xb64-224-200e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb64-224-100e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb64-224-200e_imagenet/epoch_200.pth
# Hardware: 8 GPUs x 64 images = global batch 512; shuffle-BN between the GPUs (the authors: 8
#           A100-80G).
# Expected: 70.5 top-1, linear, best epoch on the validation images.
# Options:  custom_hooks.ScheduleHook.base_batch_size=512: the table's learning rate for a batch of
#           512. The text and the authors' code multiply by batch/256, which gives 1.0 here, a high
#           rate for SGD model.projector.num_layers=2 model.projector.hidden_channels=4096
#           model.projector.norm_output=False model.projector.norm_hidden=False
#           model.projector.bias=True: the projector of ImageNet100

_base_ = [
    "../_base_/images/imagenet.py",
    "../_base_/models/image_r50.py",
    "../_base_/schedules/sgd_image_200e.py",
]

benchmark = dict(pretraining="sce_images_tau_0.1_tau_m_0.07")
model = dict(
    type="SCE",
    # The projector has 3 layers without biases and BN after each one, the last without affine
    # parameters.
    projector=dict(
        hidden_channels=2048, num_layers=3, norm_output=True, norm_hidden=True, bias=False
    ),
    queue_size=65536,
    momentum=0.996,
    lambda_=0.5,
    tau=0.1,
    tau_m=0.07,
)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
optim_wrapper = dict(optimizer=dict(lr=0.5))
