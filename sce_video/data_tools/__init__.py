"""Tools that work on a dataset before training: preparing, verifying, repacking, toy videos."""
