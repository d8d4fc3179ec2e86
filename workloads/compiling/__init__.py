"""What torch.compile makes of models, on a machine without a GPU."""
