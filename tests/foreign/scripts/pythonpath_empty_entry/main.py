#: steps = 5
#: run = {python} bin/train.py
#: env = PYTHONPATH=:{folder}/lib
"""What `export PYTHONPATH=$PYTHONPATH:lib` makes: an empty entry, which is the current folder."""
