"""What is done to a data set before training: preparation, verification, repacking, toy videos."""
