# HMDB51, split 1, for retrieval, as prepared by sce-video prepare hmdb51.
_base_ = "./retrieval.py"

split = 1
test_dataloader = dict(
    dataset=dict(data_root="data/hmdb51", ann_file="data/hmdb51/test_split1.txt")
)
test_cfg = dict(
    gallery_dataloader=dict(
        dataset=dict(data_root="data/hmdb51", ann_file="data/hmdb51/train_split1.txt")
    )
)
