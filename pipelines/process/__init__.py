"""The process that a command runs in: its device, its memory, its progress bars."""
