"""Digests of the code that stages run, found by following imports in the source: nothing is imported or run.

`python -m pipelines.code` writes them to code/, each a JSON of files and digests of their syntax trees (syntax.py): all that a
program can import, without the entries of registries that it does not use (closure.py); units.py says what those are. The stage
`code` of dvc.yaml does so after any edit, in a second or two. Others depend on these files, so those run whose code changed.
"""
