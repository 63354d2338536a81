# ReSSL, ResNet-50, 224x224 images, ImageNet, 200 epochs.
# Paper:    tab:baselines, row ReSSL (the authors' reproduction), column ImageNet: everything except
#           the loss is as in SCE's recipe. tau_m 0.04 comes from ReSSL's code
#           (KyleZheng1997/ReSSL).
# Run:      bash tools/dist_train.sh configs/ressl/ressl_r50_8xb64-224-200e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb64-224-100e_imagenet.py 8 \
#               --pretrained work_dirs/ressl_r50_8xb64-224-200e_imagenet/epoch_200.pth
# Hardware: 8 GPUs x 64 images = global batch 512; shuffle-BN between the GPUs (the authors: 8
#           A100-80G).
# Expected: 70.2 top-1, linear, best epoch on the validation images.

_base_ = [
    "../_base_/images/imagenet.py",
    "../_base_/models/image_r50.py",
    "../_base_/schedules/sgd_image_200e.py",
]

benchmark = dict(pretraining="ressl_images")
model = dict(
    type="ReSSL",
    # The projector has 3 layers without biases and BN after each one, the last without affine
    # parameters.
    projector=dict(
        hidden_channels=2048, num_layers=3, norm_output=True, norm_hidden=True, bias=False
    ),
    queue_size=65536,
    momentum=0.996,
    tau=0.1,
    tau_m=0.04,
)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
optim_wrapper = dict(optimizer=dict(lr=0.5))
