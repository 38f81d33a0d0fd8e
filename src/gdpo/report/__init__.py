"""Findings and runs for people: in the terminal and as offline HTML pages."""

from gdpo.report.html import write_compare_report, write_run_report

__all__ = ["write_compare_report", "write_run_report"]
