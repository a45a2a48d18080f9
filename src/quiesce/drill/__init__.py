"""A fleet of real replicas behind a balancer, under load, with faults, and the audit of what became of every event.

The pieces compose: a scenario is a list of steps over a fleet. `quiesce demo` is one preset of them.
"""
