"""Runs programs of a model where they can do no harm."""
