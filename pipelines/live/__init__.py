"""Probes on their live encoders: images to logits, and to maps of where a head looks."""
