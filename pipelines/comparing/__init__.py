"""What `beyondcls compare` does: results of two folders or commits side by side, and what differs in how they were made."""
