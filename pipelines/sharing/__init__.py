"""Where feature sets are, here or at a root that projects share, and the records that stay in a project."""
