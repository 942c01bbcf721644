"""Which workers are left alone although they say that they are ready."""
