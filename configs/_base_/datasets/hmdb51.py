# HMDB51 as prepared by sce-video prepare hmdb51: three official splits; sce-video finetune-splits
# replaces split1 by each of the others.
_base_ = "./recognition.py"

split = 1
train_dataloader = dict(
    dataset=dict(data_root="data/hmdb51", ann_file="data/hmdb51/train_split1.txt")
)
val_dataloader = dict(dataset=dict(data_root="data/hmdb51", ann_file="data/hmdb51/test_split1.txt"))
test_dataloader = dict(
    dataset=dict(data_root="data/hmdb51", ann_file="data/hmdb51/test_split1.txt")
)
