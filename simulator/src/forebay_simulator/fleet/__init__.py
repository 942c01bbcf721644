"""The fleet simulator: hours of many workers in virtual time, around the real `choose`, `decide` and engine scheduler.

    traces      requests: public traces and generators                     -> arrivals
    routing     which worker: the router's own `choose`, and what other routers do
    scaling     how many workers: the autoscaler's own `decide`, and what other autoscalers do
    strides     the engine's scheduler, many identical steps at once, equal to one at a time
    simulation  the agenda of events that ties them together               -> outcomes
    report      attainment, goodput per GPU-hour and the rest, over seeds

Nothing here reads a clock, waits, or draws from anything but the seeded generator of its run: the same scenario and seed
give the same outcomes on every machine.
"""
