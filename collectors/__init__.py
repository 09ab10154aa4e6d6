"""Live sources, each behind one small interface, and the hub that turns them into snapshots."""
