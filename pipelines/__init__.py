"""Thin mains of the stages, and the command line."""
