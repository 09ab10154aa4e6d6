"""Controls that a monitor may request of a training: pause, and record itself."""
