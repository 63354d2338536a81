# Evaluations of the paper's video ablations: K200 linear, UCF101 and HMDB51 finetuned on split 1,
# with 8 processes.
columns = [
    dict(
        name="K200",
        config="configs/downstream/linear/r3d18_8xb64-8x224-60e_k200.py",
        training="one",
        metric="top1",
    ),
    dict(
        name="UCF101",
        config="configs/downstream/finetune/r3d18_1xb64-8x224-200e_ucf101.py",
        options={"train_dataloader.batch_size": 8},  # per GPU; 64 on 8 GPUs
        training="one",
        metric="top1",
    ),
    dict(
        name="HMDB51",
        config="configs/downstream/finetune/r3d18_1xb64-8x224-200e_hmdb51.py",
        options={"train_dataloader.batch_size": 8},  # per GPU; 64 on 8 GPUs
        training="one",
        metric="top1",
    ),
]
