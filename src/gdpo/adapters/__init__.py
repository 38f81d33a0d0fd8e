"""Thin plug-ins for the trainers that already scale: each carries scores in and advantages out."""
