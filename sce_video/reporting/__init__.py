"""Results beside the numbers of the paper: the numbers, result files, tables and pages."""
