# SCE with multi-crop, ResNet-50, ImageNet, 200 epochs of LARS: two global views at 224x224, and one
# local view each of 192, 160, 128 and 96 pixels, which pass through the online branch only.
# Paper:    tab:sota-multi-crop, row SCE; sizes and areas of appendix D.2, after AdCo. It is the
#           checkpoint of tab:many-shot, tab:low-shot-voc and tab:object-detection. All four local
#           views are strong-gamma, as in juliendenize/SCE, five_crops_gpu_sce.yaml; the file of
#           juliendenize/eztorch lists three of them and does not run.
# Run:      bash tools/dist_train.sh configs/sce/sce_multicrop_r50_16xb256-224-200e_imagenet.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_multicrop_r50_16xb256-224-200e_imagenet/epoch_200.pth
# Hardware: 16 GPUs x 256 images = global batch 4096 (the authors: 16 A100-80G). Activations of one
#           view at a time: model.backward_per_query=True optim_wrapper.dtype=bfloat16
# Expected: 75.4 top-1, linear.

_base_ = "./sce_r50_8xb512-224-200e_imagenet.py"

benchmark = dict(pretraining="sce_images_multicrop")
train_dataloader = dict(
    batch_size=256,
    dataset=dict(
        pipeline=dict(
            LoadImage=dict(num_views=6, num_local_views=4),
            RandomResizedCropClips=dict(
                local_size=(192, 160, 128, 96),
                local_area=((0.172, 0.86), (0.143, 0.715), (0.114, 0.571), (0.086, 0.429)),
            ),
        )
    ),
)
data_preprocessor = dict(
    views=[
        dict(name="strong-alpha", strength=0.5),
        dict(name="strong-beta", strength=0.5),
        *[dict(name="strong-gamma", strength=0.5)] * 4,
    ]
)
