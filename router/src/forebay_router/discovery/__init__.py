"""Where workers come from: a list of addresses, or Kubernetes."""
