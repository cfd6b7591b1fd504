"""How the quickstart's encoders were trained, and how the figures of this repository are written from their results."""
