# NTU RGB+D (60 actions) as prepared by sce-video prepare ntu60, split by performer.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(
    dataset=dict(data_root="data/ntu60", ann_file="data/ntu60/train_subject.txt")
)
val_dataloader = dict(dataset=dict(data_root="data/ntu60", ann_file="data/ntu60/test_subject.txt"))
test_dataloader = dict(dataset=dict(data_root="data/ntu60", ann_file="data/ntu60/test_subject.txt"))
