"""``python -m gdpo``."""

from gdpo.cli import main

main()
