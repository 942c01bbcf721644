"""Every policy by name, for the command line and the reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from forebay_simulator.fleet.affinity import approximate, bounded_hashing, cached_in, precise
from forebay_simulator.fleet.members import Member
from forebay_simulator.fleet.routing import Forebay, Routing, at_random, least_load, round_robin

MakeRouting = Callable[[Random, Mapping[str, Member]], Routing]
"""A policy for one run: its generator, and the workers by uid for those that can look inside them."""

ROUTING: Mapping[str, MakeRouting] = {
    "random": lambda chance, _members: at_random(chance),
    "round-robin": lambda chance, _members: round_robin(chance),
    "least-load": lambda chance, _members: least_load(chance),
    "chwbl": lambda chance, _members: bounded_hashing(chance),
    "approximate-prefix": lambda chance, _members: approximate(chance),
    "precise-prefix": lambda chance, members: precise(chance, cached_in(members)),
    "forebay": lambda chance, _members: Forebay(chance),
}
