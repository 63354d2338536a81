"""The commands: ``sce-video NAME`` and the files of the same name in ``tools``.

A command parses its options, calls the function that does the work, and prints the result. The
function is imported inside the command, so that ``--help`` and the answer to a wrong command line
do not wait for heavy libraries.
"""
