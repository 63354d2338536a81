# Diving48 (labels V2) as prepared by sce-video prepare diving48.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(dataset=dict(data_root="data/diving48", ann_file="data/diving48/train.txt"))
val_dataloader = dict(dataset=dict(data_root="data/diving48", ann_file="data/diving48/test.txt"))
test_dataloader = dict(dataset=dict(data_root="data/diving48", ann_file="data/diving48/test.txt"))
