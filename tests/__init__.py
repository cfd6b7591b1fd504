import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the program does, before conftest.py imports torch
