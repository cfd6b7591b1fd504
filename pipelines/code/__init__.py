"""Digests of the code that stages run, found by following imports in the source: nothing is imported or run.

    python -m pipelines.code extract    # writes code/extract/ENCODER.json, code/readers/FORM.json
    python -m pipelines.code probe      # writes code/heads/NAME.json, code/studies/NAME.json
    python -m pipelines.code report     # writes code/report.json; likewise attention, compose, divergence, localise

The stages `code-…` of dvc.yaml run these after any edit of the code, which takes a second; the other stages depend on what is
written here, so DVC runs those alone whose code is another. Each file maps files to digests of their syntax trees
(syntax.py) for all that a program can import (closure.py), without the entries of registries that it does not use
(registries.py); units.py says which those are.
"""
