# Kinetics-400 as prepared by sce-video prepare kinetics; tested on the validation set.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(
    dataset=dict(data_root="data/kinetics400", ann_file="data/kinetics400/k400_train.txt")
)
val_dataloader = dict(
    dataset=dict(data_root="data/kinetics400", ann_file="data/kinetics400/k400_val.txt")
)
test_dataloader = dict(
    dataset=dict(data_root="data/kinetics400", ann_file="data/kinetics400/k400_val.txt")
)
