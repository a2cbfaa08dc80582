"""PyTorch models: a backend for `torch.compile`, and programs made of FX graphs of ATen operators."""
