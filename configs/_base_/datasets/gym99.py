# FineGym-99, lists of `sce-video prepare finegym`; tested on the validation set, as its papers do.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(dataset=dict(data_root="data/finegym", ann_file="data/finegym/train.txt"))
val_dataloader = dict(dataset=dict(data_root="data/finegym", ann_file="data/finegym/val.txt"))
test_dataloader = dict(dataset=dict(data_root="data/finegym", ann_file="data/finegym/val.txt"))
