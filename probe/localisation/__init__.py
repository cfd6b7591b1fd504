"""Weakly supervised localisation: where a score map says that the object is, against boxes that were drawn by hand.

What finds and compares boxes needs no torch; `maps` makes the score maps.
"""
