"""The mathematics of multi-reward advantages, for NumPy and PyTorch alike; imports no other room."""
