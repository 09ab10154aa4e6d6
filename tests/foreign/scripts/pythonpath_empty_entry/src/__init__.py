"""Found only from the folder that the program is started in."""
