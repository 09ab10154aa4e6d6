#: steps = 6
#: run = {python} -m pkg.train --lr 0.05
"""`python -m`, with a package that imports from itself. This file is only the header."""
