# Something-Something v2, lists of `sce-video prepare ssv2`; tested on the validation set, since
# the test set has no labels.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/train.txt"))
val_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/val.txt"))
test_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/val.txt"))
