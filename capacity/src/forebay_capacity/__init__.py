"""What a model can do on an accelerator: memory, step time, plans. Pure arithmetic."""
