# HMDB51, split 1, for retrieval, as prepared by tools/data/hmdb51.py.
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
