"""The engine that asks a training's own Kineto over its fabric."""
