"""Digests of the code that stages run, found by following imports in the source: nothing is imported or run.

    python -m pipelines.code

writes them to code/: extract/ENCODER.json, readers/FORM.json, heads/NAME.json, studies/NAME.json, report.json and others. Each
maps files to digests of their syntax trees (syntax.py): all that a program can import (closure.py), without the entries of
registries that it does not use (registries.py); units.py says what those are. The stage `code` of dvc.yaml does so after any
edit of the code, in a second or two. Other stages depend on these files, so DVC runs only those whose code has changed.
"""
