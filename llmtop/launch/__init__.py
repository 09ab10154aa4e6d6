"""Starting a training so that it can be watched and captured, without standing between it and its terminal.

The command always takes the place of `llmtop run` itself (exec_in_place.py); its configuration is in its
environment (environment.py), and what every Python among its processes finds first is in inject/. What has to stay
beside a training, such as an nsys session (nsys_session.py), runs detached from it (spawn_detached.py) and goes
when it has gone (run_lifetime.py).
"""
