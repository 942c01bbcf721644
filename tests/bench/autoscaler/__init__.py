"""The autoscaler against others, in the fleet simulator: `make bench-autoscaler`."""
