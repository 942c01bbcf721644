"""Resource types, names, conditions and the objective: what every other component agrees on."""
