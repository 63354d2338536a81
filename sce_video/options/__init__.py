"""Options of the commands, which are the arguments of the Python functions of the same name."""
