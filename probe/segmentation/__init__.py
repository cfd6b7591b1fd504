"""Semantic segmentation from cached patch tokens: k nearest patches, logistic regression, a linear head."""
