"""Figures of the lifecycle itself, measured on this machine: real processes, real signals, medians."""
