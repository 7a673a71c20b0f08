"""python -m headlab"""

from headlab.cli import main

main()
