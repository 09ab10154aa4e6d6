"""What a monitor may ask of a training: to pause, to record itself."""
