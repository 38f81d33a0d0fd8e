"""Runs programs of a model where they can do no harm, and keeps the verdict with the caller.

``backends`` knows which sandbox this system has, ``runner`` starts, speaks to and ends one process, ``child`` is what
runs in it; ``asserts`` reads tests, ``evaluate`` evaluates them in the trusted parent, ``programs`` puts it together
and ``batch`` runs many at once.
"""
