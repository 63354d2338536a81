# UCF101, split 1, for retrieval, as prepared by sce-video prepare ucf101.
_base_ = "./retrieval.py"

split = 1
test_dataloader = dict(
    dataset=dict(data_root="data/ucf101", ann_file="data/ucf101/test_split1.txt")
)
test_cfg = dict(
    gallery_dataloader=dict(
        dataset=dict(data_root="data/ucf101", ann_file="data/ucf101/train_split1.txt")
    )
)
